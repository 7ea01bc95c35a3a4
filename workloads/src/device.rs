//! Which device a run uses, and of what kind it is.

use crate::emulated;
use crate::error::usage;
use crate::output::note;
use crate::verbs::{Context, DeviceInfo, Port, device_names};
use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What carries out the work requests; decides which effects can be real.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A network adapter.
    Nic,
    /// The kernel's RoCE in software (`rdma_rxe`).
    SoftRoce,
    /// The kernel's iWARP in software (`siw`).
    SoftIwarp,
    /// The emulated RNIC.
    Emulated,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Nic => "NIC",
            DeviceKind::SoftRoce => "soft-RoCE",
            DeviceKind::SoftIwarp => "soft-iWARP",
            DeviceKind::Emulated => "emulated RNIC",
        })
    }
}

/// Vendor ids the kernel's software devices report (`rxe_param.h`, `siw_verbs.h`).
const VENDOR_RXE: u32 = 0xff_ffff;
const VENDOR_SIW: u32 = 0x62_6d74;

fn kind(name: &str, vendor: u32, emulated: bool) -> DeviceKind {
    match vendor {
        _ if emulated && name.starts_with("emu") => DeviceKind::Emulated,
        VENDOR_RXE => DeviceKind::SoftRoce,
        VENDOR_SIW => DeviceKind::SoftIwarp,
        _ => DeviceKind::Nic,
    }
}

/// An open device with an active port.
#[derive(Clone)]
pub struct Device {
    /// Open context.
    pub context: Context,
    /// Limits and identity.
    pub info: DeviceInfo,
    /// The port in use.
    pub port: Port,
    /// What it is.
    pub kind: DeviceKind,
}

/// Name and kind, as JSON output carries them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceLabel {
    /// Device name.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Profile of an emulated device.
    pub profile: Option<String>,
}

impl Device {
    /// Opens the named device, or the first with an active port. `Ok(None)` when none was named and none can be used.
    pub fn choose(wanted: Option<&str>) -> Result<Option<Device>> {
        let names = device_names().context("listing RDMA devices")?;
        if let Some(name) = wanted {
            return Device::open(name, &names).map(Some);
        }
        for name in &names {
            // A device that cannot be opened or whose port is down is passed over: the next may do.
            match Device::open(name, &names) {
                Ok(device) => return Ok(Some(device)),
                Err(error) => note!("passing over {name}: {error:#}"),
            }
        }
        Ok(None)
    }

    fn open(name: &str, names: &[String]) -> Result<Device> {
        let Some(context) = Context::open(name)? else {
            return Err(usage(unknown(name, names)));
        };
        let info = context.info()?;
        let port = context.port(1)?;
        if !port.active {
            bail!(
                "port 1 of device {name:?} is not active; bring its network interface up (ip link set … up) or check \
                 the cable with `rdma link`"
            );
        }
        let kind = kind(name, info.vendor_id, emulated::is_loaded());
        Ok(Device { context, info, port, kind })
    }

    /// Label for output.
    pub fn label(&self) -> DeviceLabel {
        let profile = (self.kind == DeviceKind::Emulated).then(emulated::profile);
        DeviceLabel { name: self.info.name.clone(), kind: self.kind, profile }
    }
}

fn unknown(name: &str, names: &[String]) -> String {
    if names.is_empty() {
        format!(
            "unknown device {name:?}: this machine has no RDMA device; leave --device out to use the emulated one"
        )
    } else {
        format!("unknown device {name:?}: this machine has {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_vendor_and_by_the_preloaded_library() {
        assert_eq!(kind("rxe0", VENDOR_RXE, false), DeviceKind::SoftRoce);
        assert_eq!(kind("siw_lo", VENDOR_SIW, false), DeviceKind::SoftIwarp);
        assert_eq!(kind("mlx5_0", 0x2c9, false), DeviceKind::Nic);
        // The emulated device may present a NIC maker's identity.
        assert_eq!(kind("emu0", 0x2c9, true), DeviceKind::Emulated);
        // A NIC someone renamed is no emulated device while the library is absent.
        assert_eq!(kind("emu0", 0x2c9, false), DeviceKind::Nic);
    }

    #[test]
    fn an_unknown_device_is_answered_with_the_ones_there_are() {
        assert!(unknown("mlx9", &["mlx5_0".into(), "mlx5_1".into()]).contains("mlx5_0, mlx5_1"));
        assert!(unknown("mlx9", &[]).contains("no RDMA device"));
    }
}
