//! What a load came to.

use serde::Serialize;

use super::histogram::Histogram;
use crate::model::breakdown::{Breakdown, STAGES, Stage};
use crate::model::cache::CacheCounts;
use crate::model::nic::NicCounts;
use crate::model::time::{Ps, to_ns, to_s};

/// Latencies in nanoseconds, from the start of the post to the CQE reaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 in 100 take no longer.
    pub p90: f64,
    /// 99 in 100 take no longer.
    pub p99: f64,
    /// 999 in 1000 take no longer.
    pub p999: f64,
    /// Longest.
    pub max: f64,
}

impl From<&Histogram> for Latency {
    fn from(h: &Histogram) -> Self {
        let at = |share| to_ns(h.quantile(share));
        Self {
            mean: to_ns(h.mean()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: to_ns(h.max()),
        }
    }
}

/// Hit rates of one NIC's caches; none where nothing was looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HitRates {
    /// QP contexts for sending.
    pub qpc: Option<f64>,
    /// QP contexts for receiving.
    pub rxc: Option<f64>,
    /// CQ contexts.
    pub cqc: Option<f64>,
    /// WQEs of outstanding requests.
    pub wqe: Option<f64>,
    /// Memory keys.
    pub mpt: Option<f64>,
    /// Page translations.
    pub mtt: Option<f64>,
}

/// How busy one NIC's parts were: 1 is all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Utilisation {
    /// Processing units, on average over them.
    pub units: f64,
    /// Send pipeline.
    pub send: f64,
    /// Receive pipeline.
    pub receive: f64,
    /// Port, sending.
    pub port: f64,
    /// PCIe towards the host.
    pub pcie_up: f64,
    /// PCIe from the host.
    pub pcie_down: f64,
}

/// What one NIC did while measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NicOutcome {
    /// Hit rates.
    pub hits: HitRates,
    /// Utilisation.
    pub busy: Utilisation,
    /// Counted.
    pub counts: NicCounts,
}

impl NicOutcome {
    pub(super) fn new(counts: NicCounts, elapsed: Ps, units: f64) -> Self {
        let share = |busy: Ps| busy as f64 / elapsed.max(1) as f64;
        let rate = |c: &CacheCounts| c.hit_rate();
        Self {
            hits: HitRates {
                qpc: rate(&counts.qpc),
                rxc: rate(&counts.rxc),
                cqc: rate(&counts.cqc),
                wqe: rate(&counts.wqe),
                mpt: rate(&counts.mpt),
                mtt: rate(&counts.mtt),
            },
            busy: Utilisation {
                units: share(counts.pu_busy) / units,
                send: share(counts.tx_busy),
                receive: share(counts.rx_busy),
                port: share(counts.port_busy),
                pcie_up: share(counts.pcie_up_busy),
                pcie_down: share(counts.pcie_down_busy),
            },
            counts,
        }
    }
}

/// What a load came to, in modelled time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests completed per second, per measured node.
    pub ops_per_s: f64,
    /// Payload bytes per second, per measured node.
    pub bytes_per_s: f64,
    /// Latency in nanoseconds.
    pub latency_ns: Latency,
    /// Mean time per stage of the NICs' share of the latency, in nanoseconds.
    #[serde(serialize_with = "by_name")]
    pub breakdown_ns: [f64; STAGES],
    /// CPU time per request of the posting threads, in nanoseconds: posting, locks, reaping.
    pub cpu_ns_per_op: f64,
    /// The initiator's NIC.
    pub initiator: NicOutcome,
    /// The responder's NIC.
    pub responder: NicOutcome,
    /// Requests measured.
    pub measured: u64,
    /// Modelled time measured, in seconds.
    pub seconds: f64,
}

impl Outcome {
    /// Mean time of a stage in nanoseconds.
    pub fn stage_ns(&self, stage: Stage) -> f64 {
        self.breakdown_ns[stage as usize]
    }
}

fn by_name<S: serde::Serializer>(spans: &[f64; STAGES], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Stage::ALL.into_iter().map(|s| (s.name(), spans[s as usize])))
}

pub(super) fn per_request(spans: &Breakdown, requests: u64) -> [f64; STAGES] {
    Stage::ALL.map(|s| to_ns(spans.get(s)) / requests.max(1) as f64)
}

pub(super) fn rate(count: f64, elapsed: Ps) -> f64 {
    count / to_s(elapsed.max(1))
}
