//! Device counters over time: how fast each moves, and how far it has come since the recording began.

use std::collections::BTreeMap;

use probe_user::model::Model;

/// Counters kept; a device has about sixty per port.
const KEPT: usize = 1 << 14;

type Name = (String, u32, String);

/// First, previous and latest value of every counter.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    all: BTreeMap<Name, Counter>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    first: u64,
    latest: u64,
    latest_ns: u64,
    rate: Option<f64>,
}

impl Counters {
    /// Takes in the counters of a model as of `t_ns`.
    pub fn observe(&mut self, model: &Model, t_ns: u64) {
        for device in model.devices.values() {
            for port in &device.ports {
                for (name, value) in &port.counters {
                    let key = (device.name.clone(), port.number, name.clone());
                    if self.all.len() >= KEPT && !self.all.contains_key(&key) {
                        continue;
                    }
                    let fresh = Counter { first: *value, latest: *value, latest_ns: t_ns, rate: None };
                    let counter = self.all.entry(key).or_insert(fresh);
                    if t_ns > counter.latest_ns {
                        let seconds = (t_ns - counter.latest_ns) as f64 / 1e9;
                        // A counter that went back was reset with its device: nothing can be said for this interval.
                        counter.rate =
                            value.checked_sub(counter.latest).map(|gained| gained as f64 / seconds);
                        (counter.latest, counter.latest_ns) = (*value, t_ns);
                    }
                }
            }
        }
    }

    fn get(&self, device: &str, port: u32, name: &str) -> Option<&Counter> {
        self.all.get(&(device.to_owned(), port, name.to_owned()))
    }

    /// Per second over the last interval.
    pub fn rate(&self, device: &str, port: u32, name: &str) -> Option<f64> {
        self.get(device, port, name)?.rate
    }

    /// How far `value` is beyond the first value seen.
    pub fn gained(&self, device: &str, port: u32, name: &str, value: u64) -> Option<u64> {
        value.checked_sub(self.get(device, port, name)?.first)
    }
}
