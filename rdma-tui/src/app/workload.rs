//! Reference workloads on the dashboard: the list, what runs, and what came out.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

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
    /// What it can be swept over; `None` for nothing.
    pub sweep: Option<Swept>,
}

/// The parameter of a sweep.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Swept {
    /// Its name.
    pub parameter: String,
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
    /// The same as the model of a NIC has it, on the emulated device and where the effect is the NIC's.
    pub modelled: Option<Modelled>,
}

impl Variant {
    /// Rate and latencies to be shown: modelled ones where there are any, since an emulated device's own are this host's.
    pub fn shown(&self) -> (f64, Option<&BTreeMap<String, f64>>) {
        match &self.modelled {
            Some(modelled) => (modelled.ops_per_s, modelled.latency_ns.as_ref()),
            None => (self.ops_per_s, self.latency_ns.as_ref()),
        }
    }
}

/// What the timing model says of a variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Modelled {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Latency in ns by percentile.
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
    /// Profile of an emulated one.
    pub profile: Option<String>,
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
    /// What the probes counted of each variant, when they ran under them.
    #[serde(deserialize_with = "or_none")]
    pub probes: Option<Vec<Checked>>,
}

/// A key that an older program fills otherwise is as good as absent.
fn or_none<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(from)?).ok())
}

/// One variant as the workload and the probes counted it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Checked {
    /// Key of the variant.
    pub variant: String,
    /// Figures counted twice.
    pub checks: Vec<Check>,
    /// Every figure the probes observe is equal.
    pub equal: bool,
    /// Why nothing could be checked.
    pub error: Option<String>,
}

/// One figure, counted twice.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Check {
    /// Name of the figure.
    pub name: String,
    /// What the workload counted itself.
    pub truth: u64,
    /// What the probes saw; absent where they do not observe it.
    pub probes: Option<u64>,
}

/// A point of a sweep, as `rdma-workload run --json` tells it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Key of the variant.
    pub key: String,
    /// Value of the swept parameter.
    pub value: Option<u64>,
    /// Operations per second; absent when the point could not be run.
    pub ops_per_s: Option<f64>,
    /// The same as the model of a NIC has it.
    pub modelled: Option<Modelled>,
}

/// A workload's variants over the swept parameter.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sweep {
    /// Which workload.
    pub name: String,
    /// What is swept; absent where nothing is.
    pub parameter: Option<String>,
    /// Its unit.
    pub unit: Option<String>,
    /// Where.
    pub device: Device,
    /// Clock of the measured figures.
    pub clock: String,
    /// Points, in order.
    pub points: Vec<Point>,
}

impl Sweep {
    /// Whose figures [`Sweep::lines`] gives, in words.
    pub fn source(&self) -> String {
        match (&self.device.profile, self.points.iter().any(|point| point.modelled.is_some())) {
            (profile, true) => format!("modelled ({})", profile.as_deref().unwrap_or("emulated device")),
            (_, false) => self.clock.clone(),
        }
    }

    /// Operations per second of each variant by value, in the order they were run: modelled where there is a model.
    pub fn lines(&self) -> Vec<(&str, Vec<(u64, f64)>)> {
        let mut lines: Vec<(&str, Vec<(u64, f64)>)> = Vec::new();
        for point in &self.points {
            let (Some(value), Some(measured)) = (point.value, point.ops_per_s) else { continue };
            let rate = point.modelled.as_ref().map_or(measured, |modelled| modelled.ops_per_s);
            match lines.iter_mut().find(|(key, _)| *key == point.key) {
                Some((_, points)) => points.push((value, rate)),
                None => lines.push((&point.key, vec![(value, rate)])),
            }
        }
        lines
    }
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
    /// The comparison under way, once it has figures.
    pub live: Option<Live>,
}

/// A line of progress, as `rdma-workload --progress json` tells it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Told {
    /// What is done now, in words.
    pub progress: String,
    /// Title of the comparison a run has just ended of; empty otherwise.
    pub comparison: String,
    /// `baseline` or `optimised`.
    pub side: String,
    /// Key of the variant.
    pub variant: String,
    /// Operations per second.
    pub ops_per_s: f64,
}

/// Both sides of a comparison as measured so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Live {
    /// Its title.
    pub comparison: String,
    /// The slow way.
    pub baseline: Side,
    /// The fast way.
    pub optimised: Side,
}

/// One side of a comparison under way.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Side {
    /// Key of the variant.
    pub variant: String,
    /// Operations per second of each run, the first being a warm-up.
    pub runs: Vec<f64>,
}

impl Side {
    /// Median of the runs so far, without the warm-up once there is another.
    pub fn ops_per_s(&self) -> f64 {
        let mut runs = self.runs[usize::from(self.runs.len() > 1)..].to_vec();
        runs.sort_by(f64::total_cmp);
        runs.get(runs.len() / 2).copied().unwrap_or(0.0)
    }
}

impl Running {
    /// Takes in a line the program printed: a step, or words.
    pub fn hear(&mut self, line: &str) {
        let Ok(told) = serde_json::from_str::<Told>(line) else {
            line.clone_into(&mut self.progress);
            return;
        };
        self.progress = told.progress;
        if told.comparison.is_empty() {
            return;
        }
        let live = self.live.get_or_insert_default();
        if live.comparison != told.comparison {
            *live = Live { comparison: told.comparison, ..Live::default() };
        }
        let side = if told.side == "baseline" { &mut live.baseline } else { &mut live.optimised };
        side.variant = told.variant;
        side.runs.push(told.ops_per_s);
    }
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
    /// Latest sweep or failure of each, by name.
    pub sweeps: BTreeMap<String, Result<Sweep, String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_fill_both_sides_and_a_new_comparison_begins_anew() {
        let mut running = Running::default();
        running.hear("rdma-workload: no usable RDMA device here; using the emulated RNIC");
        assert!(running.progress.contains("emulated") && running.live.is_none());
        for rate in [1.0, 5.0, 3.0, 4.0] {
            running.hear(&format!(
                r#"{{"progress":"p","comparison":"a","side":"baseline","variant":"v","ops_per_s":{rate}}}"#
            ));
        }
        let live = running.live.clone().unwrap();
        assert_eq!((live.baseline.ops_per_s(), live.optimised.ops_per_s()), (4.0, 0.0));
        running.hear(r#"{"progress":"q","comparison":"b","side":"optimised","variant":"w","ops_per_s":7.5}"#);
        let live = running.live.unwrap();
        assert_eq!((live.comparison.as_str(), live.optimised.ops_per_s()), ("b", 7.5));
        assert!(live.baseline.runs.is_empty());
    }

    #[test]
    fn a_sweep_has_a_line_per_variant_without_the_points_that_failed() {
        let text = r#"{"name":"inline","points":[
            {"key":"sge","value":8,"ops_per_s":1.0},{"key":"sge","value":16},
            {"key":"inline","value":8,"ops_per_s":2.0,"modelled":{"ops_per_s":7.0}}]}"#;
        let sweep: Sweep = serde_json::from_str(text).unwrap();
        assert_eq!(sweep.lines(), [("sge", vec![(8, 1.0)]), ("inline", vec![(8, 7.0)])]);
        assert!(sweep.source().starts_with("modelled"));
    }

    #[test]
    fn probes_of_an_unknown_shape_are_none() {
        let comparison: Comparison = serde_json::from_str(r#"{"name":"x","probes":{"wrs":1}}"#).unwrap();
        assert_eq!(comparison.probes, None);
        let comparison: Comparison = serde_json::from_str(
            r#"{"name":"x","probes":[{"variant":"a","checks":[{"name":"wrs","truth":3,"probes":3}],"equal":true}]}"#,
        )
        .unwrap();
        assert!(comparison.probes.unwrap()[0].equal);
    }
}
