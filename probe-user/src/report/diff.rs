//! Two recordings compared, before and after a change: what got worse, what got better, and whether the difference is
//! more than chance.
//!
//! Processes are paired by command name, all of one name together. A quantile differs when the 99 % confidence
//! intervals of both sides do not overlap: the interval of a quantile follows from the ranks around it (binomial, no
//! assumption about the distribution), and each end is widened by what a histogram bucket may be off (1/32). Failures
//! and objects left behind differ as soon as their numbers do; counts of calls are told, but judged neither good nor bad.

mod data_path;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::{Model, ProcessModel};
use crate::sample::{Call, Histogram};

/// The schema named by every comparison this version prints.
pub const DIFF_SCHEMA: &str = "rdma-diff/1";

/// Standard deviations of a 99 % confidence interval.
const Z: f64 = 2.576;

/// How far a quantile may be off for the width of its bucket.
const RESOLUTION: f64 = 1.0 / 32.0;

/// Fewer calls than this say nothing about a quantile's spread.
const ENOUGH: u64 = 8;

/// How one side compares with the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The second recording is worse, by more than chance.
    Worse,
    /// The second recording is better, by more than chance.
    Better,
    /// It differs, in a way that is neither good nor bad by itself.
    Changed,
    /// Too few calls to tell.
    TooFew,
    /// No difference beyond chance.
    Same,
}

/// One figure on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Metric {
    /// Command name, empty for the recording as a whole.
    pub comm: String,
    /// Name of the figure, such as `registration.p99_ns`.
    pub name: String,
    /// First recording; `null` where there is no such figure.
    pub a: Option<u64>,
    /// Second recording.
    pub b: Option<u64>,
    /// Change relative to the first, 0.1 for 10 % more; `null` where the first is 0 or either is missing.
    pub change: Option<f64>,
    /// Confidence interval of the first, for quantiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a_interval: Option<(u64, u64)>,
    /// Confidence interval of the second, for quantiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b_interval: Option<(u64, u64)>,
    /// What it comes to.
    pub outcome: Outcome,
}

/// Two recordings compared.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Diff {
    /// Always `rdma-diff/1`.
    pub schema: String,
    /// What keeps the two from being comparable in full.
    pub notes: Vec<String>,
    /// Figures, worse ones first, then by size of the change.
    pub metrics: Vec<Metric>,
}

/// A group of calls under one name.
struct Section(&'static str, &'static [Call], Judged);

/// Whether longer is worse.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// A cost: longer is worse.
    Cost,
    /// A wait: its length is the peer's or the load's doing.
    Wait,
}

const SECTIONS: [Section; 11] = [
    Section("registration", &[Call::RegMr, Call::RegDmabufMr], Judged::Cost),
    Section("reregistration", &[Call::ReregMr], Judged::Cost),
    Section("deregistration", &[Call::DeregMr], Judged::Cost),
    Section("kernel_pin", &[Call::KernelPin], Judged::Cost),
    Section("qp_create", &[Call::CreateQp], Judged::Cost),
    Section("qp_destroy", &[Call::DestroyQp], Judged::Cost),
    Section("modify_qp", &[Call::ModifyQp], Judged::Cost),
    Section("cq_create", &[Call::CreateCq], Judged::Cost),
    Section("connect", &[Call::CmConnect], Judged::Cost),
    Section("accept", &[Call::CmAccept], Judged::Cost),
    Section("cq_event_wait", &[Call::GetCqEvent], Judged::Wait),
];

/// Compares recording `a` (before) with `b` (after).
pub fn diff(a: &Model, b: &Model) -> Diff {
    let mut notes = Vec::new();
    for (side, model) in [("first", a), ("second", b)] {
        let lost = model.lost();
        if lost != Default::default() {
            let n = lost.ring_events + lost.unpaired + lost.kernel_returns + lost.uncounted;
            notes.push(format!("the {side} recording missed {n} events or returns"));
        }
        if model.footer.is_none() {
            notes.push(format!("the {side} recording was cut off"));
        }
    }
    for (what, x, y) in
        [("host", &a.header.host, &b.header.host), ("kernel", &a.header.kernel, &b.header.kernel)]
    {
        if x != y {
            notes.push(format!("different {what}s: '{x}' and '{y}'"));
        }
    }
    let (groups_a, groups_b) = (by_comm(a), by_comm(b));
    let mut metrics = Vec::new();
    for comm in groups_a.keys().chain(groups_b.keys().filter(|comm| !groups_a.contains_key(*comm))) {
        match (groups_a.get(comm), groups_b.get(comm)) {
            (Some(x), Some(y)) => compare(comm, x, y, &mut metrics),
            (Some(_), None) => notes.push(format!("'{comm}' is only in the first recording")),
            _ => notes.push(format!("'{comm}' is only in the second recording")),
        }
    }
    metrics.sort_by(|x, y| {
        let size = |m: &Metric| m.change.map_or(f64::INFINITY, f64::abs);
        x.outcome.cmp(&y.outcome).then(size(y).total_cmp(&size(x)))
    });
    Diff { schema: DIFF_SCHEMA.to_owned(), notes, metrics }
}

type Group<'a> = Vec<&'a ProcessModel>;

fn by_comm(model: &Model) -> BTreeMap<&str, Group<'_>> {
    let mut groups: BTreeMap<&str, Group<'_>> = BTreeMap::new();
    for process in model.processes.values().filter(|p| p.used_rdma()) {
        groups.entry(&process.info.comm).or_default().push(process);
    }
    groups
}

fn compare(comm: &str, a: &Group<'_>, b: &Group<'_>, metrics: &mut Vec<Metric>) {
    for Section(section, calls, judged) in &SECTIONS {
        let sum = |group: &Group<'_>, of: fn(&crate::sample::CallCount) -> u64| {
            group.iter().map(|p| of(&p.counts(calls))).fold(0, u64::saturating_add)
        };
        let (count_a, count_b) = (sum(a, |c| c.entered), sum(b, |c| c.entered));
        if count_a == 0 && count_b == 0 {
            continue;
        }
        metrics.push(plain(comm, format!("{section}.count"), count_a, count_b, false));
        metrics.push(plain(
            comm,
            format!("{section}.failed"),
            sum(a, |c| c.failed),
            sum(b, |c| c.failed),
            true,
        ));
        let latency = |group: &Group<'_>| {
            let mut all = Histogram::default();
            group.iter().for_each(|p| all.merge(&p.latency(calls)));
            all
        };
        let (latency_a, latency_b) = (latency(a), latency(b));
        for (name, q) in [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99)] {
            metrics.push(quantile(comm, format!("{section}.{name}"), q, &latency_a, &latency_b, *judged));
        }
    }
    data_path::compare(comm, a, b, metrics);
    type Left = (&'static str, fn(&ProcessModel) -> u64);
    const LEFT: [Left; 4] = [
        ("left.mrs", |p| p.registrations.population.live),
        ("left.mr_bytes", |p| p.registrations.bytes.live),
        ("left.qps", |p| p.queues.qp_population.live),
        ("registration.repeated", |p| p.registrations.repeated),
    ];
    for (name, of) in LEFT {
        let sum = |group: &Group<'_>| group.iter().map(|p| of(p)).fold(0, u64::saturating_add);
        metrics.push(plain(comm, name.to_owned(), sum(a), sum(b), true));
    }
}

fn relative(a: u64, b: u64) -> Option<f64> {
    (a > 0).then(|| b as f64 / a as f64 - 1.0)
}

/// A number that is what it is; with `more_is_worse`, any difference is judged.
fn plain(comm: &str, name: String, a: u64, b: u64, more_is_worse: bool) -> Metric {
    let outcome = match (a.cmp(&b), more_is_worse) {
        (std::cmp::Ordering::Equal, _) => Outcome::Same,
        (_, false) => Outcome::Changed,
        (std::cmp::Ordering::Less, true) => Outcome::Worse,
        (std::cmp::Ordering::Greater, true) => Outcome::Better,
    };
    Metric {
        comm: comm.to_owned(),
        name,
        a: Some(a),
        b: Some(b),
        change: if a == b { Some(0.0) } else { relative(a, b) },
        a_interval: None,
        b_interval: None,
        outcome,
    }
}

fn quantile(comm: &str, name: String, q: f64, a: &Histogram, b: &Histogram, judged: Judged) -> Metric {
    let (value_a, value_b) = (a.quantile(q), b.quantile(q));
    let (interval_a, interval_b) = (interval(a, q), interval(b, q));
    let outcome = match (interval_a, interval_b) {
        (Some(x), Some(y)) if y.0 > x.1 && judged == Judged::Cost => Outcome::Worse,
        (Some(x), Some(y)) if y.1 < x.0 && judged == Judged::Cost => Outcome::Better,
        (Some(x), Some(y)) if y.0 > x.1 || y.1 < x.0 => Outcome::Changed,
        (Some(_), Some(_)) => Outcome::Same,
        _ => Outcome::TooFew,
    };
    Metric {
        comm: comm.to_owned(),
        name,
        a: value_a,
        b: value_b,
        change: value_a.zip(value_b).and_then(|(a, b)| relative(a, b)),
        a_interval: interval_a,
        b_interval: interval_b,
        outcome,
    }
}

/// Confidence interval of a quantile; `None` where there are too few values for both of its ranks to exist.
fn interval(histogram: &Histogram, q: f64) -> Option<(u64, u64)> {
    let n = histogram.total();
    let spread = Z * (n as f64 * q * (1.0 - q)).sqrt();
    let (low, high) = (n as f64 * q - spread, n as f64 * q + spread + 1.0);
    if n < ENOUGH || low < 1.0 || high > n as f64 {
        return None;
    }
    let at = |rank: f64| histogram.quantile(rank / n as f64).map(|value| value as f64);
    Some(((at(low)? * (1.0 - RESOLUTION)) as u64, (at(high)? * (1.0 + RESOLUTION)).ceil() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl Iterator<Item = u64>) -> Histogram {
        let mut h = Histogram::default();
        values.for_each(|v| h.record(v));
        h
    }

    fn outcome(q: f64, a: impl Iterator<Item = u64>, b: impl Iterator<Item = u64>) -> Outcome {
        quantile("c", "m".into(), q, &histogram(a), &histogram(b), Judged::Cost).outcome
    }

    /// Values of the same distribution, in another order and with other noise.
    fn noisy(seed: u64, scale: u64) -> impl Iterator<Item = u64> {
        (0..2000_u64).map(move |i| {
            let x = (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            scale * (1000 + x % 1000)
        })
    }

    #[test]
    fn the_same_distribution_is_the_same_and_a_real_shift_is_found_both_ways() {
        for q in [0.5, 0.9, 0.99] {
            assert_eq!(outcome(q, noisy(1, 10), noisy(77, 10)), Outcome::Same, "{q}");
            assert_eq!(outcome(q, noisy(1, 10), noisy(77, 12)), Outcome::Worse, "{q}");
            assert_eq!(outcome(q, noisy(1, 12), noisy(77, 10)), Outcome::Better, "{q}");
        }
    }

    #[test]
    fn a_difference_within_one_bucket_is_no_difference() {
        assert_eq!(outcome(0.5, [1000; 5000].into_iter(), [1020; 5000].into_iter()), Outcome::Same);
    }

    #[test]
    fn few_calls_say_nothing_about_their_tail() {
        assert_eq!(outcome(0.5, 1..5, 100..105), Outcome::TooFew);
        assert_eq!(outcome(0.99, (0..100).map(|i| 1000 + i), (0..100).map(|i| 9000 + i)), Outcome::TooFew);
        assert_eq!(outcome(0.5, (0..100).map(|i| 1000 + i), (0..100).map(|i| 9000 + i)), Outcome::Worse);
    }

    #[test]
    fn failures_are_judged_and_counts_only_told() {
        assert_eq!(plain("c", "x.failed".into(), 0, 1, true).outcome, Outcome::Worse);
        assert_eq!(plain("c", "x.failed".into(), 2, 1, true).outcome, Outcome::Better);
        let count = plain("c", "x.count".into(), 10, 20, false);
        assert_eq!((count.outcome, count.change), (Outcome::Changed, Some(1.0)));
        assert_eq!(plain("c", "x.count".into(), 0, 5, false).change, None);
    }
}
