//! A completion queue per queue pair, or one for all; polled or slept on.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::endpoint::{CqLayout, Spec};
use crate::load::{Load, Pace, Wait};
use crate::measure::Metric;
use crate::predict::{Case, Play};
use crate::table::quantity;
use anyhow::{Context as _, Result, bail};

/// The workload.
pub struct SharedCq;

static ABOUT: About = About {
    name: "shared-cq",
    question: "What does one completion queue for all queue pairs save, and what does it cost the thread that polls?",
    claim: "a CQ per QP wastes NIC memory; sharing one saved 70 %; a QP's context is about 375 B, 2,000 QPs near 1 MB; combine \
            with event notification",
    note: "CQ rings lie in host memory and must hold as many entries either way; what the NIC holds is context. Sharing moves \
           work to the polling thread, and with events to the kernel",
    signal: "QPs per CQ, CQ count and depth, polls per CQE, empty polls, waits and wake-ups",
    variants: &[
        Variant { key: "per-qp", label: "a CQ for each of N QPs, polled in turn" },
        Variant { key: "shared", label: "one CQ for N QPs, polled" },
        Variant { key: "per-qp-paced", label: "a CQ for each of N QPs, polled, at a steady rate" },
        Variant { key: "shared-paced", label: "one CQ, polled, at a steady rate" },
        Variant { key: "shared-epoll", label: "one CQ, slept on, at the same rate" },
    ],
    comparisons: &[
        Comparison {
            title: "one CQ instead of one per QP, saturated",
            baseline: "per-qp",
            optimised: "shared",
            metric: Metric::Rate,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "the polling thread at a steady rate",
            baseline: "per-qp-paced",
            optimised: "shared-paced",
            metric: Metric::Latency,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "sleeping on the channel instead of polling, at a steady rate",
            baseline: "shared-paced",
            optimised: "shared-epoll",
            metric: Metric::Cpu,
            reality: Reality::Host,
            timing: Timing::Real,
        },
    ],
    sweep: Some(Sweep {
        parameter: "QPs",
        unit: "QPs",
        values: &[1, 4, 16, 64, 256],
        usual: 64,
        variants: &["per-qp", "shared"],
    }),
};

const STEADY: f64 = 2_000.0;
const WINDOW: u32 = 4;
/// Bytes of one completion entry in the host's ring (64 on ConnectX).
const CQE: u64 = 64;
/// Bytes of a queue pair's context: 232 of fields, rounded up; "375 B" is often quoted, without a source.
const QP_CONTEXT: u64 = 256;

fn shape(variant: &str) -> Result<(CqLayout, Wait, Pace)> {
    Ok(match variant {
        "per-qp" => (CqLayout::PerQp, Wait::Busy, Pace::Closed),
        "shared" => (CqLayout::Shared, Wait::Busy, Pace::Closed),
        "per-qp-paced" => (CqLayout::PerQp, Wait::Busy, Pace::Open(STEADY)),
        "shared-paced" => (CqLayout::Shared, Wait::Busy, Pace::Open(STEADY)),
        "shared-epoll" => (CqLayout::Shared, Wait::Events, Pace::Open(STEADY)),
        other => bail!("no variant {other:?}"),
    })
}

fn load(bench: &Bench, variant: &str, value: Option<u64>) -> Result<Load> {
    let (_, wait, pace) = shape(variant)?;
    let qps = u32::try_from(value.unwrap_or(64)).context("too many QPs")?;
    Ok(Load {
        qps,
        size: bench.size(64)?,
        window: bench.window(WINDOW),
        wait,
        pace,
        region: bench.region(1 << 20),
        ..Load::default()
    })
}

impl Workload for SharedCq {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        let (cqs, wait, _) = shape(variant)?;
        let spec = Spec { cqs, events: wait == Wait::Events, ..Spec::default() };
        Traffic::boxed(bench, spec, load(bench, variant, value)?)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        let (cqs, wait, _) = shape(variant)?;
        // Waiting is the kernel's part, which is measured.
        if wait == Wait::Events {
            return Ok(None);
        }
        Ok(Some(Case { cqs, play: Play::Staged, ..Case::of(load(bench, variant, value)?) }))
    }

    fn demonstrate(&self, _bench: &Bench) -> Result<Vec<Finding>> {
        let (qps, depth) = (2_000, 128);
        let rings = |queues: u64, entries: u64| queues * entries * CQE;
        Ok(vec![
            Finding {
                statement: "sharing a CQ saves no ring memory when the ring is sized for all its QPs".into(),
                observed: format!(
                    "{qps} QPs of depth {depth}: {} in {qps} rings, {} in one, both in host memory",
                    quantity(rings(qps, depth), "bytes"),
                    quantity(rings(1, qps * depth), "bytes")
                ),
                holds: Some(rings(qps, depth) == rings(1, qps * depth)),
            },
            Finding {
                statement: "the contexts of 2,000 QPs take near 1 MB on the NIC".into(),
                observed: format!(
                    "{} KiB at {QP_CONTEXT} B each, {} KiB at the quoted 375 B: by arithmetic, no device tells",
                    qps * QP_CONTEXT / 1024,
                    qps * 375 / 1024
                ),
                holds: None,
            },
        ])
    }
}
