//! Small payloads by SGE, or copied into the request.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::endpoint::{Endpoint, Spec};
use crate::load::Load;
use crate::measure::Metric;
use crate::predict::Case;
use crate::verbs::{SendList, ffi};
use anyhow::{Context as _, Result, bail};

/// The workload.
pub struct Inline;

static ABOUT: About = About {
    name: "inline",
    question: "What does sending small payloads inside the request gain, and where does it end?",
    claim: "avoid needless work per request: send small payloads inline",
    note: "inline saves the NIC one read of host memory; the copy costs the CPU, in 64-byte steps, and the limit is the device's; past 28 bytes a WRITE takes a second 64-byte line, which can cost a saturated core more than the saved read gives",
    signal: "inline share of WRs under the inline limit, CPU per operation",
    variants: &[
        Variant { key: "sge", label: "payload by SGE, one request at a time" },
        Variant { key: "inline", label: "payload inline, one request at a time" },
        Variant { key: "sge-saturated", label: "payload by SGE, as fast as possible" },
        Variant { key: "inline-saturated", label: "payload inline, as fast as possible" },
    ],
    comparisons: &[
        Comparison {
            title: "latency of a 32-byte WRITE",
            baseline: "sge",
            optimised: "inline",
            metric: Metric::Latency,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "rate of 32-byte WRITEs",
            baseline: "sge-saturated",
            optimised: "inline-saturated",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
    ],
    sweep: Some(Sweep {
        parameter: "size",
        unit: "bytes",
        values: &[8, 16, 32, 64, 128, 192, 220, 256, 512, 1024],
        usual: 32,
        variants: &["sge", "inline"],
    }),
};

fn load(bench: &Bench, variant: &str, value: Option<u64>) -> Result<Load> {
    let (inline, window) = match variant {
        "sge" => (false, 1),
        "inline" => (true, 1),
        "sge-saturated" => (false, bench.window(64)),
        "inline-saturated" => (true, bench.window(64)),
        other => bail!("no variant {other:?}"),
    };
    let size = match value {
        Some(size) => u32::try_from(size).context("size does not fit 32 bits")?,
        None => bench.size(32)?,
    };
    Ok(Load { size, window, inline, region: bench.region(1 << 20), ..Load::default() })
}

impl Workload for Inline {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        let load = load(bench, variant, value)?;
        let spec = Spec { inline: if load.inline { load.size } else { 0 }, ..Spec::default() };
        Traffic::boxed(bench, spec, load)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        Ok(Some(Case::of(load(bench, variant, value)?)))
    }

    fn demonstrate(&self, bench: &Bench) -> Result<Vec<Finding>> {
        let limit =
            largest(|inline| Endpoint::open(bench, &Spec { inline, depth: 1, ..Spec::default() }).is_ok());
        let endpoint = Endpoint::open(bench, &Spec { inline: limit.min(64), ..Spec::default() })?;
        let granted = endpoint.qps[0].granted().inline;
        let mut list = SendList::with_capacity(1);
        let length = granted + 1;
        let sge = ffi::ibv_sge { addr: endpoint.local.addr(), length, lkey: endpoint.local.lkey() };
        list.write(0, sge, endpoint.remote.addr, endpoint.remote.rkey, None);
        list.flag_last(true, true);
        let refused = endpoint.qps[0].post(&mut list).err();
        Ok(vec![
            Finding {
                statement: "the inline limit is set when the QP is made, and the device bounds it".into(),
                observed: format!("this device makes QPs of up to {limit} inline bytes"),
                holds: Some(limit > 0),
            },
            Finding {
                statement: "one byte past the granted limit is refused at the post".into(),
                observed: match &refused {
                    Some(error) => format!("{granted} bytes granted; {length} inline bytes: {}", error.error),
                    None => format!("{granted} bytes granted; {length} inline bytes were accepted"),
                },
                holds: Some(refused.is_some()),
            },
        ])
    }
}

/// Largest number up to 4096 for which `works` holds, given that it holds up to some number and not beyond.
fn largest(works: impl Fn(u32) -> bool) -> u32 {
    let (mut good, mut bad) = (0, 4097);
    while bad - good > 1 {
        let middle = (good + bad) / 2;
        if works(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_size_that_works_is_found_at_both_ends() {
        assert_eq!(largest(|size| size <= 220), 220);
        assert_eq!(largest(|_| false), 0);
        assert_eq!(largest(|_| true), 4096);
    }
}
