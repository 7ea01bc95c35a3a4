//! What changed of the devices from one sample to the next.

use std::collections::BTreeMap;

use crate::sample::{Device, Port};

/// Remembers counters and port states.
#[derive(Debug, Default)]
pub struct Changes {
    last: BTreeMap<(String, u32), (String, BTreeMap<String, u64>)>,
}

impl Changes {
    /// Of `devices`, the ports whose state or counters differ from the call before, and of these the counters that do.
    pub fn since(&mut self, devices: Vec<Device>) -> Vec<Device> {
        devices.into_iter().filter_map(|device| self.of_device(device)).collect()
    }

    fn of_device(&mut self, device: Device) -> Option<Device> {
        let name = device.name.clone();
        let ports: Vec<Port> = device.ports.iter().filter_map(|port| self.of_port(&name, port)).collect();
        (!ports.is_empty()).then_some(Device { ports, ..device })
    }

    fn of_port(&mut self, device: &str, port: &Port) -> Option<Port> {
        let key = (device.to_owned(), port.number);
        let now = (port.state.clone(), port.counters.clone());
        let before = self.last.insert(key, now).unwrap_or_default();
        let counters: BTreeMap<String, u64> = port
            .counters
            .iter()
            .filter(|(name, value)| before.1.get(*name) != Some(value))
            .map(|(name, value)| (name.clone(), *value))
            .collect();
        (!counters.is_empty() || before.0 != port.state).then(|| Port { counters, ..port.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(state: &str, sent: u64) -> Vec<Device> {
        let counters = [("sent".to_owned(), sent), ("dropped".to_owned(), 0)].into();
        let port = Port { number: 1, state: state.to_owned(), counters, ..Port::default() };
        vec![Device { name: "rxe0".to_owned(), ports: vec![port], ..Device::default() }]
    }

    #[test]
    fn only_what_changed_is_told() {
        let mut changes = Changes::default();
        assert_eq!(changes.since(device("ACTIVE", 1)), device("ACTIVE", 1));
        assert!(changes.since(device("ACTIVE", 1)).is_empty());
        let told = changes.since(device("ACTIVE", 5));
        assert_eq!(told[0].ports[0].counters, [("sent".to_owned(), 5)].into());
        let told = changes.since(device("DOWN", 5));
        assert_eq!((told[0].ports[0].state.as_str(), told[0].ports[0].counters.len()), ("DOWN", 0));
    }
}
