//! Which completion belongs to which work request.
//!
//! A completion names its QP and the program's own number of the work request, which programs may use as often as they
//! like. Requests of a send queue complete in order, so that of several with one number the oldest is meant, and with
//! it those before it that ask for no completion are known to be done. Receives complete in order within a QP; those
//! of a shared receive queue in any.
//!
//! Posts and polls of different threads reach a trace a little out of order: a completion whose request is not known yet
//! waits for it.

use std::collections::{HashMap, VecDeque};

use crate::sample::{Cqe, Gap, Poll, Post, PostedTo, PostedWr, ProcessId, Record};

/// Work requests remembered, over all processes; more outstanding ones are not paired.
const MAX_WAITING: usize = 1 << 21;
/// Completions that wait for their post, per process.
const MAX_EARLY: usize = 1 << 12;
/// How far into a queue a completion's request is looked for.
const REACH: usize = 1 << 12;

/// A work request and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paired {
    /// Whose.
    pub id: ProcessId,
    /// Which queue.
    pub queue: PostedTo,
    /// Pointer of the QP or SRQ.
    pub object: u64,
    /// QP number; of a shared receive that of the QP it was used for, where the completion told.
    pub qpn: u32,
    /// Counts the work requests of that queue from 0.
    pub number: u64,
    /// The request.
    pub wr: PostedWr,
    /// When the call that posted it began.
    pub posted_ns: u64,
    /// Thread that posted it.
    pub tid: u32,
    /// When it was seen to be done; `None` where it never was.
    pub reaped: Option<Reaped>,
}

/// How a work request was seen to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// When the poll began.
    pub poll_ns: u64,
    /// When it had returned.
    pub t_ns: u64,
    /// Thread that polled.
    pub tid: u32,
    /// By its own completion; otherwise by one of a later request.
    pub own: bool,
    /// `IBV_WC_…`, 0 for success.
    pub status: u32,
    /// Bytes received.
    pub bytes: Option<u32>,
}

/// What could not be paired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unpaired {
    /// Completions whose work request is not known.
    pub completions: u64,
    /// Work requests beyond those remembered, or forgotten when entries were lost.
    pub requests: u64,
}

/// Pairs what is posted with what is polled, record by record.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pairing {
    processes: HashMap<ProcessId, Process>,
    waiting: usize,
    unpaired: Unpaired,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Process {
    queues: HashMap<(PostedTo, u32), Queue>,
    early: VecDeque<(Cqe, Reaped)>,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Queue {
    object: u64,
    posted: u64,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Waiting {
    number: u64,
    wr: PostedWr,
    posted_ns: u64,
    tid: u32,
}

impl Pairing {
    /// Takes in the next record; `done` is told of every work request that is thereby known to be done, or given up.
    pub fn take(&mut self, record: &Record, mut done: impl FnMut(Paired)) {
        match record {
            Record::Post(post) => self.post(post, &mut done),
            Record::Poll(poll) => self.poll(poll, &mut done),
            Record::Gap(gap) => self.gap(gap, &mut done),
            Record::Process(process) if process.exited => self.end(process.id, &mut done),
            _ => {}
        }
    }

    /// Tells of all that was never seen to be done.
    pub fn finish(&mut self, mut done: impl FnMut(Paired)) {
        let mut left: Vec<_> = self.processes.keys().copied().collect();
        left.sort_unstable();
        left.into_iter().for_each(|id| self.end(id, &mut done));
    }

    /// What could not be paired so far.
    pub fn unpaired(&self) -> Unpaired {
        let early = self.processes.values().map(|process| process.early.len() as u64).sum::<u64>();
        Unpaired { completions: self.unpaired.completions + early, ..self.unpaired }
    }

    /// Work requests that are outstanding, by process.
    pub fn outstanding(&self, id: ProcessId) -> u64 {
        let queues = self.processes.get(&id).into_iter().flat_map(|process| process.queues.values());
        queues.map(|queue| queue.waiting.len() as u64).sum()
    }

    fn post(&mut self, post: &Post, done: &mut impl FnMut(Paired)) {
        let process = self.processes.entry(post.id).or_default();
        let queue = process.queues.entry((post.queue, post.number)).or_default();
        if queue.object != post.object {
            // The number is in use again: what the QP before it had will never be done.
            self.waiting -= queue.waiting.len();
            give_up(post.id, (post.queue, post.number), queue, done);
            *queue = Queue { object: post.object, ..Queue::default() };
        }
        for wr in &post.wrs {
            let number = queue.posted;
            queue.posted += 1;
            if self.waiting >= MAX_WAITING {
                self.unpaired.requests += 1;
                continue;
            }
            self.waiting += 1;
            queue.waiting.push_back(Waiting { number, wr: *wr, posted_ns: post.t_ns, tid: post.tid });
        }
        for _ in 0..process.early.len() {
            let Some((cqe, reaped)) = process.early.pop_front() else { break };
            if !process.complete(post.id, &cqe, reaped, &mut self.waiting, done) {
                process.early.push_back((cqe, reaped));
            }
        }
    }

    fn poll(&mut self, poll: &Poll, done: &mut impl FnMut(Paired)) {
        let process = self.processes.entry(poll.id).or_default();
        for cqe in &poll.cqes {
            let reaped = Reaped {
                poll_ns: poll.t_ns,
                t_ns: poll.t_ns.saturating_add(poll.duration_ns),
                tid: poll.tid,
                own: true,
                status: cqe.status,
                bytes: cqe.bytes,
            };
            if process.complete(poll.id, cqe, reaped, &mut self.waiting, done) {
                continue;
            }
            if process.early.len() >= MAX_EARLY {
                process.early.pop_front();
                self.unpaired.completions += 1;
            }
            process.early.push_back((*cqe, reaped));
        }
    }

    /// After entries are missing, nothing outstanding can be told apart any more.
    fn gap(&mut self, gap: &Gap, done: &mut impl FnMut(Paired)) {
        let Some(process) = self.processes.get_mut(&gap.id) else { return };
        let forgotten: usize = process.queues.values().map(|queue| queue.waiting.len()).sum();
        self.unpaired.requests += forgotten as u64;
        self.end(gap.id, done);
    }

    fn end(&mut self, id: ProcessId, done: &mut impl FnMut(Paired)) {
        let Some(mut process) = self.processes.remove(&id) else { return };
        self.unpaired.completions += process.early.len() as u64;
        let mut keys: Vec<_> = process.queues.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            if let Some(queue) = process.queues.get_mut(&key) {
                self.waiting -= queue.waiting.len();
                give_up(id, key, queue, done);
            }
        }
    }
}

fn give_up(id: ProcessId, key: (PostedTo, u32), queue: &mut Queue, done: &mut impl FnMut(Paired)) {
    let object = queue.object;
    queue.waiting.drain(..).for_each(|waiting| done(waiting.paired(id, key, object, None)));
}

impl Waiting {
    fn paired(
        &self,
        id: ProcessId,
        (queue, qpn): (PostedTo, u32),
        object: u64,
        reaped: Option<Reaped>,
    ) -> Paired {
        let Self { number, wr, posted_ns, tid } = *self;
        Paired { id, queue, object, qpn, number, wr, posted_ns, tid, reaped }
    }
}

impl Process {
    /// Finds the request of a completion. False where it is not known.
    fn complete(
        &mut self,
        id: ProcessId,
        cqe: &Cqe,
        reaped: Reaped,
        waiting: &mut usize,
        done: &mut impl FnMut(Paired),
    ) -> bool {
        let Some((key, at)) = self.find(cqe) else { return false };
        let Some(queue) = self.queues.get_mut(&key) else { return false };
        let object = queue.object;
        // A shared receive is counted for the QP that used it.
        let shown = (key.0, if key.0 == PostedTo::SharedReceive { cqe.qpn.unwrap_or(0) } else { key.1 });
        let in_order = key.0 == PostedTo::Send;
        let mut kept = Vec::new();
        for (place, one) in queue.waiting.drain(..=at).enumerate() {
            if place == at {
                done(one.paired(id, shown, object, Some(reaped)));
            } else if in_order && !one.wr.signalled {
                let implied = Reaped { own: false, status: 0, bytes: None, ..reaped };
                done(one.paired(id, shown, object, Some(implied)));
            } else {
                kept.push(one);
                continue;
            }
            *waiting -= 1;
        }
        // A completion that another thread polled is told later.
        kept.into_iter().rev().for_each(|one| queue.waiting.push_front(one));
        true
    }

    fn find(&self, cqe: &Cqe) -> Option<((PostedTo, u32), usize)> {
        let kinds: &[PostedTo] = match cqe.receive {
            Some(false) => &[PostedTo::Send],
            Some(true) => &[PostedTo::Receive, PostedTo::SharedReceive],
            None => &[PostedTo::Send, PostedTo::Receive, PostedTo::SharedReceive],
        };
        kinds.iter().find_map(|kind| match (kind, cqe.qpn) {
            // The completion names the QP, not the queue that the receive came from.
            (PostedTo::SharedReceive, _) | (_, None) => {
                let mut all: Vec<_> = self.queues.iter().filter(|((queue, _), _)| queue == kind).collect();
                all.sort_unstable_by_key(|(key, _)| **key);
                all.into_iter().find_map(|(key, queue)| Some((*key, queue.place(*kind, cqe)?)))
            }
            (_, Some(qpn)) => {
                let key = (*kind, qpn);
                Some((key, self.queues.get(&key)?.place(*kind, cqe)?))
            }
        })
    }
}

impl Queue {
    fn place(&self, kind: PostedTo, cqe: &Cqe) -> Option<usize> {
        // A request that fails, or is flushed, completes whether it asked for that or not.
        let completes = |wr: &PostedWr| kind != PostedTo::Send || wr.signalled || cqe.status != 0;
        self.waiting.iter().take(REACH).position(|one| one.wr.wr_id == cqe.wr_id && completes(&one.wr))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: ProcessId = ProcessId { pid: 7, start_ns: 1 };

    fn posted(t_ns: u64, queue: PostedTo, object: u64, wrs: &[(u64, bool)]) -> Record {
        let wrs = wrs.iter().map(|(wr_id, signalled)| PostedWr {
            wr_id: *wr_id,
            signalled: *signalled,
            bytes: 8,
            ..PostedWr::default()
        });
        let wrs = wrs.collect();
        Record::Post(Post { t_ns, id: ID, tid: 1, queue, object, number: 17, wrs, ..Post::default() })
    }

    fn polled(t_ns: u64, cqes: &[Cqe]) -> Record {
        Record::Poll(Poll { t_ns, duration_ns: 1, id: ID, tid: 2, cq: 9, cqes: cqes.to_vec() })
    }

    fn cqe(wr_id: u64, receive: bool) -> Cqe {
        Cqe { wr_id, qpn: Some(17), receive: Some(receive), ..Cqe::default() }
    }

    /// Numbers and moments of what is done, -1 for what never was.
    fn run(records: &[Record]) -> (Vec<(u64, i64)>, Unpaired) {
        let (mut pairing, mut done) = (Pairing::default(), Vec::new());
        let mut note = |one: Paired| done.push((one.number, one.reaped.map_or(-1, |r| r.poll_ns as i64)));
        records.iter().for_each(|record| pairing.take(record, &mut note));
        let unpaired = pairing.unpaired();
        pairing.finish(&mut note);
        assert_eq!(pairing.waiting, 0);
        (done, unpaired)
    }

    #[test]
    fn requests_of_one_number_complete_oldest_first_and_silent_ones_with_the_next_that_speaks() {
        let records = [
            posted(1, PostedTo::Send, 5, &[(0, false), (0, true), (0, false), (0, true)]),
            polled(10, &[cqe(0, false)]),
            polled(20, &[cqe(0, false)]),
        ];
        assert_eq!(run(&records), (vec![(0, 10), (1, 10), (2, 20), (3, 20)], Unpaired::default()));
    }

    #[test]
    fn a_completion_told_before_its_post_or_before_an_earlier_one_finds_its_request() {
        let records = [
            polled(10, &[cqe(2, false)]),
            posted(1, PostedTo::Send, 5, &[(1, true), (2, true)]),
            polled(11, &[cqe(1, false)]),
        ];
        assert_eq!(run(&records), (vec![(1, 10), (0, 11)], Unpaired::default()));
    }

    #[test]
    fn after_an_error_every_request_completes_signalled_or_not() {
        let failed = |wr_id| Cqe { status: 5, receive: None, ..cqe(wr_id, false) };
        let records = [
            posted(1, PostedTo::Receive, 5, &[(1, false)]),
            posted(1, PostedTo::Send, 5, &[(1, false), (2, false)]),
            polled(10, &[failed(1), failed(2), failed(1)]),
        ];
        assert_eq!(run(&records), (vec![(0, 10), (1, 10), (0, 10)], Unpaired::default()));
    }

    #[test]
    fn receives_of_a_shared_queue_complete_in_any_order_for_the_qp_the_completion_names() {
        let records = [
            posted(1, PostedTo::SharedReceive, 5, &[(1, false), (2, false), (3, false)]),
            polled(10, &[Cqe { qpn: Some(99), ..cqe(3, true) }, Cqe { qpn: None, ..cqe(1, true) }]),
        ];
        assert_eq!(run(&records).0, [(2, 10), (0, 10), (1, -1)]);
    }

    #[test]
    fn a_number_used_again_and_a_gap_give_up_what_was_outstanding() {
        let records = [
            posted(1, PostedTo::Send, 5, &[(1, true)]),
            posted(2, PostedTo::Send, 6, &[(2, true), (3, true)]),
            Record::Gap(Gap { t_ns: 3, id: ID, entries: 4 }),
            polled(10, &[cqe(2, false)]),
        ];
        let (done, unpaired) = run(&records);
        assert_eq!(done, [(0, -1), (0, -1), (1, -1)]);
        assert_eq!(unpaired, Unpaired { completions: 1, requests: 2 });
    }

    proptest! {
        /// Whatever is posted, signalled and polled in batches: all is paired with the completion it really had.
        #[test]
        fn what_completes_in_order_is_paired_as_it_was(
            calls in prop::collection::vec((1..6_usize, 1..4_usize, 0..3_u64), 1..60),
            polls in prop::collection::vec(1..9_usize, 1..200),
        ) {
            let (mut records, mut outstanding, mut truth) = (Vec::new(), VecDeque::new(), Vec::new());
            let (mut number, mut t_ns) = (0, 0);
            let mut polls = polls.into_iter().cycle();
            for (count, every, wr_id) in calls {
                t_ns += 1;
                let wrs: Vec<_> = (0..count).map(|i| (wr_id, i % every == 0 || i + 1 == count)).collect();
                records.push(posted(t_ns, PostedTo::Send, 5, &wrs));
                outstanding.extend(wrs);
                for _ in 0..polls.next().unwrap_or(1) % 3 {
                    t_ns += 1;
                    let mut cqes = Vec::new();
                    for _ in 0..polls.next().unwrap_or(1) {
                        while let Some((wr_id, signalled)) = outstanding.pop_front() {
                            truth.push((number, t_ns as i64));
                            number += 1;
                            if signalled {
                                cqes.push(cqe(wr_id, false));
                                break;
                            }
                        }
                    }
                    records.push(polled(t_ns, &cqes));
                }
            }
            truth.extend((0..outstanding.len() as u64).map(|i| (number + i, -1)));
            prop_assert_eq!(run(&records), (truth, Unpaired::default()));
        }
    }
}
