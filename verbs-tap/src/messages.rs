//! The log of single work requests, kept where the environment asks for it. Layout in [`probe_common::messages`].
//!
//! Without it, an operation costs one load and a branch more. With it, some tens of ns a work request: the clock is read
//! twice a call, and every entry takes a number from a counter that all threads share.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use probe_common::messages::{self, Cell, FEWEST_CELLS, Header, MOST_CELLS, Message, flag, kind};

use crate::abi::{self, Cq, CqEx, Object, Qp, RecvWr, SendWr, Wc, opcode};
use crate::memfd::{self, Memfd};
use crate::thread;

static MAPPED: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());
/// Cells of the mapped file less one.
static MASK: AtomicUsize = AtomicUsize::new(0);
static FD: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);

/// The log of this process.
#[derive(Clone, Copy)]
pub struct Log(NonNull<Header>);

/// The log, where there is one.
#[inline(always)]
pub fn log() -> Option<Log> {
    NonNull::new(MAPPED.load(Acquire)).map(Log)
}

/// Makes the log if the environment asks for one. Called once a process, when it makes its counters.
pub fn make_if_asked() {
    let Some(cells) = asked() else { return };
    let Some(Memfd { fd, inode, at }) = memfd::make(c"verbs-tap-messages", messages::bytes(cells)) else {
        return;
    };
    let log = Log(at.cast());
    let header = log.header();
    header.version.store(messages::VERSION, Relaxed);
    header.cells.store(u32::try_from(cells).unwrap_or(0), Relaxed);
    header.pid.store(std::process::id(), Relaxed);
    header.magic.store(messages::MAGIC, Release);
    FD.store(fd, Relaxed);
    INODE.store(inode, Relaxed);
    MASK.store(cells - 1, Relaxed);
    MAPPED.store(log.0.as_ptr(), Release);
}

fn asked() -> Option<usize> {
    let wanted: usize = std::env::var(messages::VARIABLE).ok()?.parse().ok()?;
    Some(wanted.clamp(FEWEST_CELLS, MOST_CELLS).next_power_of_two())
}

/// In a forked child: leave the parent's log alone.
pub fn abandon_in_child() {
    let header = MAPPED.swap(ptr::null_mut(), Relaxed);
    let bytes = messages::bytes(MASK.load(Relaxed) + 1);
    memfd::abandon(header.cast(), bytes, FD.swap(-1, Relaxed), INODE.load(Relaxed));
}

/// When a call began.
#[derive(Clone, Copy)]
pub struct Begun(u64);

impl Begun {
    /// Nanoseconds of the monotonic clock.
    pub fn ns(self) -> u64 {
        self.0
    }
}

/// Begins a call.
pub fn begin() -> Begun {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec of ours. The monotonic clock exists everywhere, and is read without a system call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Begun(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
}

/// A send work request.
#[derive(Clone, Copy, Default)]
pub struct Send {
    pub wr_id: u64,
    pub opcode: u32,
    pub signalled: bool,
    pub inline: bool,
    pub bytes: u64,
}

impl Log {
    fn header(&self) -> &'static Header {
        // SAFETY: mapped for the life of the process (a child abandons it before anything else runs there).
        unsafe { self.0.as_ref() }
    }

    fn put(self, message: &Message) {
        let number = self.header().next.0.fetch_add(1, Relaxed);
        let place = number as usize & MASK.load(Relaxed);
        // SAFETY: as many cells follow the header as the mask says.
        unsafe { &*self.0.as_ptr().add(1).cast::<Cell>().add(place) }.write(number, message);
    }

    /// Tells a send work request that is about to be posted.
    pub fn send(self, begun: Begun, qp: *const Qp, wr: &Send) {
        let bit = |set, bit| if set { bit } else { 0 };
        let flags = bit(wr.signalled, flag::SIGNALLED) | bit(wr.inline, flag::INLINE);
        self.put(&Message {
            kind: kind::SEND,
            opcode: u8::try_from(wr.opcode).unwrap_or(u8::MAX),
            flags,
            tid: thread::tid(),
            t_ns: begun.0,
            wr_id: wr.wr_id,
            object: qp as u64,
            // SAFETY: the queue pair that the program posts to.
            number: unsafe { (*qp).qp_num },
            length: u32::try_from(wr.bytes).unwrap_or(u32::MAX),
            ..Message::default()
        });
    }

    /// Tells the chain of `ibv_post_send`, of which `count` were walked.
    ///
    /// # Safety
    /// `wr` is the chain that the program passed for `qp`, with at least `count` work requests.
    #[cold]
    pub unsafe fn sends(self, qp: *const Qp, mut wr: *const SendWr, count: u64, signal_all: bool) -> Begun {
        let begun = begin();
        for _ in 0..count {
            // SAFETY: a work request of the chain.
            let this = unsafe { &*wr };
            let mut bytes = 0;
            if !matches!(this.opcode, opcode::LOCAL_INV | opcode::BIND_MW) {
                // SAFETY: the list of a work request of the chain.
                bytes = unsafe { crate::digest::bytes(this.sg_list, this.num_sge) };
            }
            let send = Send {
                wr_id: this.wr_id,
                opcode: this.opcode,
                signalled: signal_all || this.send_flags & abi::SEND_SIGNALED != 0,
                inline: this.send_flags & abi::SEND_INLINE != 0,
                bytes,
            };
            self.send(begun, qp, &send);
            wr = this.next;
        }
        begun
    }

    /// Tells the chain of `ibv_post_recv` or `ibv_post_srq_recv`, of which `count` were walked; `queue` is
    /// [`kind::RECEIVE`] or [`kind::SHARED_RECEIVE`].
    ///
    /// # Safety
    /// As for [`Self::sends`].
    #[cold]
    pub unsafe fn receives(
        self,
        queue: u8,
        object: *const Object,
        mut wr: *const RecvWr,
        count: u64,
    ) -> Begun {
        let begun = begin();
        let number = number_of(queue, object);
        for _ in 0..count {
            // SAFETY: a work request of the chain, and its list.
            let (this, bytes) = unsafe { (&*wr, crate::digest::bytes((*wr).sg_list, (*wr).num_sge)) };
            self.put(&Message {
                kind: queue,
                tid: thread::tid(),
                t_ns: begun.0,
                wr_id: this.wr_id,
                object: object as u64,
                number,
                length: u32::try_from(bytes).unwrap_or(u32::MAX),
                ..Message::default()
            });
            wr = this.next;
        }
        begun
    }

    /// Tells that a post returned: how many work requests were posted, and its error.
    #[cold]
    pub fn posted(self, begun: Begun, queue: u8, object: *const Object, posted: u64, result: c_int) {
        self.put(&Message {
            kind: kind::POSTED,
            opcode: queue,
            tid: thread::tid(),
            t_ns: begun.0,
            object: object as u64,
            number: number_of(queue, object),
            count: u32::try_from(posted).unwrap_or(u32::MAX),
            errno: result.unsigned_abs(),
            duration_ns: begin().0.saturating_sub(begun.0),
            ..Message::default()
        });
    }

    /// Tells what `ibv_poll_cq` found.
    ///
    /// # Safety
    /// The provider has written `found` completion entries to `wc`.
    #[cold]
    pub unsafe fn completions(self, begun: Begun, cq: *const Cq, wc: *const Wc, found: u64) {
        let now = begin();
        for index in 0..found {
            // SAFETY: within what was written.
            let wc = unsafe { &*wc.add(usize::try_from(index).unwrap_or(0)) };
            self.put(&Message {
                kind: kind::COMPLETION,
                opcode: wc.opcode as u8,
                flags: flag::NUMBER | flag::LENGTH,
                status: wc.status as u8,
                tid: thread::tid(),
                t_ns: now.0,
                wr_id: wc.wr_id,
                object: cq as u64,
                number: wc.qp_num,
                length: wc.byte_len,
                ..Message::default()
            });
        }
        self.polled(begun, now, cq, found);
    }

    /// Tells the completion entry an extended CQ stands at.
    ///
    /// # Safety
    /// `ex` stands at a completion entry, in this thread.
    #[cold]
    pub unsafe fn completion(self, ex: *mut CqEx) {
        // SAFETY: as promised; functions of fields that were not asked for when the CQ was made are absent.
        let (opcode, length, number, status, wr_id) = unsafe {
            let read = |at| abi::read_field(ex, at);
            (read(abi::wc::OPCODE), read(abi::wc::BYTE_LEN), read(abi::wc::QP_NUM), (*ex).status, (*ex).wr_id)
        };
        let known = |field: Option<u32>, bit| if field.is_some() { bit } else { 0 };
        self.put(&Message {
            kind: kind::COMPLETION,
            opcode: opcode.unwrap_or(0) as u8,
            flags: known(number, flag::NUMBER) | known(length, flag::LENGTH),
            status: status as u8,
            tid: thread::tid(),
            t_ns: begin().0,
            wr_id,
            object: ex as u64,
            number: number.unwrap_or(0),
            length: length.unwrap_or(0),
            ..Message::default()
        });
    }

    /// Tells that a poll which found something has returned.
    #[cold]
    pub fn polled(self, begun: Begun, returned: Begun, cq: *const Cq, found: u64) {
        self.put(&Message {
            kind: kind::POLLED,
            tid: thread::tid(),
            t_ns: begun.0,
            object: cq as u64,
            // SAFETY: the CQ that the program polled.
            number: unsafe { (*cq).handle },
            count: u32::try_from(found).unwrap_or(u32::MAX),
            duration_ns: returned.0.saturating_sub(begun.0),
            ..Message::default()
        });
    }
}

/// QP number, or handle of an SRQ.
fn number_of(queue: u8, object: *const Object) -> u32 {
    // SAFETY: the object that the program posts to, of that kind.
    unsafe {
        match queue {
            kind::SHARED_RECEIVE => (*object.cast::<abi::Srq>()).handle,
            _ => (*object.cast::<Qp>()).qp_num,
        }
    }
}
