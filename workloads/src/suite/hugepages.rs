//! Ordinary against huge pages: translations in the NIC's cache, and the price of registering.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::registering::Registering;
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::endpoint::Spec;
use crate::load::{Load, Mix, Op, Walk};
use crate::measure::Metric;
use crate::memory::{MemoryKind, pools};
use crate::predict::Case;
use crate::table::quantity;
use anyhow::{Result, bail};

/// The workload.
pub struct HugePages;

static ABOUT: About = About {
    name: "hugepages",
    question: "What do 2 MiB pages gain over 4 KiB ones, in access and in registration?",
    claim: "with 4 KiB pages and objects under 4 KiB the NIC's translation cache hits under 60 %; a miss adds a PCIe round \
            trip, ten times the latency",
    note: "real NICs hide their hit rate, so it can only be inferred or modelled; a miss costs about a PCIe round trip on old \
           NICs and is largely overlapped on newer ones, not ten times the latency; on the emulated device a registration is the kernel's walk \
           over the pages and no more: a driver adds 20 to 30 µs a region",
    signal: "pages per MR, page size behind each MR, registration ns per page",
    variants: &[
        Variant { key: "small", label: "random 64-byte READs over 4 KiB pages" },
        Variant { key: "huge", label: "random 64-byte READs over 2 MiB pages" },
        Variant { key: "register-small", label: "register and deregister 64 MiB of 4 KiB pages" },
        Variant { key: "register-huge", label: "register and deregister 64 MiB of 2 MiB pages" },
    ],
    comparisons: &[
        Comparison {
            title: "random READs over a large region",
            baseline: "small",
            optimised: "huge",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "registering a region",
            baseline: "register-small",
            optimised: "register-huge",
            metric: Metric::Latency,
            reality: Reality::Host,
            timing: Timing::Untimed,
        },
    ],
    sweep: Some(Sweep {
        parameter: "region",
        unit: "bytes",
        values: &[1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30],
        usual: 256 << 20,
        variants: &["small", "huge"],
    }),
};

const REGISTERED: usize = 64 << 20;

fn load(bench: &Bench, value: Option<u64>) -> Result<Load> {
    Ok(Load {
        mix: Mix::Only(Op::Read),
        size: bench.size(64)?,
        window: bench.window(32),
        walk: Walk::Random,
        region: value.unwrap_or_else(|| bench.region(256 << 20)),
        ..Load::default()
    })
}

fn kind(variant: &str) -> Result<MemoryKind> {
    match variant {
        "small" | "register-small" => Ok(MemoryKind::Aligned),
        "huge" | "register-huge" => Ok(MemoryKind::Huge2M),
        other => bail!("no variant {other:?}"),
    }
}

impl Workload for HugePages {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        let kind = kind(variant)?;
        if variant.starts_with("register") {
            return Ok(Box::new(Registering::open(bench, kind, REGISTERED)?));
        }
        Traffic::boxed(bench, Spec { remote_memory: kind, ..Spec::default() }, load(bench, value)?)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        let page = kind(variant)?.page_size() as u64;
        Ok(if variant.starts_with("register") {
            None
        } else {
            Some(Case { page, ..Case::of(load(bench, value)?) })
        })
    }

    fn demonstrate(&self, bench: &Bench) -> Result<Vec<Finding>> {
        let region = bench.region(256 << 20);
        let entries = |page: u64| region.div_ceil(page);
        let mut findings = vec![Finding {
            statement: "a region takes one translation per page".into(),
            observed: format!(
                "{}: {} translations of 4 KiB, {} of 2 MiB",
                quantity(region, "bytes"),
                entries(4096),
                entries(2 << 20)
            ),
            holds: Some(entries(4096) > entries(2 << 20)),
        }];
        let text = pools()
            .iter()
            .map(|pool| {
                format!("{}: {} free of {}", quantity(pool.page_size, "bytes"), pool.free, pool.total)
            })
            .collect::<Vec<_>>()
            .join("; ");
        findings.push(Finding {
            statement: "huge pages must be reserved before they can be used (vm.nr_hugepages; /proc/meminfo shows them)".into(),
            observed: if text.is_empty() { "this kernel has no huge page pools".into() } else { format!("pools here: {text}") },
            holds: None,
        });
        Ok(findings)
    }
}
