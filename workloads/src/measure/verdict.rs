//! From a ratio to words.

use super::sample::Sample;
use super::stats::Interval;
use crate::table::time;
use serde::{Deserialize, Serialize};

/// What an optimisation is meant to improve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Operations per second.
    Rate,
    /// Median latency.
    Latency,
    /// CPU time of the measuring thread per operation.
    Cpu,
}

impl Metric {
    /// How many times better `optimised` is: above 1 is an improvement. Not finite when a run did nothing.
    pub fn improvement(self, baseline: &Sample, optimised: &Sample) -> f64 {
        match self {
            Metric::Rate => optimised.rate() / baseline.rate(),
            Metric::Latency => baseline.latency.quantile(0.5) as f64 / optimised.latency.quantile(0.5) as f64,
            Metric::Cpu => baseline.cpu_per_op() / optimised.cpu_per_op(),
        }
    }

    /// What is compared, for table heads.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Rate => "rate",
            Metric::Latency => "median latency",
            Metric::Cpu => "CPU per operation",
        }
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Metric::Rate | Metric::Latency => ("faster", "slower"),
            Metric::Cpu => ("cheaper", "dearer"),
        }
    }
}

/// Which way a measured ratio points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The optimised variant is better, beyond the interval.
    Better,
    /// The interval contains no effect anyone could act on.
    NoDifference,
    /// The optimised variant is worse, beyond the interval.
    Worse,
    /// The interval is so wide that it contains both no effect and effects that matter.
    Undecided,
}

/// An effect smaller than this is noise to a user whatever its significance.
const NEGLIGIBLE: f64 = 0.02;

/// An interval that reaches further than this from 1, either way, leaves open whether there is an effect.
const DECISIVE: f64 = 1.25;

/// From how many times on latencies are told themselves, beside their ratio.
const FAR_APART: f64 = 10.0;

/// A ratio that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was compared.
    pub metric: Metric,
    /// Improvement with its interval.
    pub ratio: Interval,
    /// Which way it points.
    pub direction: Direction,
    /// Median latency of baseline and optimised, ns, where that is what was compared.
    pub latency_ns: Option<[u64; 2]>,
}

impl Measured {
    /// Judges a ratio.
    pub fn judge(metric: Metric, ratio: Interval) -> Measured {
        let crosses = ratio.low <= 1.0 && ratio.high >= 1.0;
        let tiny = ratio.low > 1.0 - NEGLIGIBLE && ratio.high < 1.0 + NEGLIGIBLE;
        let wide = ratio.low < 1.0 / DECISIVE || ratio.high > DECISIVE;
        let direction = if crosses && wide {
            Direction::Undecided
        } else if crosses || tiny {
            Direction::NoDifference
        } else if ratio.median > 1.0 {
            Direction::Better
        } else {
            Direction::Worse
        };
        Measured { metric, ratio, direction, latency_ns: None }
    }

    /// Adds the medians behind a ratio of latencies.
    pub fn with_latencies(mut self, baseline: Option<u64>, optimised: Option<u64>) -> Measured {
        if self.metric == Metric::Latency {
            self.latency_ns = baseline.zip(optimised).map(|(baseline, optimised)| [baseline, optimised]);
        }
        self
    }

    /// The latencies themselves where one is many times the other: such a ratio says little, it hangs on the small one.
    fn apart(&self) -> String {
        match self.latency_ns {
            Some([from, to]) if !(1.0 / FAR_APART..=FAR_APART).contains(&self.ratio.median) => {
                format!(": {} to {}", time(from as f64), time(to as f64))
            }
            _ => String::new(),
        }
    }

    /// The verdict in words, such as `faster by 2.9× [2.7, 3.1]`.
    pub fn text(&self) -> String {
        let (better, worse) = self.metric.words();
        let Interval { median, low, high } = self.ratio;
        match self.direction {
            Direction::Better => {
                format!("{better} by {}× [{}, {}]{}", figure(median), figure(low), figure(high), self.apart())
            }
            Direction::Worse => format!(
                "{worse} by {}× [{}, {}]{}",
                figure(1.0 / median),
                figure(1.0 / high),
                figure(1.0 / low),
                self.apart()
            ),
            Direction::Undecided => format!(
                "undecided ({}× [{}, {}]): too noisy here, give it longer with --seconds",
                figure(median),
                figure(low),
                figure(high)
            ),
            Direction::NoDifference => {
                format!("no difference ({}× [{}, {}])", figure(median), figure(low), figure(high))
            }
        }
    }
}

/// Two significant digits after the point below 10, one below 100, none above.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(low: f64, median: f64, high: f64) -> Measured {
        Measured::judge(Metric::Rate, Interval { median, low, high })
    }

    #[test]
    fn a_clear_gain_is_faster_with_its_interval() {
        assert_eq!(verdict(2.7, 2.9, 3.1).text(), "faster by 2.90× [2.70, 3.10]");
    }

    #[test]
    fn a_loss_is_told_as_how_many_times_slower() {
        let slower = verdict(0.4, 0.5, 0.625);
        assert_eq!(slower.direction, Direction::Worse);
        assert_eq!(slower.text(), "slower by 2.00× [1.60, 2.50]");
    }

    #[test]
    fn a_narrow_interval_around_one_is_no_difference_and_a_wide_one_decides_nothing() {
        assert_eq!(verdict(0.9, 1.05, 1.1).direction, Direction::NoDifference);
        assert_eq!(verdict(0.9, 1.6, 2.4).direction, Direction::Undecided);
        assert_eq!(verdict(0.3, 0.9, 1.1).direction, Direction::Undecided);
        assert!(verdict(0.9, 1.6, 2.4).text().contains("--seconds"));
    }

    #[test]
    fn a_significant_but_tiny_effect_is_no_difference() {
        assert_eq!(verdict(1.005, 1.01, 1.015).direction, Direction::NoDifference);
        assert_eq!(verdict(1.005, 1.03, 1.05).direction, Direction::Better);
    }

    #[test]
    fn latencies_far_apart_are_told_themselves() {
        let wait = Measured::judge(Metric::Latency, Interval { median: 0.0005, low: 0.0004, high: 0.000625 });
        assert_eq!(
            wait.with_latencies(Some(2_000), Some(4_000_000)).text(),
            "slower by 2000× [1600, 2500]: 2.0 µs to 4.00 ms"
        );
        let near = Measured::judge(Metric::Latency, Interval { median: 2.0, low: 1.9, high: 2.1 });
        assert_eq!(near.with_latencies(Some(4_000), Some(2_000)).text(), "faster by 2.00× [1.90, 2.10]");
    }

    #[test]
    fn lower_latency_and_cheaper_cpu_are_improvements() {
        let mut slow = Sample { ops: 10, cpu: std::time::Duration::from_nanos(900), ..Sample::default() };
        let mut fast = Sample { ops: 10, cpu: std::time::Duration::from_nanos(300), ..Sample::default() };
        slow.latency.record(2000);
        fast.latency.record(1000);
        assert!((Metric::Latency.improvement(&slow, &fast) - 2.0).abs() < 0.05);
        assert!((Metric::Cpu.improvement(&slow, &fast) - 3.0).abs() < 1e-9);
        assert!(!Metric::Rate.improvement(&Sample::default(), &Sample::default()).is_finite());
    }
}
