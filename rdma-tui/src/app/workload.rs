//! Reference workloads on the dashboard: the list, what runs, and what came out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A workload, as `rdma-workload list --json` tells it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Workload {
    /// Name on the command line.
    pub name: String,
    /// What it asks.
    pub question: String,
    /// What is claimed.
    pub claim: String,
}

/// One variant's figures, as `rdma-workload compare --json` tells them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Variant {
    /// Name of the variant, in words.
    #[serde(alias = "label")]
    pub name: String,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Latency in ns by percentile (`p50`, `p99`, …), where the workload has one.
    pub latency_ns: Option<BTreeMap<String, f64>>,
}

/// The effect: optimised over baseline.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ratio {
    /// Middle of the repetitions.
    pub median: f64,
    /// Lower end of the confidence interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The device it ran on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Device name.
    pub name: String,
    /// What kind of device: an emulated one is always named as such.
    pub kind: String,
}

/// A result.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    /// Which workload.
    pub name: String,
    /// What is claimed.
    pub claim: String,
    /// Where.
    pub device: Device,
    /// The slow way.
    pub baseline: Variant,
    /// The fast way.
    pub optimised: Variant,
    /// Their ratio.
    pub ratio: Ratio,
    /// In words.
    pub verdict: String,
    /// What the workload itself counted.
    pub ground_truth: serde_json::Value,
    /// What the probes counted, when it ran under them.
    pub probes: Option<serde_json::Value>,
}

/// How the board of workloads fares.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Listing {
    /// Not asked yet, or being asked.
    #[default]
    Asking,
    /// It cannot be had: why.
    Unavailable(String),
    /// Here it is.
    Known,
}

/// A workload under way.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Running {
    /// Which.
    pub name: String,
    /// Latest line of progress it printed.
    pub progress: String,
    /// Seconds since it began, as last told.
    pub seconds: u64,
}

/// The list, the running one and the results.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Board {
    /// Whether the list is there.
    pub listing: Listing,
    /// Workloads in the order of the list.
    pub list: Vec<Workload>,
    /// The one under way.
    pub running: Option<Running>,
    /// Latest result or failure of each, by name.
    pub results: BTreeMap<String, Result<Comparison, String>>,
}
