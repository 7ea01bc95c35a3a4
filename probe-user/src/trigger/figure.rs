//! The figures a trigger may ask for.

use crate::model::{Model, ProcessModel};
use crate::report::units;
use crate::sample::{Call, Histogram};

/// What the value of a figure is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named by themselves")]
pub enum Unit {
    Time,
    Bytes,
    PerSecond,
    Count,
}

impl Unit {
    /// A value in words.
    pub fn show(self, value: f64) -> String {
        let whole = value.round().max(0.0) as u64;
        match self {
            Self::Time => units::duration(whole),
            Self::Bytes => units::bytes(whole),
            Self::PerSecond => format!("{}/s", units::count(whole)),
            Self::Count => units::count(whole),
        }
    }
}

/// A figure of one process over one interval, or of what it has at its end.
#[derive(Debug, Clone, PartialEq)]
pub enum Figure {
    /// Completion entries with an error.
    CqeError,
    /// What the profiler missed, in all processes.
    Lost,
    /// A quantile of the latency of a call (in thousandths), or its maximum (1000).
    Latency(String, u16),
    /// Calls per second.
    Rate(String),
    /// Calls that failed.
    Failed(String),
    /// Live memory regions.
    LiveMrs,
    /// Their bytes.
    LiveMrBytes,
    /// Live queue pairs.
    LiveQps,
    /// Live completion queues.
    LiveCqs,
}

/// Endings of figures of a call: the quantile in thousandths.
const QUANTILES: [(&str, u16); 5] = [
    ("_latency_p50", 500),
    ("_latency_p90", 900),
    ("_latency_p99", 990),
    ("_latency_p999", 999),
    ("_latency_max", 1000),
];

impl Figure {
    /// The figure of that name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "cqe_error" | "cqe_errors" => return Some(Self::CqeError),
            "lost" => return Some(Self::Lost),
            "live_mrs" => return Some(Self::LiveMrs),
            "live_mr_bytes" => return Some(Self::LiveMrBytes),
            "live_qps" => return Some(Self::LiveQps),
            "live_cqs" => return Some(Self::LiveCqs),
            _ => {}
        }
        let of = |ending: &str| {
            let call = name.strip_suffix(ending)?;
            (!calls(call).is_empty()).then(|| call.to_owned())
        };
        if let Some((call, q)) = QUANTILES.iter().find_map(|(ending, q)| Some((of(ending)?, *q))) {
            return Some(Self::Latency(call, q));
        }
        of("_rate").map(Self::Rate).or_else(|| of("_failed").map(Self::Failed))
    }

    /// What it is called.
    pub fn name(&self) -> String {
        match self {
            Self::CqeError => "cqe_error".to_owned(),
            Self::Lost => "lost".to_owned(),
            Self::Latency(call, q) => {
                let ending = QUANTILES.iter().find(|(_, known)| known == q).map_or("", |(ending, _)| ending);
                format!("{call}{ending}")
            }
            Self::Rate(call) => format!("{call}_rate"),
            Self::Failed(call) => format!("{call}_failed"),
            Self::LiveMrs => "live_mrs".to_owned(),
            Self::LiveMrBytes => "live_mr_bytes".to_owned(),
            Self::LiveQps => "live_qps".to_owned(),
            Self::LiveCqs => "live_cqs".to_owned(),
        }
    }

    /// What its value is measured in.
    pub const fn unit(&self) -> Unit {
        match self {
            Self::Latency(..) => Unit::Time,
            Self::Rate(_) => Unit::PerSecond,
            Self::LiveMrBytes => Unit::Bytes,
            _ => Unit::Count,
        }
    }

    /// Its value in a process; `None` where nothing of it happened in the last interval.
    pub(super) fn of(&self, model: &Model, process: &ProcessModel) -> Option<f64> {
        let intervals = |call: &str| -> Vec<_> {
            let stats = calls(call).iter().filter_map(|call| process.calls.get(call)).collect::<Vec<_>>();
            stats.into_iter().filter_map(|stats| model.interval_of(stats)).collect()
        };
        match self {
            Self::Latency(call, q) => {
                let mut latency = Histogram::default();
                intervals(call).iter().for_each(|interval| latency.merge(&interval.latency));
                let ns = match q {
                    1000 => latency.highest().map(|(low, high)| low + (high - low) / 2),
                    q => latency.quantile(f64::from(*q) / 1000.0),
                };
                ns.map(|ns| ns as f64)
            }
            Self::Rate(call) => Some(intervals(call).iter().map(|i| i.calls_per_second()).sum()),
            Self::Failed(call) => Some(intervals(call).iter().map(|i| i.count.failed as f64).sum()),
            Self::LiveMrs => Some(process.registrations.population.live as f64),
            Self::LiveMrBytes => Some(process.registrations.bytes.live as f64),
            Self::LiveQps => Some(process.queues.qp_population.live as f64),
            Self::LiveCqs => Some(process.queues.cq_population.live as f64),
            Self::CqeError | Self::Lost => None,
        }
    }
}

/// The calls behind a word: a call's own name in traces, or `reg` and `dereg` for all ways of (de)registering.
fn calls(word: &str) -> Vec<Call> {
    match word {
        "reg" => vec![Call::RegMr, Call::RegDmabufMr, Call::ReregMr],
        "dereg" => vec![Call::DeregMr],
        _ => match serde_json::from_value(word.into()) {
            Ok(Call::Unknown) | Err(_) => Vec::new(),
            Ok(call) => vec![call],
        },
    }
}

/// Names to offer where one is not known.
pub(super) const EXAMPLES: &str = "cqe_error, lost, live_mrs, live_mr_bytes, live_qps, live_cqs, and of every call of a \
trace (reg for all registrations, dereg, create_qp, modify_qp, …) CALL_latency_p50, _p90, _p99, _p999, _max, \
CALL_rate, CALL_failed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_found_by_its_own_name() {
        for name in ["cqe_error", "lost", "live_mrs", "live_mr_bytes", "live_qps", "live_cqs"] {
            assert_eq!(Figure::named(name).unwrap().name(), name);
        }
        for call in ["reg", "dereg", "reg_mr", "create_qp", "kernel_pin", "cm_connect"] {
            for ending in ["_latency_p50", "_latency_p999", "_latency_max", "_rate", "_failed"] {
                let name = format!("{call}{ending}");
                assert_eq!(Figure::named(&name).unwrap().name(), name);
            }
        }
        for wrong in ["", "reg", "reg_latency", "unknown_rate", "reg_latency_p98", "_rate", "Lost"] {
            assert_eq!(Figure::named(wrong), None, "{wrong}");
        }
    }
}
