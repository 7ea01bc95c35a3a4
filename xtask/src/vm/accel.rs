//! Choosing between KVM and emulation.
//!
//! `/dev/kvm` may exist and open on a machine whose processor has no virtualisation left to give (a guest without
//! nesting): a virtual machine started there hangs at its first instruction and burns a core. So KVM is taken only
//! where the processor flag is there too, and only for as long as no boot under it has failed since the host started.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use anyhow::Result;

use crate::paths;

/// How the guest's instructions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The processor runs them.
    Kvm,
    /// QEMU translates them.
    Tcg,
}

impl Accel {
    /// QEMU's arguments for it.
    pub fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

/// What this machine offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// The processor flags show vmx or svm.
    pub flag: bool,
    /// `/dev/kvm` opens for reading and writing.
    pub device: bool,
    /// A boot under KVM has failed since the host started.
    pub failed: bool,
}

/// The decision.
pub fn choose(offer: Offer) -> Accel {
    if offer.flag && offer.device && !offer.failed { Accel::Kvm } else { Accel::Tcg }
}

/// Looks at this machine.
pub fn offer() -> Offer {
    let flag = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| has_flag(&text));
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    Offer { flag, device, failed: marker().is_ok_and(|path| path.exists()) }
}

/// Remembers, until the host restarts, that a boot under KVM failed.
pub fn remember_failure() -> Result<()> {
    let path = marker()?;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, "")?;
    Ok(())
}

fn marker() -> Result<PathBuf> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(paths::cache()?.join(format!("kvm-failed-{}", boot.trim())))
}

fn has_flag(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .filter_map(|line| line.split_once(':'))
        .any(|(_, flags)| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_needs_the_flag_and_the_device_and_no_failed_boot() {
        let good = Offer { flag: true, device: true, failed: false };
        assert_eq!(choose(good), Accel::Kvm);
        assert_eq!(choose(Offer { flag: false, ..good }), Accel::Tcg);
        assert_eq!(choose(Offer { device: false, ..good }), Accel::Tcg);
        assert_eq!(choose(Offer { failed: true, ..good }), Accel::Tcg);
    }

    #[test]
    fn flags_are_whole_words_of_the_flags_line() {
        assert!(has_flag("model name : x\nflags\t\t: fpu vmx sse\n"));
        assert!(has_flag("flags : svm"));
        assert!(!has_flag("flags : fpu svme vmxnet\n"));
        assert!(!has_flag("vmx flags : fpu vmx\n"));
        assert!(!has_flag("bugs : vmx\n"));
        assert!(!has_flag(""));
    }
}
