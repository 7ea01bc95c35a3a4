//! Messages from one end of a connection to the other: the n-th sent is the n-th received, where none is lost.

use std::collections::{HashMap, VecDeque};

use crate::report::{self, Latency};
use crate::sample::{
    Cqe, Histogram, Message, MessageEnd, Opcode, Poll, Post, PostedTo, PostedWr, ProcessId, Record,
};

/// Messages remembered that were sent and not received yet, or the other way round; beyond it none are paired.
const MAX_WAITING: usize = 1 << 22;

/// True for messages that the other end receives; the others pass it by.
pub fn is_received(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv | Opcode::RdmaWriteWithImm)
}

/// Pairs messages while the records of all recordings pass in order of time.
#[derive(Debug, Default)]
pub struct Messages {
    /// The direction each end sends in, and the one it receives in.
    ends: HashMap<(ProcessId, u32), (usize, usize)>,
    directions: Vec<Direction>,
    waiting: usize,
    /// Messages whose both ends were found.
    pub paired: u64,
    latency_ns: Histogram,
}

#[derive(Debug, Default)]
struct Direction {
    sent: VecDeque<(Option<Opcode>, MessageEnd)>,
    received: VecDeque<(u32, MessageEnd)>,
    number: u64,
    /// Something is missing, so that what came after cannot be counted off.
    closed: bool,
    /// What came after.
    after: u64,
}

impl Messages {
    /// Makes known that these two ends are connected.
    pub fn connect(&mut self, a: (ProcessId, u32), b: (ProcessId, u32)) {
        let first = self.directions.len();
        self.directions.extend([Direction::default(), Direction::default()]);
        self.ends.insert(a, (first, first + 1));
        self.ends.insert(b, (first + 1, first));
    }

    /// How long messages took, from the beginning of the post to the return of the poll.
    pub fn latency(&self) -> Latency {
        report::latency(&self.latency_ns, self.latency_ns.highest().map(|(_, high)| high))
    }

    /// Messages that were sent on a connection and whose receive was not found, and the other way round.
    pub fn unpaired(&self) -> u64 {
        let left = |d: &Direction| d.sent.len() as u64 + d.received.len() as u64 + d.after;
        self.directions.iter().map(left).sum()
    }

    /// Takes in the next record, as it is in the merged trace; `found` is told of messages whose both ends are there.
    pub fn take(&mut self, record: &Record, mut found: impl FnMut(Message)) {
        match record {
            Record::Post(post) if post.queue == PostedTo::Send => self.sent(post, &mut found),
            Record::Poll(poll) => self.received(poll, &mut found),
            Record::Gap(gap) => {
                let of_process = self.ends.iter().filter(|((id, _), _)| *id == gap.id);
                for at in of_process.flat_map(|(_, (out, back))| [*out, *back]) {
                    self.directions[at].closed = true;
                }
            }
            _ => {}
        }
    }

    fn sent(&mut self, post: &Post, found: &mut impl FnMut(Message)) {
        let Some((out, _)) = self.ends.get(&(post.id, post.number)).copied() else { return };
        let received = |wr: &&PostedWr| wr.opcode.is_some_and(is_received);
        for wr in post.wrs.iter().filter(received) {
            let end = MessageEnd {
                t_ns: post.t_ns,
                duration_ns: post.duration_ns,
                id: post.id,
                tid: post.tid,
                qpn: post.number,
                wr_id: wr.wr_id,
            };
            if self.has_room(out) {
                self.directions[out].sent.push_back((wr.opcode, end));
                self.pair(out, found);
            }
        }
    }

    fn received(&mut self, poll: &Poll, found: &mut impl FnMut(Message)) {
        for cqe in poll.cqes.iter().filter(|cqe| cqe.receive == Some(true)) {
            let Cqe { wr_id, bytes, .. } = *cqe;
            let Some(qpn) = cqe.qpn else { continue };
            let Some((_, back)) = self.ends.get(&(poll.id, qpn)).copied() else { continue };
            let Poll { t_ns, duration_ns, id, tid, .. } = *poll;
            if self.has_room(back) {
                let end = MessageEnd { t_ns, duration_ns, id, tid, qpn, wr_id };
                self.directions[back].received.push_back((bytes.unwrap_or(0), end));
                self.pair(back, found);
            }
        }
    }

    fn has_room(&mut self, direction: usize) -> bool {
        let direction = &mut self.directions[direction];
        direction.closed |= self.waiting >= MAX_WAITING;
        if direction.closed {
            direction.after += 1;
        } else {
            self.waiting += 1;
        }
        !direction.closed
    }

    fn pair(&mut self, direction: usize, found: &mut impl FnMut(Message)) {
        let direction = &mut self.directions[direction];
        if direction.sent.is_empty() || direction.received.is_empty() {
            return;
        }
        let (Some((opcode, from)), Some((bytes, to))) =
            (direction.sent.pop_front(), direction.received.pop_front())
        else {
            return;
        };
        self.waiting -= 2;
        self.paired += 1;
        let returned_ns = to.t_ns.saturating_add(to.duration_ns);
        self.latency_ns.record(returned_ns.saturating_sub(from.t_ns));
        found(Message { number: direction.number, opcode, bytes, from, to });
        direction.number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Gap;

    const A: ProcessId = ProcessId { pid: 1, start_ns: 1 };
    const B: ProcessId = ProcessId { pid: 2, start_ns: 1 };

    fn send(id: ProcessId, t_ns: u64, opcodes: &[Opcode]) -> Record {
        let wrs = opcodes.iter().map(|o| PostedWr { wr_id: t_ns, opcode: Some(*o), ..PostedWr::default() });
        Record::Post(Post { t_ns, id, number: 17, wrs: wrs.collect(), ..Post::default() })
    }

    fn receive(id: ProcessId, t_ns: u64, count: usize) -> Record {
        let cqe = Cqe { wr_id: t_ns, qpn: Some(17), receive: Some(true), bytes: Some(8), ..Cqe::default() };
        Record::Poll(Poll { t_ns, duration_ns: 1, id, cqes: vec![cqe; count], ..Poll::default() })
    }

    /// Number, post and poll of each message, and how many are left over.
    fn run(records: &[Record]) -> (Vec<(u64, u64, u64)>, u64) {
        let mut messages = Messages::default();
        messages.connect((A, 17), (B, 17));
        let mut found = Vec::new();
        for record in records {
            messages.take(record, |m| found.push((m.number, m.from.t_ns, m.to.t_ns)));
        }
        assert_eq!(messages.paired, found.len() as u64);
        (found, messages.unpaired())
    }

    #[test]
    fn the_nth_that_is_received_is_the_nth_that_can_be_whatever_is_written_in_between() {
        let records = [
            send(A, 1, &[Opcode::RdmaWrite, Opcode::Send, Opcode::RdmaRead]),
            // Clocks may disagree by a little: a receive is told before its send.
            receive(B, 2, 2),
            send(A, 3, &[Opcode::RdmaWriteWithImm, Opcode::Send]),
            send(B, 4, &[Opcode::Send]),
            receive(A, 5, 1),
        ];
        assert_eq!(run(&records), (vec![(0, 1, 2), (1, 3, 2), (0, 4, 5)], 1));
    }

    #[test]
    fn nothing_is_paired_across_a_gap() {
        let records = [
            send(A, 1, &[Opcode::Send]),
            receive(B, 2, 1),
            Record::Gap(Gap { t_ns: 3, id: B, entries: 5 }),
            send(A, 4, &[Opcode::Send]),
            receive(B, 5, 1),
        ];
        assert_eq!(run(&records), (vec![(0, 1, 2)], 2));
    }
}
