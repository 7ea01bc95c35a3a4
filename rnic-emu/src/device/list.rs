//! The `ibv_device` structs programs are given.

use super::config::{Config, ENV_PROFILE};
use crate::abi::{consts::*, ibv_device};
use crate::model::Profile;
use std::ffi::CStr;
use std::sync::OnceLock;

/// An `ibv_device` and the room behind it. Provider libraries cast a device to their own longer struct and compare a
/// pointer in it (`mlx5dv_is_supported` does): they must find zeroes there, not another object.
#[repr(C)]
pub struct Device {
    ibv: ibv_device,
    room: [usize; 64],
}

static DEVICES: OnceLock<Option<Vec<Device>>> = OnceLock::new();
static CONFIG: OnceLock<Config> = OnceLock::new();
static PROFILE: OnceLock<Option<Profile>> = OnceLock::new();

/// The devices, made on first use; none if the environment asks for something impossible (said once on stderr).
pub fn devices() -> &'static [Device] {
    let made = DEVICES.get_or_init(|| match settings() {
        Ok((config, profile)) => {
            let (config, _) = (CONFIG.get_or_init(|| config), PROFILE.get_or_init(|| profile));
            Some((0..config.devices).map(Device::new).collect())
        }
        Err(e) => {
            eprintln!("rnic-emu: no emulated device: {e}");
            None
        }
    });
    made.as_deref().unwrap_or(&[])
}

fn settings() -> Result<(Config, Option<Profile>), String> {
    let config = Config::from_env().map_err(|e| e.to_string())?;
    let profile = match std::env::var(ENV_PROFILE) {
        Ok(name) if !name.is_empty() => {
            Some(Profile::resolve(&name).map_err(|e| format!("{ENV_PROFILE}: {e}"))?)
        }
        _ => None,
    };
    Ok((config, profile))
}

/// The timing profile the devices were made with, if any.
pub fn profile() -> Option<&'static Profile> {
    devices();
    PROFILE.get()?.as_ref()
}

/// The settings the devices were made with.
pub fn config() -> Config {
    devices();
    CONFIG.get().copied().unwrap_or_default()
}

/// Which of our devices `device` is, if any.
pub fn index_of(device: *const ibv_device) -> Option<usize> {
    // A program that never asked for the list cannot hold one of ours.
    let made = DEVICES.get()?.as_deref()?;
    made.iter().position(|d| std::ptr::eq(&d.ibv, device))
}

impl Device {
    fn new(index: usize) -> Self {
        let mut ibv = ibv_device {
            _ops: [0; 2],
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        put(&mut ibv.name, &format!("emu{index}"));
        put(&mut ibv.dev_name, &format!("uverbs-emu{index}"));
        put(&mut ibv.dev_path, &format!("/sys/class/infiniband_verbs/uverbs-emu{index}"));
        put(&mut ibv.ibdev_path, &format!("/sys/class/infiniband/emu{index}"));
        Self { ibv, room: [0; 64] }
    }

    /// The pointer handed to programs. They never write through it.
    pub fn ibv(&self) -> *mut ibv_device {
        debug_assert_eq!(self.room[0], 0);
        (&raw const self.ibv).cast_mut()
    }

    /// Its name, `emu0` and on.
    pub fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.ibv.name).unwrap_or(c"emu")
    }
}

fn put(field: &mut [u8], text: &str) {
    field[..text.len()].copy_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_devices_are_recognised_and_nothing_else_is() {
        let ours = devices()[0].ibv();
        assert_eq!(index_of(ours), Some(0));
        assert_eq!(index_of(std::ptr::null()), None);
        assert_eq!(devices()[0].name(), c"emu0");
    }
}
