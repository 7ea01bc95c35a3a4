//! One request per post, or a linked list: one doorbell for all.

use super::about::{About, Comparison, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::endpoint::Spec;
use crate::load::{Load, Pace};
use crate::measure::Metric;
use crate::predict::Case;
use anyhow::{Context as _, Result, bail};

/// The workload.
pub struct DoorbellBatching;

static ABOUT: About = About {
    name: "doorbell-batching",
    question: "What does posting a list gain in rate, and what does it cost in latency?",
    claim: "post in batches",
    note: "a list saves doorbells, but its first request waits for the last one to be made: at a given rate batching costs \
           latency; lists on a single QP lower a NIC's rate, so that the saturated variants spread over four",
    signal: "WRs per post call, CPU per operation",
    variants: &[
        Variant { key: "single", label: "one request per post, as fast as possible" },
        Variant { key: "list", label: "a list of N per post, as fast as possible" },
        Variant { key: "single-paced", label: "one request per post, at a steady rate" },
        Variant { key: "list-paced", label: "a list of N per post, at the same rate" },
    ],
    comparisons: &[
        Comparison {
            title: "rate when saturated",
            baseline: "single",
            optimised: "list",
            metric: Metric::Rate,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "latency at a steady rate, waiting for the list to fill included",
            baseline: "single-paced",
            optimised: "list-paced",
            metric: Metric::Latency,
            reality: Reality::Host,
            timing: Timing::Untimed,
        },
    ],
    sweep: Some(Sweep {
        parameter: "N",
        unit: "requests",
        values: &[1, 2, 4, 8, 16, 32, 64],
        usual: 16,
        variants: &["list", "list-paced"],
    }),
};

/// Low enough for every device, virtual machines included.
const STEADY: f64 = 2_000.0;

/// QPs of the saturated variants.
const SATURATED_QPS: u32 = 4;

fn load(bench: &Bench, variant: &str, value: Option<u64>) -> Result<Load> {
    let n = u32::try_from(value.unwrap_or(16)).context("N is too large")?;
    let (batch, pace) = match variant {
        "single" => (1, Pace::Closed),
        "list" => (n, Pace::Closed),
        "single-paced" => (1, Pace::Open(STEADY)),
        "list-paced" => (n, Pace::Open(STEADY)),
        other => bail!("no variant {other:?}"),
    };
    let window = bench.window(128).max(n);
    // A NIC fetches a list by DMA and waits for it: on a single QP that takes longer than the doorbells saved.
    let qps = if matches!(pace, Pace::Closed) { SATURATED_QPS } else { 1 };
    Ok(Load {
        qps,
        size: bench.size(64)?,
        window,
        batch,
        pace,
        region: bench.region(1 << 20),
        ..Load::default()
    })
}

impl Workload for DoorbellBatching {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        Traffic::boxed(bench, Spec::default(), load(bench, variant, value)?)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        Ok(Some(Case::of(load(bench, variant, value)?)))
    }
}
