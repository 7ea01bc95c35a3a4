//! The log of single work requests of one process, read as it is written. Layout in [`probe_common::messages`].

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use probe_common::messages::{
    self, Cell, FEWEST_CELLS, Found, Header, MAGIC, MOST_CELLS, Message, NAME, VERSION, flag, kind,
};

use crate::collect::clock::now_ns;
use crate::sample::{Cqe, Gap, Opcode, Poll, Post, PostedTo, PostedWr, ProcessId, Record};

use super::TapError;
use super::memfd::{self, Mapped};

/// How long a cell may stay unwritten while later ones are there: its thread was interrupted, or killed.
const PATIENCE: Duration = Duration::from_millis(200);
/// `IBV_WC_RECV` and above: completions of receives.
const RECEIVE: u8 = 1 << 7;
/// Entries of a call: a trace's line has at most 1 MiB.
const MOST_OF_CALL: usize = 4096;
/// Entries of calls that have not returned. A program that is not what it seems could write them for ever.
const MOST_OPEN: usize = 1 << 21;

/// The log of one process, and how far it has been read.
pub struct MessageLog {
    file: Mapped,
    cells: usize,
    next: u64,
    /// Since when the next message has been awaited, while later ones are there.
    stuck: Option<Instant>,
    /// Entries of calls that have not returned, by thread and object.
    open: HashMap<(u32, u64), Open>,
    /// How many of them there are.
    opened: usize,
}

#[derive(Default)]
struct Open {
    wrs: Vec<PostedWr>,
    cqes: Vec<Cqe>,
}

impl MessageLog {
    /// Opens the log of a process; `None` when it keeps none.
    ///
    /// # Errors
    /// [`TapError`] for a process that cannot be looked into, and for a file that is not the tap's.
    pub fn of(pid: u32) -> Result<Option<Self>, TapError> {
        let cells = |file: &Mapped| (file.bytes() - size_of::<Header>()) / size_of::<Cell>();
        let found = memfd::find(
            pid,
            NAME,
            |bytes| (messages::bytes(FEWEST_CELLS)..=messages::bytes(MOST_CELLS)).contains(&bytes),
            |file| {
                let header = header(file);
                if (header.magic.load(Acquire), header.version.load(Relaxed)) != (MAGIC, VERSION) {
                    return Err("it was written by another version of the tap");
                }
                let count = cells(file);
                if usize::try_from(header.cells.load(Relaxed)) != Ok(count) || !count.is_power_of_two() {
                    return Err("it has another number of cells than it says");
                }
                Ok(header.pid.load(Relaxed))
            },
        )?;
        Ok(found.map(|file| Self {
            cells: cells(&file),
            file,
            next: 0,
            stuck: None,
            open: HashMap::new(),
            opened: 0,
        }))
    }

    /// Takes what was written since, `most` entries at most. Returns how many there were. With `last` the process has
    /// ended: what is not written now never will be.
    pub fn take(&mut self, id: ProcessId, most: usize, last: bool, records: &mut Vec<Record>) -> usize {
        let mut lost = 0;
        let end = header(&self.file).next.0.load(Acquire);
        let begun = self.next;
        // What lies more than a ring behind has been overwritten.
        let oldest = end.saturating_sub(self.cells as u64);
        if oldest > self.next {
            lost += oldest - self.next;
            self.next = oldest;
        }
        let stop = end.min(self.next.saturating_add(most as u64));
        while self.next < stop {
            let place = self.next as usize & (self.cells - 1);
            match self.cell(place).read(self.next) {
                Found::Message(message) => {
                    self.told(lost, id, records);
                    lost = 0;
                    self.message(id, &message, records);
                    if self.opened > MOST_OPEN {
                        lost = self.opened as u64;
                    }
                }
                Found::Lost => lost += 1,
                Found::NotYet if last => lost += 1,
                Found::NotYet => {
                    if self.stuck.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                        break;
                    }
                    lost += 1;
                }
            }
            self.stuck = None;
            self.next += 1;
        }
        self.told(lost, id, records);
        (self.next - begun) as usize
    }

    fn cell(&self, place: usize) -> &Cell {
        // SAFETY: as many cells follow the header as fit into the file, and `place` is one of them; they consist of
        // atomics.
        let cells: &[Cell] = unsafe { self.file.rest(size_of::<Header>(), self.cells) };
        &cells[place]
    }

    /// Says what is missing before anything that came after.
    fn told(&mut self, lost: u64, id: ProcessId, records: &mut Vec<Record>) {
        if lost > 0 {
            self.open.clear();
            self.opened = 0;
            records.push(Record::Gap(Gap { t_ns: now_ns(), id, entries: lost }));
        }
    }

    fn close(&mut self, key: (u32, u64)) -> Open {
        let open = self.open.remove(&key).unwrap_or_default();
        self.opened -= open.wrs.len() + open.cqes.len();
        open
    }

    fn message(&mut self, id: ProcessId, m: &Message, records: &mut Vec<Record>) {
        let key = (m.tid, m.object);
        match m.kind {
            kind::SEND | kind::RECEIVE | kind::SHARED_RECEIVE => {
                self.opened += 1;
                self.open.entry(key).or_default().wrs.push(request(m));
            }
            kind::COMPLETION => {
                self.opened += 1;
                self.open.entry(key).or_default().cqes.push(completion(m));
            }
            kind::POSTED => {
                let mut wrs = self.close(key).wrs;
                wrs.truncate(m.count as usize);
                let queue = match m.opcode {
                    kind::SEND => PostedTo::Send,
                    kind::RECEIVE => PostedTo::Receive,
                    _ => PostedTo::SharedReceive,
                };
                for wrs in parts(&wrs) {
                    records.push(Record::Post(Post {
                        t_ns: m.t_ns,
                        duration_ns: m.duration_ns,
                        id,
                        tid: m.tid,
                        queue,
                        object: m.object,
                        number: m.number,
                        errno: m.errno,
                        wrs: wrs.to_vec(),
                    }));
                }
            }
            kind::POLLED => {
                let cqes = self.close(key).cqes;
                for cqes in parts(&cqes) {
                    records.push(Record::Poll(Poll {
                        t_ns: m.t_ns,
                        duration_ns: m.duration_ns,
                        id,
                        tid: m.tid,
                        cq: m.object,
                        cqes: cqes.to_vec(),
                    }));
                }
            }
            _ => {}
        }
    }
}

/// A call's entries in parts that fit into a line; of a call without any, one empty part.
fn parts<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    let empty = all.is_empty().then_some(all);
    empty.into_iter().chain(all.chunks(MOST_OF_CALL))
}

fn header(file: &Mapped) -> &Header {
    // SAFETY: the file is longer than one, and begins with it; it consists of atomics.
    unsafe { file.start() }
}

fn request(m: &Message) -> PostedWr {
    PostedWr {
        wr_id: m.wr_id,
        opcode: (m.kind == kind::SEND).then(|| Opcode::from_number(m.opcode.into())),
        bytes: m.length,
        signalled: m.flags & flag::SIGNALLED != 0,
        inline: m.flags & flag::INLINE != 0,
    }
}

fn completion(m: &Message) -> Cqe {
    let receive = (m.status == 0).then_some(m.opcode & RECEIVE != 0);
    Cqe {
        wr_id: m.wr_id,
        qpn: (m.flags & flag::NUMBER != 0).then_some(m.number),
        status: m.status.into(),
        receive,
        bytes: (receive == Some(true) && m.flags & flag::LENGTH != 0).then_some(m.length),
    }
}
