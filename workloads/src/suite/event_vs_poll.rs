//! Busy polling or sleeping until an event: latency against CPU.

use super::about::{About, Comparison, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::endpoint::Spec;
use crate::load::{Load, Pace, Wait};
use crate::measure::Metric;
use crate::predict::Case;
use anyhow::{Result, bail};

/// The workload.
pub struct EventVsPoll;

static ABOUT: About = About {
    name: "event-vs-poll",
    question: "What does sleeping until a completion cost in latency, and what does polling cost in CPU?",
    claim: "choose events to save CPU, polling to save latency",
    note: "published: an interrupt-driven completion takes 2–4 times as long; a polling thread takes a whole core whatever the rate; on \
           the emulated device a helper thread's timer stands in for the interrupt",
    signal: "polls and empty polls per CQE, notification requests, waits, wake-up latency",
    variants: &[
        Variant { key: "poll", label: "busy polling, one request at a time" },
        Variant { key: "event", label: "events, one request at a time" },
        Variant { key: "poll-paced", label: "busy polling at a steady rate" },
        Variant { key: "event-paced", label: "events at the same rate" },
    ],
    comparisons: &[
        Comparison {
            title: "latency of one request at a time: what events cost",
            baseline: "poll",
            optimised: "event",
            metric: Metric::Latency,
            reality: Reality::Host,
            timing: Timing::Real,
        },
        Comparison {
            title: "CPU at a steady 2,000 requests a second: what events save",
            baseline: "poll-paced",
            optimised: "event-paced",
            metric: Metric::Cpu,
            reality: Reality::Host,
            timing: Timing::Real,
        },
    ],
    sweep: Some(Sweep {
        parameter: "rate",
        unit: "requests/s",
        values: &[500, 1_000, 2_000, 5_000, 10_000, 20_000],
        usual: 2_000,
        variants: &["poll-paced", "event-paced"],
    }),
};

fn load(bench: &Bench, variant: &str, value: Option<u64>) -> Result<Load> {
    let steady = Pace::Open(value.unwrap_or(2_000) as f64);
    let (wait, pace, window) = match variant {
        "poll" => (Wait::Busy, Pace::Closed, 1),
        "event" => (Wait::Events, Pace::Closed, 1),
        "poll-paced" => (Wait::Busy, steady, 64),
        "event-paced" => (Wait::Events, steady, 64),
        other => bail!("no variant {other:?}"),
    };
    Ok(Load { size: bench.size(64)?, window, wait, pace, region: bench.region(1 << 20), ..Load::default() })
}

impl Workload for EventVsPoll {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        let load = load(bench, variant, value)?;
        Traffic::boxed(bench, Spec { events: load.wait == Wait::Events, ..Spec::default() }, load)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        Ok(Some(Case::of(load(bench, variant, value)?)))
    }
}
