//! The posts and polls of one process, summed up once for all rules, and how far they can be trusted.

use std::borrow::Cow;

use crate::model::{ProcessModel, Queue};
use crate::report::units;
use crate::sample::{Counting, ObservedBy, Opcode, QueueCounts, QueueDetail, QueueKind};

use super::finding::Evidence;

/// A queue and its counts.
pub type Lane<'m> = (&'m Queue, Cow<'m, QueueCounts>);

/// Posts and polls of a process.
pub struct Traffic<'m> {
    /// All queues together.
    pub all: QueueCounts,
    /// Queue by queue, those that ended included.
    pub queues: Vec<Lane<'m>>,
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
        Some(Self {
            all: path.totals.counts(),
            queues: path.queues().map(|queue| (queue, queue.tally.seen())).collect(),
            counting: path.observed.counting,
            share: path.observed.share,
        })
    }

    /// QPs that posted sends.
    pub fn senders(&self) -> impl Iterator<Item = &Lane<'m>> {
        self.queues.iter().filter(|(queue, counts)| queue.kind == QueueKind::Qp && counts.wrs > 0)
    }

    /// CQs that were polled.
    pub fn polled(&self) -> impl Iterator<Item = &Lane<'m>> {
        self.queues.iter().filter(|(queue, counts)| queue.kind == QueueKind::Cq && counts.polls > 0)
    }

    /// The QPs for which something holds, with the sum of their counts and their numbers as evidence.
    pub fn those(&self, holds: impl Fn(&Queue, &QueueCounts) -> bool) -> Option<Those> {
        let (mut sum, mut n, mut qpns) = (QueueCounts::default(), 0_u64, Vec::new());
        for (queue, counts) in self.senders().filter(|(queue, counts)| holds(queue, counts)) {
            sum.add(counts);
            n += 1;
            if qpns.len() < 6 {
                qpns.push(queue.number);
            }
        }
        if n == 0 {
            return None;
        }
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

    /// Whether counts over time mean something: where only ratios were sampled they do not.
    pub fn has_rates(&self) -> bool {
        self.counting != Counting::Ratios
    }

    /// Whether every call was looked at.
    pub fn is_whole(&self) -> bool {
        self.counting == Counting::Every
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

/// Whether several requests were under way at the same time, so that there is something to gather. Told by the most
/// outstanding, where a source knows it; else by polls that found several completions, or calls that posted several.
pub fn is_pipelined(counts: &QueueCounts, polled: &QueueCounts) -> bool {
    let outstanding = detail(counts).and_then(|d| d.most_outstanding);
    let most = detail(polled).and_then(|d| d.most_cqes_per_poll);
    let found = polled.polls.saturating_sub(polled.empty_polls);
    outstanding.is_some_and(|n| n >= 8)
        || (outstanding.is_none()
            && (per_call(counts) >= 2.0
                || most.is_some_and(|n| n >= 8)
                || share(polled.cqes, found) >= 3.0
                || (counts.signalled > 0 && share(counts.wrs, counts.signalled) >= 4.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
