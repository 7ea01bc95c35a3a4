//! What the launcher asks for, carried to the preloaded library in environment variables.

use super::speed::Speed;
use crate::stats::MAX_DEVICES;

/// Environment variable with the number of devices.
pub const ENV_DEVICES: &str = "RNIC_EMU_DEVICES";
/// Environment variable with the part ID devices present.
pub const ENV_PART_ID: &str = "RNIC_EMU_PART_ID";

/// Environment variable with the timing profile: a built-in name, or a path.
pub const ENV_PROFILE: &str = "RNIC_EMU_PROFILE";
/// Environment variable with the speed modelled time runs at.
pub const ENV_SPEED: &str = "RNIC_EMU_SPEED";

/// Settings of the emulated devices of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// How many devices there are: `emu0` and on.
    pub devices: usize,
    /// `vendor_part_id`: programs choose code paths by it (perftest posts through the extended API on 4115–4129).
    pub part_id: u32,
    /// Modelled time against the real clock, where a profile is given.
    pub speed: Speed,
}

/// The part ID devices present unless told otherwise: one no program knows.
pub const DEFAULT_PART_ID: u32 = 0x0e31;

impl Default for Config {
    fn default() -> Self {
        Self { devices: 1, part_id: DEFAULT_PART_ID, speed: Speed::default() }
    }
}

/// A value that cannot be used, and what would be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{name}: \"{value}\" is not {wanted}")]
pub struct BadValue {
    /// The variable or option.
    pub name: String,
    /// What it was set to.
    pub value: String,
    /// What it may be.
    pub wanted: String,
}

impl Config {
    /// Settings from a lookup of environment variables.
    ///
    /// # Errors
    /// [`BadValue`] names the first variable with an unusable value.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, BadValue> {
        let mut config = Self::default();
        if let Some(value) = get(ENV_DEVICES) {
            config.devices = parse_devices(ENV_DEVICES, &value)?;
        }
        if let Some(value) = get(ENV_PART_ID) {
            config.part_id = parse_part_id(ENV_PART_ID, &value)?;
        }
        if let Some(value) = get(ENV_SPEED) {
            config.speed = Speed::parse(ENV_SPEED, &value)?;
        }
        Ok(config)
    }

    /// Settings from this process' environment.
    ///
    /// # Errors
    /// As [`Self::from_lookup`].
    pub fn from_env() -> Result<Self, BadValue> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }
}

/// A number of devices.
///
/// # Errors
/// [`BadValue`] unless it is 1 to 16.
pub fn parse_devices(name: &str, value: &str) -> Result<usize, BadValue> {
    value.parse().ok().filter(|n| (1..=MAX_DEVICES).contains(n)).ok_or_else(|| BadValue {
        name: name.into(),
        value: value.into(),
        wanted: format!("a number of devices from 1 to {MAX_DEVICES}"),
    })
}

/// A part ID, decimal or with 0x.
///
/// # Errors
/// [`BadValue`] unless it is a 32-bit number.
pub fn parse_part_id(name: &str, value: &str) -> Result<u32, BadValue> {
    let parsed = match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => value.parse(),
    };
    parsed.map_err(|_| BadValue {
        name: name.into(),
        value: value.into(),
        wanted: "a device part ID such as 4123 or 0x101b".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_set_means_one_device_with_an_unknown_part_id() {
        assert_eq!(Config::from_lookup(|_| None), Ok(Config::default()));
    }

    #[test]
    fn bad_values_are_named_with_the_fix() {
        for (value, ok) in
            [("1", true), ("16", true), ("0", false), ("17", false), ("two", false), ("", false)]
        {
            let r = Config::from_lookup(|n| (n == ENV_DEVICES).then(|| value.to_string()));
            assert_eq!(r.is_ok(), ok, "{value:?}");
            if let Err(e) = r {
                assert!(e.to_string().contains(&format!("\"{value}\"")), "{e}");
            }
        }
        assert_eq!(parse_part_id("x", "0x101b"), Ok(4123));
        assert!(parse_part_id("x", "cx5").is_err());
    }
}
