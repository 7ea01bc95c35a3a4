//! One timed run, and the summary of several.

use super::cpu::PerfCounts;
use super::stats::median;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Latencies in nanoseconds, with a relative error below 1 %.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

/// Longest latency that is told apart from longer ones.
const LONGEST: u64 = 60_000_000_000;

impl Default for Latency {
    fn default() -> Latency {
        // The bounds are constants that the constructor accepts; auto-resizing is the equivalent fall-back.
        Latency(
            Histogram::new_with_bounds(1, LONGEST, 2)
                .unwrap_or_else(|_| unreachable!("constant bounds are valid")),
        )
    }
}

impl Latency {
    /// Records one latency.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds.clamp(1, LONGEST));
    }

    /// Adds all of another's latencies.
    pub fn add(&mut self, other: &Latency) {
        // Fails only for values outside the bounds, which both share.
        let _ = self.0.add(&other.0);
    }

    /// Value at quantile `q` (0–1); 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        self.0.value_at_quantile(q)
    }

    /// Number of latencies recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Percentiles for reports; `None` when nothing was recorded.
    pub fn summary(&self) -> Option<LatencySummary> {
        (self.count() > 0).then(|| LatencySummary {
            p50: self.quantile(0.50),
            p90: self.quantile(0.90),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: self.0.max(),
            mean: self.0.mean(),
            count: self.count(),
        })
    }
}

/// Percentiles in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Median.
    pub p50: u64,
    /// Nine in ten are faster.
    pub p90: u64,
    /// 99 in a hundred are faster.
    pub p99: u64,
    /// 999 in a thousand are faster.
    pub p999: u64,
    /// Slowest.
    pub max: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Number of operations measured.
    pub count: u64,
}

/// What one timed run of a variant gave.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Operations completed.
    pub ops: u64,
    /// Wall-clock time they took.
    pub elapsed: Duration,
    /// Per-operation latency, in nanoseconds.
    pub latency: Latency,
    /// CPU time of the thread that posted and polled.
    pub cpu: Duration,
    /// CPU time of the whole process, helper threads of an emulated device included.
    pub process_cpu: Duration,
    /// Hardware counters of the measuring thread.
    pub counters: PerfCounts,
}

impl Sample {
    /// Operations per second; 0 for a run that did nothing.
    pub fn rate(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.ops as f64 / seconds } else { 0.0 }
    }

    /// CPU nanoseconds of the measuring thread per operation.
    pub fn cpu_per_op(&self) -> f64 {
        if self.ops == 0 { 0.0 } else { self.cpu.as_nanos() as f64 / self.ops as f64 }
    }
}

/// Several runs of one variant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Median over the runs, operations per second.
    pub ops_per_s: f64,
    /// Percentiles over all runs; absent where operations have no latency of their own.
    pub latency_ns: Option<LatencySummary>,
    /// CPU nanoseconds of the measuring thread per operation, median over the runs.
    pub cpu_ns_per_op: f64,
    /// CPU nanoseconds of the whole process per operation, median over the runs.
    pub process_cpu_ns_per_op: f64,
    /// Hardware counts per operation.
    pub per_op: PerfCounts,
    /// Operations in all runs.
    pub ops: u64,
    /// Number of runs.
    pub runs: usize,
}

impl Summary {
    /// Summarises runs of one variant.
    pub fn of(samples: &[Sample]) -> Summary {
        let mut latency = Latency::default();
        samples.iter().for_each(|sample| latency.add(&sample.latency));
        let ops: u64 = samples.iter().map(|sample| sample.ops).sum();
        let middle =
            |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0);
        let counters =
            samples.iter().map(|sample| sample.counters).reduce(PerfCounts::plus).unwrap_or_default();
        Summary {
            ops_per_s: middle(Sample::rate),
            latency_ns: latency.summary(),
            cpu_ns_per_op: middle(Sample::cpu_per_op),
            process_cpu_ns_per_op: middle(|sample| match sample.ops {
                0 => 0.0,
                ops => sample.process_cpu.as_nanos() as f64 / ops as f64,
            }),
            per_op: counters.per(ops as f64),
            ops,
            runs: samples.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_beyond_the_bounds_are_kept_at_the_bounds() {
        let mut latency = Latency::default();
        latency.record(0);
        latency.record(u64::MAX);
        assert_eq!(latency.count(), 2);
        assert!(latency.summary().unwrap().max >= LONGEST);
    }

    #[test]
    fn a_run_that_did_nothing_has_a_rate_of_zero() {
        assert_eq!(Sample::default().rate(), 0.0);
        assert_eq!(Sample::default().cpu_per_op(), 0.0);
        assert!(Summary::of(&[]).latency_ns.is_none());
    }

    #[test]
    fn percentiles_are_within_one_per_cent() {
        let mut latency = Latency::default();
        (1..=10_000).for_each(|value| latency.record(value));
        let summary = latency.summary().unwrap();
        assert!((summary.p50 as f64 / 5_000.0 - 1.0).abs() < 0.01);
        assert!((summary.p99 as f64 / 9_900.0 - 1.0).abs() < 0.01);
    }
}
