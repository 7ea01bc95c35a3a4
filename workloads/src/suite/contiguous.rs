//! Hot metadata on 4 KiB, 2 MiB and 1 GiB pages.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::endpoint::Spec;
use crate::load::{Load, Mix, Op, Walk};
use crate::measure::Metric;
use crate::memory::{MemoryKind, pools, total_memory};
use crate::predict::Case;
use anyhow::{Result, bail};

/// The workload.
pub struct Contiguous;

static ABOUT: About = About {
    name: "contiguous",
    question: "What does physically contiguous memory gain for hot, small objects?",
    claim: "physically contiguous memory (1 GiB pages, PA-MR) cuts latency of hot metadata by 40 %; keep it under 20 % of \
            memory",
    note: "PA-MR exists only in the vendor's driver stack; MAP_HUGETLB gives 2 MiB pages unless 1 GiB is asked for, and both must \
           be reserved first; what was really obtained is shown",
    signal: "page size behind each MR, share of memory in huge pages against the 20 % rule",
    variants: &[
        Variant { key: "small", label: "one random 64-byte READ at a time, 4 KiB pages" },
        Variant { key: "huge-2m", label: "the same on 2 MiB pages" },
        Variant { key: "huge-1g", label: "the same on 1 GiB pages" },
    ],
    comparisons: &[
        Comparison {
            title: "2 MiB instead of 4 KiB pages",
            baseline: "small",
            optimised: "huge-2m",
            metric: Metric::Latency,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "1 GiB instead of 4 KiB pages",
            baseline: "small",
            optimised: "huge-1g",
            metric: Metric::Latency,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
    ],
    sweep: Some(Sweep {
        parameter: "region",
        unit: "bytes",
        values: &[1 << 20, 16 << 20, 64 << 20, 256 << 20],
        usual: 64 << 20,
        variants: &["small", "huge-2m", "huge-1g"],
    }),
};

/// Above this share of memory the article warns of starving everything that needs ordinary pages.
const RULE: f64 = 0.20;

fn kind(variant: &str) -> Result<MemoryKind> {
    match variant {
        "small" => Ok(MemoryKind::Aligned),
        "huge-2m" => Ok(MemoryKind::Huge2M),
        "huge-1g" => Ok(MemoryKind::Huge1G),
        other => bail!("no variant {other:?}"),
    }
}

fn load(bench: &Bench, value: Option<u64>) -> Result<Load> {
    Ok(Load {
        mix: Mix::Only(Op::Read),
        size: bench.size(64)?,
        window: bench.window(1),
        walk: Walk::Random,
        region: value.unwrap_or_else(|| bench.region(64 << 20)),
        ..Load::default()
    })
}

impl Workload for Contiguous {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        Traffic::boxed(bench, Spec { remote_memory: kind(variant)?, ..Spec::default() }, load(bench, value)?)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        let page = kind(variant)?.page_size() as u64;
        Ok(Some(Case { page, ..Case::of(load(bench, value)?) }))
    }

    fn demonstrate(&self, _bench: &Bench) -> Result<Vec<Finding>> {
        let reserved: u64 = pools().iter().map(|pool| pool.page_size.saturating_mul(pool.total)).sum();
        let total = total_memory();
        Ok(vec![Finding {
            statement: "huge pages held back should stay under 20 % of memory".into(),
            observed: match total {
                Some(total) => format!(
                    "{} MiB of {} MiB are in huge page pools ({:.1} %)",
                    reserved >> 20,
                    total >> 20,
                    100.0 * reserved as f64 / total as f64
                ),
                None => "the kernel does not tell how much memory there is".into(),
            },
            holds: total.map(|total| reserved as f64 <= RULE * total as f64),
        }])
    }
}
