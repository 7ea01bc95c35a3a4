//! One queue pair, several, far too many; reads and writes apart or mixed.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::emulated;
use crate::endpoint::Spec;
use crate::load::{Load, Mix, Op, Pick};
use crate::measure::Metric;
use crate::predict::{self, Case, Play};
use crate::table::{rate, time};
use anyhow::{Context as _, Result, bail};

/// The workload.
pub struct MultiQp;

static ABOUT: About = About {
    name: "multi-qp",
    question: "How many queue pairs does a NIC want, and when are there too many?",
    claim: "1 / 8 / 16 QPs: 120 k / 680 k / 1.2 M ops/s at 85 / 18 / 9 µs; NICs have 16–32 processing units; use 2–4 QPs per \
            unit; separate QPs for reads and writes",
    note: "published unit counts are lower (CX-5 8, CX-6 16), so 2–4 per unit is a low-confidence rule; the three rows are a \
           closed loop with about 11 requests outstanding in all; too many QPs overflow the NIC's context cache",
    signal: "QPs live, QPs per peer, WRs per QP, latency per QP",
    variants: &[
        Variant { key: "one", label: "1 QP" },
        Variant { key: "several", label: "N QPs" },
        Variant { key: "too-many", label: "2,000 QPs" },
        Variant { key: "mixed", label: "N QPs, reads and writes in turn on each" },
        Variant { key: "apart", label: "N QPs, half for reads, half for writes" },
    ],
    comparisons: &[
        Comparison {
            title: "16 QPs instead of one",
            baseline: "one",
            optimised: "several",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "2,000 QPs instead of 16: the collapse",
            baseline: "several",
            optimised: "too-many",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "reads and writes on separate QPs",
            baseline: "mixed",
            optimised: "apart",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
    ],
    sweep: Some(Sweep {
        parameter: "QPs",
        unit: "QPs",
        values: &[1, 2, 4, 8, 16, 32, 64, 256, 2_000],
        usual: 16,
        variants: &["several", "mixed", "apart"],
    }),
};

/// Most requests outstanding on one queue pair.
const WINDOW: u32 = 16;
/// Requests outstanding over all queue pairs, from 16 of them on: NICs also run out of room for outstanding requests, and that
/// must not be taken for the effect of queue pairs.
const OUTSTANDING: u32 = 256;
/// Cores given to the posting side in the model: as many as `several` has queue pairs.
const THREADS: u32 = 16;
/// The article's illustration profile: its rows are a closed loop with about this many requests outstanding over all QPs.
const ARTICLE: &str = "article";
/// The article's rows: QPs, operations per second, median latency in microseconds.
const ARTICLE_ROWS: [(u32, f64, f64); 3] = [(1, 120e3, 85.0), (8, 680e3, 18.0), (16, 1.2e6, 9.0)];

fn load(bench: &Bench, variant: &str, value: Option<u64>) -> Result<Load> {
    let several = u32::try_from(value.unwrap_or(16)).context("too many QPs")?;
    let (qps, mix) = match variant {
        "one" => (1, Mix::Only(Op::Read)),
        "several" => (several, Mix::Only(Op::Read)),
        "too-many" => (2_000, Mix::Only(Op::Read)),
        "mixed" => (several, Mix::ReadWriteMixed),
        "apart" => (several, Mix::ReadWriteApart),
        other => bail!("no variant {other:?}"),
    };
    let window = match bench.options.window {
        Some(_) => bench.window(WINDOW),
        None => (OUTSTANDING / qps).clamp(1, WINDOW),
    };
    let load =
        Load { mix, qps, size: bench.size(64)?, window, region: bench.region(1 << 20), ..Load::default() };
    Ok(if emulated_as_article(bench) { article(load) } else { load })
}

fn emulated_as_article(bench: &Bench) -> bool {
    bench.options.profile.as_deref() == Some(ARTICLE)
        || (bench.device().label().profile.is_some() && emulated::profile() == ARTICLE)
}

/// The load behind the article's rows: a closed loop of many clients, whose requests fall on the queue pairs at random.
fn article(load: Load) -> Load {
    let outstanding = outstanding(load.qps);
    Load { window: outstanding, total_window: outstanding, pick: Pick::Random, ..load }
}

/// Requests under way in a row of the article, by its throughput times its latency; about 11 for other numbers of QPs.
fn outstanding(qps: u32) -> u32 {
    let row = ARTICLE_ROWS.iter().find(|(row, ..)| *row == qps);
    row.map_or(11, |(_, rate, microseconds)| (rate * microseconds / 1e6).round() as u32)
}

impl Workload for MultiQp {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        Traffic::boxed(bench, Spec::default(), load(bench, variant, value)?)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        let load = load(bench, variant, value)?;
        // A closed loop over all queue pairs is one program's; otherwise a queue pair has a core to itself up to 16 of them.
        let threads = if load.total_window > 0 { 1 } else { load.qps.min(THREADS) };
        let play = if matches!(variant, "mixed" | "apart") { Play::Staged } else { Play::Load };
        Ok(Some(Case { threads, play, ..Case::of(load) }))
    }

    fn demonstrate(&self, bench: &Bench) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for (qps, claimed_rate, claimed_us) in ARTICLE_ROWS {
            let load = article(Load { mix: Mix::Only(Op::Read), qps, size: 64, ..Load::default() });
            let Some(modelled) = predict::alone(ARTICLE, &Case::of(load))? else { continue };
            let near = |value: f64, claim: f64| (value / claim - 1.0).abs() <= 0.15;
            findings.push(Finding {
                statement: format!(
                    "article, {qps} QPs with {} outstanding: {} at {claimed_us} µs",
                    outstanding(qps),
                    rate(claimed_rate)
                ),
                observed: format!(
                    "the model with the illustration profile \"{ARTICLE}\" gives {} at {} (an illustration, not a NIC)",
                    rate(modelled.ops_per_s),
                    time(modelled.latency_ns.mean)
                ),
                holds: Some(near(modelled.ops_per_s, claimed_rate) && near(modelled.latency_ns.mean, claimed_us * 1e3)),
            });
        }
        let units = bench.device().info.max_qp;
        findings.push(Finding {
            statement: "the device says how many QPs it allows, never how many it serves well".into(),
            observed: format!(
                "it allows {units}; the number of processing units is not published through verbs"
            ),
            holds: None,
        });
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_illustration_profile_gives_the_articles_rows_within_15_per_cent() {
        for (qps, claimed_rate, claimed_us) in ARTICLE_ROWS {
            let load = article(Load { mix: Mix::Only(Op::Read), qps, ..Load::default() });
            let modelled = predict::alone(ARTICLE, &Case::of(load)).unwrap().unwrap();
            let (rate, us) = (modelled.ops_per_s, modelled.latency_ns.mean / 1e3);
            assert!((rate / claimed_rate - 1.0).abs() <= 0.15, "{qps} QPs: {rate} /s");
            assert!((us / claimed_us - 1.0).abs() <= 0.15, "{qps} QPs: {us} µs");
        }
    }

    #[test]
    fn the_articles_rows_are_a_closed_loop_of_about_eleven() {
        for (_, rate, microseconds) in ARTICLE_ROWS {
            let outstanding = rate * microseconds / 1e6;
            assert!((outstanding - 11.0).abs() < 1.5, "{outstanding}");
        }
    }
}
