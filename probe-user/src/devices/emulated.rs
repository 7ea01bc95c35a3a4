//! The emulated RNIC, which the kernel does not know: which processes have it, and what its devices are called.

use std::fs;

use crate::sample::{Device, Port};

/// File name of the library that brings the emulated device.
const LIBRARY: &str = "librnic_emu.so";

/// Environment variable that says how many devices there are.
const ENV_DEVICES: &str = "RNIC_EMU_DEVICES";

/// More than the library makes.
const MAX_DEVICES: usize = 64;

/// The emulated devices of a process: none where it does not have the library, or cannot be looked into.
pub fn emulated_devices_of(pid: u32) -> Vec<Device> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    if !maps.lines().any(|line| line.ends_with(LIBRARY)) {
        return Vec::new();
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    named(&environment)
}

fn named(environment: &[u8]) -> Vec<Device> {
    let variables = environment.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    let number = variables.filter_map(|word| word.split_once('=')).find(|(name, _)| *name == ENV_DEVICES);
    let number = number.and_then(|(_, value)| value.parse().ok()).unwrap_or(1).min(MAX_DEVICES);
    let port = || Port {
        number: 1,
        state: "ACTIVE".to_owned(),
        link_layer: "Ethernet".to_owned(),
        // What its ports answer to ibv_query_port.
        active_mtu_bytes: 4096,
        ..Port::default()
    };
    (0..number)
        .map(|index| Device {
            name: format!("emu{index}"),
            driver: "rnic-emu".to_owned(),
            emulated: true,
            ports: vec![port()],
            ..Device::default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_device_unless_the_environment_says_otherwise() {
        let names = |environment: &[u8]| named(environment).into_iter().map(|d| d.name).collect::<Vec<_>>();
        assert_eq!(names(b"PATH=/bin\0"), ["emu0"]);
        assert_eq!(names(b"A=b\0RNIC_EMU_DEVICES=2\0"), ["emu0", "emu1"]);
        assert_eq!(names(b"RNIC_EMU_DEVICES=many\0\xff\xfe\0"), ["emu0"]);
        assert_eq!(names(b"RNIC_EMU_DEVICES=9999999\0").len(), MAX_DEVICES);
        assert!(named(b"").iter().all(|device| device.emulated));
    }

    #[test]
    fn a_process_without_the_library_has_none() {
        assert!(emulated_devices_of(u32::MAX).is_empty());
    }
}
