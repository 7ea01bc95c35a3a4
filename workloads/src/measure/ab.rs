//! Interleaved comparison of two variants.

use super::sample::{Sample, Summary};
use super::stats::{Interval, median_interval};
use super::verdict::Metric;
use crate::interrupt;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long and how often to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Length of one timed run.
    pub run: Duration,
    /// Length of the untimed run before the first timed one, per variant.
    pub warm_up: Duration,
    /// Number of pairs. Below six the interval is the extremes and less than 95 % sure.
    pub pairs: usize,
}

impl Plan {
    /// Fits a comparison of two variants into `budget`, one eighth of it for warming up.
    pub fn within(budget: Duration, pairs: usize) -> Plan {
        let run = budget * 7 / 8 / u32::try_from(2 * pairs.max(1)).unwrap_or(u32::MAX);
        Plan { run, warm_up: budget / 16, pairs }
    }
}

/// Both variants' runs and the ratio of each pair.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Baseline over all runs.
    pub baseline: Summary,
    /// Optimised over all runs.
    pub optimised: Summary,
    /// Improvement, above 1 when the optimised variant is better in the metric.
    pub ratio: Interval,
}

/// One of the two variants of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The slow way.
    Baseline,
    /// The fast way.
    Optimised,
}

/// Runs two variants in turn. Each pair runs back to back, in alternating order, so that drift of the machine (clock
/// frequency, neighbours) falls on both, and the ratio is taken within the pair.
pub fn compare(
    plan: Plan,
    metric: Metric,
    mut run: impl FnMut(Side, Duration) -> Result<Sample>,
) -> Result<Compared> {
    run(Side::Baseline, plan.warm_up)?;
    run(Side::Optimised, plan.warm_up)?;
    let (mut slow, mut fast, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..plan.pairs.max(1) {
        interrupt::check()?;
        let (a, b) = if pair % 2 == 0 {
            let a = run(Side::Baseline, plan.run)?;
            (a, run(Side::Optimised, plan.run)?)
        } else {
            let b = run(Side::Optimised, plan.run)?;
            (run(Side::Baseline, plan.run)?, b)
        };
        ratios.push(metric.improvement(&a, &b));
        slow.push(a);
        fast.push(b);
    }
    let Some(ratio) = median_interval(&ratios) else {
        bail!("no run completed an operation; make the runs longer with --seconds");
    };
    Ok(Compared { baseline: Summary::of(&slow), optimised: Summary::of(&fast), ratio })
}

/// Runs one variant by itself: a warm-up and `plan.pairs` timed runs.
pub fn measure(plan: Plan, mut variant: impl FnMut(Duration) -> Result<Sample>) -> Result<Summary> {
    variant(plan.warm_up)?;
    let mut samples = Vec::new();
    for _ in 0..plan.pairs.max(1) {
        interrupt::check()?;
        samples.push(variant(plan.run)?);
    }
    Ok(Summary::of(&samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ops: u64) -> Sample {
        Sample { ops, elapsed: Duration::from_secs(1), ..Sample::default() }
    }

    #[test]
    fn runs_alternate_which_variant_goes_first() {
        let mut order = String::new();
        let plan = Plan { run: Duration::from_millis(1), warm_up: Duration::ZERO, pairs: 3 };
        let compared = compare(plan, Metric::Rate, |side, _| {
            let (name, ops) = if side == Side::Baseline { ('a', 100) } else { ('b', 300) };
            order.push(name);
            Ok(sample(ops))
        })
        .unwrap();
        // The first two letters are the warm-up.
        assert_eq!(order, "ababbaab");
        assert_eq!(compared.ratio, Interval { median: 3.0, low: 3.0, high: 3.0 });
        assert_eq!(compared.baseline.runs, 3);
    }

    #[test]
    fn a_drifting_machine_does_not_move_the_ratio() {
        let mut tick = 0u64;
        let plan = Plan { run: Duration::ZERO, warm_up: Duration::ZERO, pairs: 9 };
        let compared = compare(plan, Metric::Rate, |side, _| {
            tick += 1;
            let base = if side == Side::Baseline { 1_000_000 } else { 2_000_000 };
            Ok(sample(base * 1000 / (1000 + 30 * tick)))
        })
        .unwrap();
        assert!((compared.ratio.median - 2.0).abs() < 0.06, "{:?}", compared.ratio);
    }

    #[test]
    fn runs_without_operations_are_an_error_not_a_ratio() {
        let plan = Plan { run: Duration::ZERO, warm_up: Duration::ZERO, pairs: 2 };
        assert!(compare(plan, Metric::Rate, |_, _| Ok(sample(0))).is_err());
    }

    #[test]
    fn a_plan_fits_its_budget() {
        let budget = Duration::from_secs(8);
        let plan = Plan::within(budget, 9);
        assert!(plan.run * 18 + plan.warm_up * 2 <= budget);
        assert!(Plan::within(budget, 0).run > Duration::ZERO);
    }
}
