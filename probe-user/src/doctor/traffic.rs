//! The posts and polls of one process, summed up once for all rules, and how far they can be trusted.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Deref;

use crate::model::{ProcessModel, Queue};
use crate::report::units;
use crate::sample::{Counting, Histogram, ObservedBy, Opcode, QueueCounts, QueueDetail, QueueKind};

use super::finding::Evidence;

/// A queue's counts. Two words, not the counts themselves: every rule walks over all queues.
pub enum Counts<'m> {
    /// As the model has them.
    Whole(&'m QueueCounts),
    /// Those within the window of interest.
    Window(Box<QueueCounts>),
}

impl Deref for Counts<'_> {
    type Target = QueueCounts;

    fn deref(&self) -> &QueueCounts {
        match self {
            Self::Whole(counts) => counts,
            Self::Window(counts) => counts,
        }
    }
}

/// A queue and its counts.
pub type Lane<'m> = (&'m Queue, Counts<'m>);

/// Posts and polls of a process.
pub struct Traffic<'m> {
    /// All queues together.
    pub all: Cow<'m, QueueCounts>,
    /// Queue by queue, those that ended included.
    pub queues: Vec<Lane<'m>>,
    /// The QPs among them that posted sends.
    sending: Vec<usize>,
    /// Their counts together, once a rule asks.
    sent: OnceCell<QueueCounts>,
    /// What the counts stand for.
    pub counting: Counting,
    /// Share of the calls that were looked at.
    pub share: f64,
}

impl<'m> Traffic<'m> {
    /// The traffic of a process; `None` where nobody looked.
    pub fn of(process: &'m ProcessModel) -> Option<Self> {
        let path = &process.data_path;
        if path.observed.by == ObservedBy::Nothing && path.queues().next().is_none() {
            return None;
        }
        let seen = |queue: &'m Queue| match queue.tally.seen() {
            Cow::Borrowed(counts) => Counts::Whole(counts),
            Cow::Owned(counts) => Counts::Window(Box::new(counts)),
        };
        let queues: Vec<Lane<'m>> = path.queues().map(|queue| (queue, seen(queue))).collect();
        let sends = |(_, (queue, counts)): &(usize, &Lane<'_>)| queue.kind == QueueKind::Qp && counts.wrs > 0;
        let sending = queues.iter().enumerate().filter(sends).map(|(place, _)| place).collect();
        Some(Self {
            all: path.totals.seen(),
            queues,
            sending,
            sent: OnceCell::new(),
            counting: path.observed.counting,
            share: path.observed.share,
        })
    }

    /// QPs that posted sends.
    pub fn senders(&self) -> impl Iterator<Item = &Lane<'m>> {
        self.sending.iter().filter_map(|place| self.queues.get(*place))
    }

    /// CQs that were polled.
    pub fn polled(&self) -> impl Iterator<Item = &Lane<'m>> {
        self.queues.iter().filter(|(queue, counts)| queue.kind == QueueKind::Cq && counts.polls > 0)
    }

    /// The QPs for which something holds, with the sum of their counts and their numbers as evidence.
    pub fn those(&self, holds: impl Fn(&Queue, &QueueCounts) -> bool) -> Option<Those> {
        let found: Vec<&Lane<'_>> = self.senders().filter(|(queue, counts)| holds(queue, counts)).collect();
        if found.is_empty() {
            return None;
        }
        let n = found.len() as u64;
        let qpns: Vec<u32> = found.iter().take(6).map(|(queue, _)| queue.number).collect();
        // What holds for one queue pair often holds for all, and thousands are not to be added up again for each rule.
        let sum = if found.len() == self.sending.len() {
            self.sent.get_or_init(|| sum_of(self.senders())).clone()
        } else {
            sum_of(found.iter().copied())
        };
        let mut text = format!("QPN {}", qpns.iter().map(u32::to_string).collect::<Vec<_>>().join(", "));
        if n > qpns.len() as u64 {
            text.push_str(&format!(" and {} more", units::count(n - qpns.len() as u64)));
        }
        Some(Those { n, sum, which: Evidence { text, qpns } })
    }

    /// Whether the process posted so much, and this queue pair a share of it worth looking at.
    pub fn enough(&self, counts: &QueueCounts, least: f64) -> bool {
        self.all.wrs as f64 >= least && counts.wrs as f64 * 100.0 >= least
    }

    /// Time from post to reap of the whole process; `None` where it is not known.
    pub fn post_to_reap(&self) -> Option<Histogram> {
        // Some sources keep it for the process alone, some for each queue pair.
        detail(&self.all).and_then(QueueDetail::post_to_reap).or_else(|| {
            let mut sum = Histogram::default();
            let of_queues = self.senders().filter_map(|(_, counts)| detail(counts)?.post_to_reap());
            of_queues.for_each(|one| sum.merge(&one));
            (sum.total() > 0).then_some(sum)
        })
    }

    /// Whether counts over time mean something: where only ratios were sampled they do not.
    pub fn has_rates(&self) -> bool {
        self.counting != Counting::Ratios
    }

    /// Whether every call was looked at.
    pub fn is_whole(&self) -> bool {
        self.counting == Counting::Every
    }

    /// Whether none of these opcodes was posted by the whole process, as far as its sums tell: what rules for many queue
    /// pairs at once.
    pub fn lacks(&self, opcodes: &[Opcode]) -> bool {
        !self.all.opcodes.is_empty() && of_opcodes(&self.all, opcodes) == 0
    }

    /// What is to be said of sampled counts.
    pub fn caveat(&self) -> Option<Evidence> {
        let text = match self.counting {
            Counting::Every => return None,
            Counting::Ratios => format!(
                "sampled: {} of the calls were looked at, only their ratios are known",
                units::percent(self.share)
            ),
            _ => format!(
                "sampled: {} of the calls were looked at, counts are estimates",
                units::percent(self.share)
            ),
        };
        Some(Evidence { text, qpns: Vec::new() })
    }
}

fn sum_of<'a, 'm: 'a>(lanes: impl Iterator<Item = &'a Lane<'m>>) -> QueueCounts {
    let mut sum = QueueCounts::default();
    lanes.for_each(|(_, counts)| sum.add(counts));
    sum
}

/// Some QPs of a process.
pub struct Those {
    /// How many.
    pub n: u64,
    /// Their counts together.
    pub sum: QueueCounts,
    /// Their numbers.
    pub which: Evidence,
}

/// `part` of `whole`, 0–1; 0 of nothing.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// What only some sources know.
pub fn detail(counts: &QueueCounts) -> Option<&QueueDetail> {
    counts.detail.as_deref()
}

/// Work requests of these opcodes.
pub fn of_opcodes(counts: &QueueCounts, opcodes: &[Opcode]) -> u64 {
    opcodes.iter().filter_map(|opcode| counts.opcodes.get(opcode)).fold(0, |sum, n| sum.saturating_add(*n))
}

/// READ.
pub const READS: [Opcode; 1] = [Opcode::RdmaRead];
/// WRITE, with and without immediate.
pub const WRITES: [Opcode; 2] = [Opcode::RdmaWrite, Opcode::RdmaWriteWithImm];
/// Atomics.
pub const ATOMICS: [Opcode; 2] = [Opcode::AtomicCmpAndSwp, Opcode::AtomicFetchAndAdd];

/// Bytes of a work request on average.
pub fn mean_bytes(counts: &QueueCounts) -> f64 {
    counts.bytes as f64 / counts.wrs.max(1) as f64
}

/// Work requests a call posted, on average.
pub fn per_call(counts: &QueueCounts) -> f64 {
    counts.wrs as f64 / counts.post_calls.saturating_sub(counts.post_failed).max(1) as f64
}

/// Requests of one queue pair under way at the same time from where on they are a pipeline.
pub const MANY_UNDER_WAY: u64 = 8;

/// Whether several requests were under way at the same time, so that there is something to gather. Told by the most
/// outstanding, where a source knows it; else by polls that found several completions, or calls that posted several.
pub fn is_pipelined(counts: &QueueCounts, polled: &QueueCounts) -> bool {
    let outstanding = detail(counts).and_then(|d| d.most_outstanding);
    let most = detail(polled).and_then(|d| d.most_cqes_per_poll);
    let found = polled.polls.saturating_sub(polled.empty_polls);
    outstanding.is_some_and(|n| n >= MANY_UNDER_WAY)
        || (outstanding.is_none()
            && (per_call(counts) >= 2.0
                || most.is_some_and(|n| n >= 8)
                || share(polled.cqes, found) >= 3.0
                || (counts.signalled > 0 && share(counts.wrs, counts.signalled) >= 4.0)))
}

/// Empty polls beyond one for each call to post, per work request. A program that looks once after each post finds
/// nothing half of the time and loses nothing; one that looks again and again waits for the device.
pub fn spins_per_wr(all: &QueueCounts) -> f64 {
    all.empty_polls.saturating_sub(all.post_calls) as f64 / all.wrs.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_between_posts_are_no_waiting_and_polls_in_a_row_are() {
        let counts = |posts, empty| QueueCounts {
            wrs: 1000,
            post_calls: posts,
            empty_polls: empty,
            ..QueueCounts::default()
        };
        assert_eq!(spins_per_wr(&counts(1000, 1000)), 0.0);
        assert_eq!(spins_per_wr(&counts(100, 2100)), 2.0);
        assert_eq!(spins_per_wr(&QueueCounts::default()), 0.0);
    }

    #[test]
    fn requests_one_at_a_time_are_not_a_pipeline() {
        let one = QueueCounts { wrs: 1000, post_calls: 1000, signalled: 1000, ..QueueCounts::default() };
        let polls = QueueCounts { polls: 5000, empty_polls: 4000, cqes: 1000, ..QueueCounts::default() };
        assert!(!is_pipelined(&one, &polls));
        let several = QueueCounts { cqes: 4000, ..polls.clone() };
        assert!(is_pipelined(&one, &several));
        let known = QueueDetail { most_outstanding: Some(1), ..QueueDetail::default() };
        let one = QueueCounts { detail: Some(Box::new(known)), ..one };
        assert!(!is_pipelined(&one, &several));
    }

    #[test]
    fn shares_of_nothing_are_nothing() {
        assert_eq!((share(5, 0), share(1, 4)), (0.0, 0.25));
        assert_eq!(mean_bytes(&QueueCounts::default()), 0.0);
        assert_eq!(per_call(&QueueCounts { post_failed: 3, ..QueueCounts::default() }), 0.0);
    }
}
