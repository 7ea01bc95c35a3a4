//! What the emulated device's timing model tells of its inside: hit rates of its caches, how busy its units are, and
//! where a request's time goes. Everything here is modelled.

use std::collections::BTreeMap;

/// Prefix of the model's counters among a port's; behind it come the names of `rnic_emu::stats::ModelCounter`.
pub const PREFIX: &str = "model_";

/// A cache and its lookups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// What it holds.
    pub name: &'static str,
    /// Times something was looked up.
    pub lookups: u64,
    /// Of them, found.
    pub hits: u64,
}

/// A unit and how busy it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Which.
    pub name: &'static str,
    /// Units busy on average over the modelled time, 1 being one unit all the time.
    pub busy: f64,
}

/// A stage of a request's life.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// What happens in it.
    pub name: &'static str,
    /// Modelled time per completed request, ns.
    pub ns: f64,
}

/// The inside of a device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inside {
    /// Requests completed.
    pub completed: u64,
    /// Modelled time passed, ns.
    pub modelled_ns: f64,
    /// Caches that were asked.
    pub caches: Vec<Cache>,
    /// Units.
    pub units: Vec<Unit>,
    /// Stages in the order a request meets them, without those that took next to no time.
    pub stages: Vec<Stage>,
}

const CACHES: [(&str, &str); 6] = [
    ("QP contexts, sending", "qpc"),
    ("QP contexts, receiving", "rxc"),
    ("CQ contexts", "cqc"),
    ("work requests", "wqe"),
    ("memory keys", "mpt"),
    ("page translations", "mtt"),
];

const UNITS: [(&str, &str); 6] = [
    ("processing units", "pu"),
    ("send pipelines", "tx"),
    ("receive pipelines", "rx"),
    ("port", "port"),
    ("PCIe to the host", "pcie_up"),
    ("PCIe from the host", "pcie_down"),
];

const STAGES: [(&str, &str); 11] = [
    ("doorbell", "doorbell"),
    ("fetch of the WQE", "wqe_fetch"),
    ("waiting in line", "queue"),
    ("send pipeline", "send"),
    ("fetch of the payload", "payload"),
    ("wire", "wire"),
    ("responder", "respond"),
    ("way back", "return"),
    ("completion", "complete"),
    ("missing QP/CQ context", "context_miss"),
    ("missing translation", "translation_miss"),
];

impl Inside {
    /// Reads it out of a port's counters; `None` where no model has been at work.
    pub fn of(counters: &BTreeMap<String, u64>) -> Option<Self> {
        let value = |name: &str| counters.get(&format!("{PREFIX}{name}")).copied().unwrap_or(0);
        let (now_ps, completed) = (value("now_ps"), value("completed"));
        if now_ps == 0 || completed == 0 {
            return None;
        }
        let caches = CACHES
            .iter()
            .map(|(name, key)| Cache {
                name,
                lookups: value(&format!("{key}_lookups")),
                hits: value(&format!("{key}_hits")),
            })
            .filter(|cache| cache.lookups > 0)
            .collect();
        let units = UNITS
            .iter()
            .map(|(name, key)| Unit { name, busy: value(&format!("{key}_busy_ps")) as f64 / now_ps as f64 })
            .collect();
        let stages = STAGES
            .iter()
            .map(|(name, key)| Stage {
                name,
                ns: value(&format!("stage_{key}_ps")) as f64 / 1000.0 / completed as f64,
            })
            .filter(|stage| stage.ns >= 0.05)
            .collect();
        Some(Self { completed, modelled_ns: now_ps as f64 / 1000.0, caches, units, stages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_request_and_per_modelled_time() {
        let counters: BTreeMap<String, u64> = [
            ("model_now_ps", 4_000_000),
            ("model_completed", 4),
            ("model_qpc_lookups", 10),
            ("model_qpc_hits", 9),
            ("model_pu_busy_ps", 6_000_000),
            ("model_stage_wire_ps", 2_000_000),
            ("tx_packets", 7),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let inside = Inside::of(&counters).unwrap();
        assert_eq!(inside.caches, [Cache { name: "QP contexts, sending", lookups: 10, hits: 9 }]);
        assert_eq!(inside.units[0], Unit { name: "processing units", busy: 1.5 });
        assert_eq!(inside.stages, [Stage { name: "wire", ns: 500.0 }]);
        assert!((inside.modelled_ns - 4000.0).abs() < 1e-9);
    }

    #[test]
    fn without_a_model_there_is_no_inside() {
        assert_eq!(Inside::of(&BTreeMap::new()), None);
        assert_eq!(Inside::of(&[("model_now_ps".to_owned(), 5)].into()), None);
    }

    #[test]
    fn the_names_are_those_of_the_emulated_device() {
        let known: Vec<&str> = rnic_emu::stats::ModelCounter::ALL.iter().map(|c| c.name()).collect();
        let caches = CACHES.iter().flat_map(|(_, key)| [format!("{key}_lookups"), format!("{key}_hits")]);
        let units = UNITS.iter().map(|(_, key)| format!("{key}_busy_ps"));
        let stages = STAGES.iter().map(|(_, key)| format!("stage_{key}_ps"));
        for name in caches.chain(units).chain(stages) {
            assert!(known.contains(&name.as_str()), "the device has no counter {name}");
        }
    }
}
