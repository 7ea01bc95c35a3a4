//! Cumulative counts, what they were when the window of interest began, and what the last interval added.

use std::borrow::Cow;

use crate::sample::{QueueCounts, QueueDetail};

use super::super::trouble::Troubled;

/// What changed from one sample to the next.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QueueInterval {
    /// Moment of the earlier sample.
    pub from_ns: u64,
    /// Moment of the later sample.
    pub to_ns: u64,
    /// Counts of this interval alone.
    pub counts: QueueCounts,
}

impl QueueInterval {
    /// How many of these a second: `interval.per_second(|c| c.wrs)`.
    pub fn per_second(&self, of: impl Fn(&QueueCounts) -> u64) -> f64 {
        match self.to_ns.saturating_sub(self.from_ns) {
            0 => 0.0,
            ns => of(&self.counts) as f64 * 1e9 / ns as f64,
        }
    }
}

/// The counts of one queue or process over time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tally {
    now: QueueCounts,
    before: Option<Box<QueueCounts>>,
    interval: Option<Box<QueueInterval>>,
    troubled: Option<Box<Troubled>>,
}

impl Tally {
    /// Takes over the cumulative counts of a sample. Parts of one sample may carry the same counts twice.
    pub(super) fn sampled(&mut self, counts: &QueueCounts, from_ns: u64, to_ns: u64, troubled: bool) {
        let same_moment = self.interval.as_ref().is_some_and(|interval| interval.to_ns == to_ns);
        if same_moment && self.now == *counts {
            return;
        }
        let mut added = counts.since(&self.now);
        if troubled && added.wrs > 0 {
            let sum = self.troubled.get_or_insert_default();
            sum.wrs = sum.wrs.saturating_add(added.wrs);
            let latency = added.detail.as_deref().and_then(QueueDetail::post_to_reap);
            latency.iter().for_each(|latency| sum.latency_ns.merge(latency));
        }
        if let Some(earlier) = self.interval.as_ref().filter(|_| same_moment) {
            added.add(&earlier.counts);
        }
        self.interval = Some(Box::new(QueueInterval { from_ns, to_ns, counts: added }));
        self.now = counts.clone();
    }

    /// Begins the window of interest here.
    pub(super) fn start_window(&mut self) {
        self.before = Some(Box::new(self.now.clone()));
        self.interval = None;
        self.troubled = None;
    }

    /// What samples added in which counters of loss or congestion grew; `None` where there was none.
    pub fn troubled(&self) -> Option<&Troubled> {
        self.troubled.as_deref()
    }

    /// Counts since the observation (or the window of interest) began.
    pub fn counts(&self) -> QueueCounts {
        self.before.as_ref().map_or_else(|| self.now.clone(), |before| self.now.since(before))
    }

    /// The same without a copy where there is no window.
    pub fn seen(&self) -> Cow<'_, QueueCounts> {
        match &self.before {
            None => Cow::Borrowed(&self.now),
            Some(before) => Cow::Owned(self.now.since(before)),
        }
    }

    /// One of these counts, without copying the others. Not for maxima, of which no difference is known.
    pub fn count(&self, of: impl Fn(&QueueCounts) -> u64) -> u64 {
        of(&self.now).saturating_sub(self.before.as_deref().map_or(0, of))
    }

    /// Counts since the observation began, whatever the window of interest.
    pub fn whole(&self) -> &QueueCounts {
        &self.now
    }

    /// What the interval that ended at `now_ns` added; `None` when nothing changed in it.
    pub fn interval(&self, now_ns: u64) -> Option<&QueueInterval> {
        self.interval.as_deref().filter(|interval| interval.to_ns == now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrs(wrs: u64) -> QueueCounts {
        QueueCounts { wrs, ..QueueCounts::default() }
    }

    #[test]
    fn rates_are_of_the_last_interval_and_counts_of_the_window() {
        let mut tally = Tally::default();
        tally.sampled(&wrs(100), 0, 1_000_000_000, false);
        assert_eq!(tally.interval(1_000_000_000).unwrap().per_second(|c| c.wrs), 100.0);
        tally.start_window();
        tally.sampled(&wrs(150), 1_000_000_000, 1_500_000_000, false);
        assert_eq!((tally.counts().wrs, tally.interval(1_000_000_000)), (50, None));
        assert_eq!((tally.count(|c| c.wrs), tally.whole().wrs), (50, 150));
        assert_eq!(tally.interval(1_500_000_000).unwrap().per_second(|c| c.wrs), 100.0);
    }

    #[test]
    fn the_second_half_of_a_sample_does_not_undo_the_interval() {
        let mut tally = Tally::default();
        tally.sampled(&wrs(100), 0, 10, false);
        tally.sampled(&wrs(100), 0, 10, false);
        assert_eq!(tally.interval(10).unwrap().counts.wrs, 100);
        tally.sampled(&wrs(130), 0, 10, false);
        assert_eq!((tally.interval(10).unwrap().counts.wrs, tally.counts().wrs), (130, 130));
    }

    #[test]
    fn what_troubled_samples_add_is_summed_up_apart() {
        let mut tally = Tally::default();
        tally.sampled(&wrs(100), 0, 10, false);
        assert_eq!(tally.troubled(), None);
        tally.sampled(&wrs(130), 10, 20, true);
        tally.sampled(&wrs(150), 20, 30, false);
        tally.sampled(&wrs(155), 30, 40, true);
        assert_eq!(tally.troubled().map(|t| t.wrs), Some(35));
        tally.start_window();
        assert_eq!(tally.troubled(), None);
    }

    #[test]
    fn an_interval_without_length_has_no_rate() {
        assert_eq!(QueueInterval { counts: wrs(5), ..QueueInterval::default() }.per_second(|c| c.wrs), 0.0);
    }
}
