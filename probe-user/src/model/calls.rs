//! One kind of call in one process: how often, how long, with which failures.
//!
//! Two sources meet here. Samples carry counts and histograms that were kept in the kernel: exact, whatever happened to
//! the ring buffer. Events describe single calls, and some may be missing. Whichever has seen more returned calls is
//! believed: after a crash that may be the events, which reach further than the last sample.

use std::collections::BTreeMap;

use crate::sample::{CallCount, Event, Histogram};

/// Different errnos kept apart; a real program meets a handful.
const MAX_ERRNOS: usize = 64;

/// What is known of one kind of call in one process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallStats {
    sampled: Tally,
    /// Sampled values when the window of interest began; subtracted from what is shown.
    before: Tally,
    seen: Tally,
    /// Events before the window of interest; `None` while there is no window.
    seen_before: Option<u64>,
    longest_seen_ns: u64,
    /// Failed calls by errno, from events; -1 where the errno could not be seen.
    pub errnos: BTreeMap<i32, u64>,
    /// What changed between the last two samples in which this call changed.
    pub interval: Interval,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Tally {
    count: CallCount,
    latency: Histogram,
}

/// What changed from one sample to the next.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Interval {
    /// Moment of the earlier sample.
    pub from_ns: u64,
    /// Moment of the later sample.
    pub to_ns: u64,
    /// Counts of this interval alone.
    pub count: CallCount,
    /// Latencies of this interval alone, ns.
    pub latency: Histogram,
}

impl Interval {
    /// Calls entered per second.
    pub fn calls_per_second(&self) -> f64 {
        per_second(self.count.entered, self.to_ns.saturating_sub(self.from_ns))
    }

    /// Bytes per second of the calls that returned.
    pub fn bytes_per_second(&self) -> f64 {
        per_second(self.count.bytes, self.to_ns.saturating_sub(self.from_ns))
    }
}

fn per_second(n: u64, over_ns: u64) -> f64 {
    if over_ns == 0 { 0.0 } else { n as f64 * 1e9 / over_ns as f64 }
}

impl CallStats {
    /// Takes over the cumulative values of a sample; the interval runs from the sample before.
    pub(super) fn sampled(
        &mut self,
        count: &CallCount,
        latency: Option<&Histogram>,
        from_ns: u64,
        to_ns: u64,
    ) {
        self.interval = Interval {
            from_ns,
            to_ns,
            count: difference(count, &self.sampled.count),
            latency: latency.map(|h| h.since(&self.sampled.latency)).unwrap_or_default(),
        };
        self.sampled.count = *count;
        if let Some(latency) = latency {
            self.sampled.latency = latency.clone();
        }
    }

    /// Counts one event; `bytes` is what a successful call moved or registered.
    pub(super) fn seen(&mut self, event: &Event, bytes: u64) {
        let count = &mut self.seen.count;
        count.entered += 1;
        count.returned += 1;
        count.total_ns = count.total_ns.saturating_add(event.duration_ns);
        if event.errno == 0 {
            count.bytes = count.bytes.saturating_add(bytes);
        } else {
            count.failed += 1;
            if self.errnos.len() < MAX_ERRNOS || self.errnos.contains_key(&event.errno) {
                *self.errnos.entry(event.errno).or_default() += 1;
            }
        }
        self.seen.latency.record(event.duration_ns);
        self.longest_seen_ns = self.longest_seen_ns.max(event.duration_ns);
    }

    /// Begins the window of interest here: what came before no longer counts.
    pub(super) fn start_window(&mut self) {
        self.before = self.sampled.clone();
        self.seen_before = Some(self.seen_before.unwrap_or(0) + self.seen.count.returned);
        self.seen = Tally::default();
        self.longest_seen_ns = 0;
        self.errnos.clear();
    }

    /// Counts since the recording (or the window of interest) began.
    pub fn count(&self) -> CallCount {
        let sampled = difference(&self.sampled.count, &self.before.count);
        if self.within_window_complete() {
            self.seen.count
        } else if self.seen.count.returned > sampled.returned {
            CallCount { entered: sampled.entered.max(self.seen.count.entered), ..self.seen.count }
        } else {
            sampled
        }
    }

    /// Inside a window the events are the better witness as long as none is missing: samples begin and end a little
    /// before it.
    fn within_window_complete(&self) -> bool {
        self.seen_before
            .is_some_and(|before| before + self.seen.count.returned >= self.sampled.count.returned)
    }

    /// Calls that returned without failing.
    pub fn succeeded(&self) -> u64 {
        let count = self.count();
        count.returned.saturating_sub(count.failed)
    }

    /// Latencies of the returned calls, ns.
    pub fn latency(&self) -> Histogram {
        let sampled = self.sampled.latency.since(&self.before.latency);
        if self.within_window_complete() || self.seen.latency.total() > sampled.total() {
            self.seen.latency.clone()
        } else {
            sampled
        }
    }

    /// The longest call, ns: exact where its event was seen, else the upper bound of its bucket (at most 1/16 above).
    pub fn longest_ns(&self) -> Option<u64> {
        let (low, high) = self.latency().highest()?;
        Some(if (low..=high).contains(&self.longest_seen_ns) { self.longest_seen_ns } else { high })
    }

    /// Returned calls that left no event: what is derived from events lacks these.
    pub fn without_event(&self) -> u64 {
        self.count().returned.saturating_sub(self.seen.count.returned)
    }
}

fn difference(later: &CallCount, earlier: &CallCount) -> CallCount {
    CallCount {
        entered: later.entered.saturating_sub(earlier.entered),
        returned: later.returned.saturating_sub(earlier.returned),
        failed: later.failed.saturating_sub(earlier.failed),
        bytes: later.bytes.saturating_sub(earlier.bytes),
        total_ns: later.total_ns.saturating_sub(earlier.total_ns),
    }
}
