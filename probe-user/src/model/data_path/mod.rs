//! Posts and polls: per process and per queue, in all and over the last interval.
//!
//! Totals of a process come from its source, not from adding queues up: they hold what queues counted that came and
//! went between two samples. A queue is named by its `object`, so that a pointer or number used again is another queue.

mod counts;
mod tally;

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::sample::{self, Observed, ObservedBy, QueueKind};

use super::room::{Room, clipped};

pub use counts::size_class;
pub use tally::{QueueInterval, Tally};

/// Destroyed queues whose counts are kept, per process; the totals have all.
const GONE_KEPT: usize = 8192;

/// Sentences kept about what cannot be seen.
const UNSEEN_KEPT: usize = 16;

/// One queue, as its source counts it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queue {
    /// What it is.
    pub kind: QueueKind,
    /// Its name in the trace.
    pub object: u64,
    /// The process's own pointer.
    pub pointer: u64,
    /// QP number; kernel handle of a CQ or SRQ.
    pub number: u32,
    /// It was destroyed.
    pub gone: bool,
    /// How it is observed, where that differs from its process.
    pub observed: Option<Observed>,
    /// When the sample was taken before the first that tells of posted receives: until then there was none.
    pub no_receive_until_ns: Option<u64>,
    /// The interval, from sample to sample, in which the first completion with an error was taken.
    pub first_error_ns: Option<(u64, u64)>,
    /// What it counted.
    pub tally: Tally,
}

/// Posts and polls of one process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DataPath {
    /// How they are observed; `by` is `nothing` where no sample has told of them.
    pub observed: Observed,
    /// Calls that were seen and could not be counted.
    pub uncounted: u64,
    /// What cannot be seen, in sentences.
    pub unseen: Vec<String>,
    /// All queues together.
    pub totals: Tally,
    /// Destroyed queues whose counts were dropped; the totals have them.
    pub dropped: u64,
    queues: BTreeMap<(QueueKind, u64), Queue>,
    /// The youngest queue behind each pointer.
    at: HashMap<(QueueKind, u64), u64>,
    gone: VecDeque<(QueueKind, u64)>,
    uncounted_before: u64,
}

impl DataPath {
    /// Takes in what a sample tells; the interval runs from the sample before.
    pub(super) fn sampled(
        &mut self,
        path: &sample::DataPath,
        (from_ns, to_ns): (u64, u64),
        troubled: bool,
        room: &mut Room,
    ) {
        self.observed = bounded(&path.observed);
        self.uncounted = self.uncounted.max(path.uncounted);
        self.unseen = path.unseen.iter().take(UNSEEN_KEPT).map(|text| clipped(text)).collect();
        self.totals.sampled(&path.totals, from_ns, to_ns, troubled);
        for queue in path.queues.iter().filter(|queue| queue.queue != QueueKind::Unknown) {
            self.queue_sampled(queue, (from_ns, to_ns), troubled, room);
        }
    }

    fn queue_sampled(
        &mut self,
        told: &sample::QueueSample,
        (from_ns, to_ns): (u64, u64),
        troubled: bool,
        room: &mut Room,
    ) {
        let key = (told.queue, told.object);
        if !self.queues.contains_key(&key) && !room.take() {
            return;
        }
        let queue = self.queues.entry(key).or_default();
        let died = told.gone && !queue.gone;
        (queue.kind, queue.object) = key;
        (queue.pointer, queue.number, queue.gone) = (told.pointer, told.number, told.gone);
        queue.observed = told.observed.as_ref().map(bounded);
        if told.counts.recv_wrs > 0 {
            queue.no_receive_until_ns.get_or_insert(from_ns);
        }
        if told.counts.cqe_errors > 0 || told.counts.statuses.keys().any(|status| *status != 0) {
            queue.first_error_ns.get_or_insert((from_ns, to_ns));
        }
        queue.tally.sampled(&told.counts, from_ns, to_ns, troubled);
        let latest = self.at.entry((told.queue, told.pointer)).or_insert(told.object);
        *latest = (*latest).max(told.object);
        if died {
            self.gone.push_back(key);
            if self.gone.len() > GONE_KEPT {
                self.forget_oldest(room);
            }
        }
    }

    fn forget_oldest(&mut self, room: &mut Room) {
        let Some(key) = self.gone.pop_front() else { return };
        self.dropped += 1;
        if let Some(queue) = self.queues.remove(&key) {
            room.give(1);
            if self.at.get(&(queue.kind, queue.pointer)) == Some(&queue.object) {
                self.at.remove(&(queue.kind, queue.pointer));
            }
        }
    }

    /// True when a source told of posts or polls.
    pub fn is_observed(&self) -> bool {
        self.observed.by != ObservedBy::Nothing
    }

    /// All queues told of and still kept, by kind and age.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.queues.values()
    }

    /// The youngest queue behind a pointer of the process.
    pub fn at(&self, kind: QueueKind, pointer: u64) -> Option<&Queue> {
        self.queues.get(&(kind, *self.at.get(&(kind, pointer))?))
    }

    /// How a queue is observed.
    pub fn observed_of<'a>(&'a self, queue: &'a Queue) -> &'a Observed {
        queue.observed.as_ref().unwrap_or(&self.observed)
    }

    /// Calls that could not be counted, within the window of interest.
    pub fn uncounted(&self) -> u64 {
        self.uncounted.saturating_sub(self.uncounted_before)
    }

    /// Begins the window of interest: queues stay, counts begin at nothing, and what was destroyed before is forgotten.
    pub(super) fn start_window(&mut self, room: &mut Room) {
        while !self.gone.is_empty() {
            self.forget_oldest(room);
        }
        self.dropped = 0;
        self.uncounted_before = self.uncounted;
        self.totals.start_window();
        self.queues.values_mut().for_each(|queue| queue.tally.start_window());
    }

    /// The process's address space is gone (exec): so are its queues. What they counted stays in the totals.
    pub(super) fn all_gone(&mut self) {
        self.at.clear();
        for (key, queue) in &mut self.queues {
            if !std::mem::replace(&mut queue.gone, true) {
                self.gone.push_back(*key);
            }
        }
    }

    /// Queues remembered.
    pub(super) fn remembered(&self) -> usize {
        self.queues.len()
    }
}

fn bounded(observed: &Observed) -> Observed {
    Observed { why: clipped(&observed.why), ..observed.clone() }
}
