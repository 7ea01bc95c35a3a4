//! From what the kernel answered to a verdict a person can act on.

use std::io;

use super::LoadError;
use crate::sample::Verdict;

/// What went wrong while a probe was put in place.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct AttachError {
    /// The step that failed: a system call, or the file it concerned.
    pub step: &'static str,
    /// The system's answer.
    pub source: io::Error,
}

/// What else the verdict depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Circumstances {
    /// Effective capabilities (`CapEff` of `/proc/self/status`).
    pub capabilities: u64,
    /// `kernel.perf_event_paranoid`, where it could be read.
    pub perf_event_paranoid: Option<i64>,
    /// `kernel.unprivileged_bpf_disabled`, where it could be read.
    pub unprivileged_bpf_disabled: Option<i64>,
    /// True under kernel lockdown of the level `confidentiality`, which forbids reading kernel memory.
    pub locked_down: bool,
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

impl Circumstances {
    /// Reads them of this process and host.
    pub fn read() -> Self {
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse().ok();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let capabilities = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or(0);
        let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
        Self {
            capabilities,
            perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
            unprivileged_bpf_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
            locked_down: lockdown.contains("[confidentiality]"),
        }
    }

    fn has(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 != 0
    }

    /// What is missing to load and attach, in words; `None` when nothing is.
    pub fn missing(&self) -> Option<String> {
        if self.locked_down {
            return Some(
                "kernel lockdown is in the mode 'confidentiality', which forbids tracing".to_owned(),
            );
        }
        if self.has(CAP_SYS_ADMIN) {
            return None;
        }
        let absent: Vec<_> = [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")]
            .into_iter()
            .filter(|(capability, _)| !self.has(*capability))
            .map(|(_, name)| name)
            .collect();
        if absent.is_empty() {
            return None;
        }
        let mut text = format!("{} (or CAP_SYS_ADMIN): run as root", absent.join(" and "));
        if let Some(level) = self.unprivileged_bpf_disabled.filter(|level| *level != 0) {
            text += &format!("; kernel.unprivileged_bpf_disabled is {level}");
        }
        if let Some(level) = self.perf_event_paranoid.filter(|level| *level > 1) {
            text += &format!("; kernel.perf_event_paranoid is {level}");
        }
        Some(text)
    }
}

/// The verdict on a probe that could not be attached.
pub fn verdict_of(error: &AttachError, circumstances: &Circumstances) -> Verdict {
    match error.source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Verdict::Denied {
            missing: circumstances.missing().unwrap_or_else(|| {
                format!(
                    "{} was refused although the capabilities are there: a security module forbids it",
                    error.step
                )
            }),
        },
        Some(libc::ENOENT) => {
            Verdict::NotHere { why: format!("{}: the kernel knows no such place", error.step) }
        }
        Some(libc::EOPNOTSUPP | libc::ENODEV | libc::ENOSYS) => {
            Verdict::NotHere { why: format!("this kernel does not offer it ({error})") }
        }
        // Blacklisted for probes, or optimised into something a probe cannot sit in.
        Some(libc::EINVAL | libc::EILSEQ | libc::EADDRNOTAVAIL) => {
            Verdict::NotHere { why: format!("the kernel takes no probe there ({error})") }
        }
        _ => Verdict::Broken { report: error.to_string() },
    }
}

/// The verdict on every probe where the programs could not be loaded.
pub fn verdict_on_loading(error: &LoadError) -> Verdict {
    match error {
        LoadError::Denied(text) => Verdict::Denied {
            missing: Circumstances::read().missing().unwrap_or_else(|| {
                format!("{text}: the capabilities are there, so a security module forbids it")
            }),
        },
        LoadError::Object { .. } | LoadError::Broken(_) => Verdict::Broken { report: error.to_string() },
        LoadError::PidNamespace => Verdict::NotHere { why: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(errno: i32) -> AttachError {
        AttachError { step: "perf_event_open", source: io::Error::from_raw_os_error(errno) }
    }

    #[test]
    fn an_ordinary_user_is_told_both_capabilities_and_the_sysctls() {
        let circumstances = Circumstances {
            perf_event_paranoid: Some(3),
            unprivileged_bpf_disabled: Some(2),
            ..Circumstances::default()
        };
        let Verdict::Denied { missing } = verdict_of(&failed(libc::EPERM), &circumstances) else {
            panic!("not denied")
        };
        for part in ["CAP_BPF", "CAP_PERFMON", "unprivileged_bpf_disabled is 2", "perf_event_paranoid is 3"] {
            assert!(missing.contains(part), "{missing}");
        }
    }

    #[test]
    fn only_what_is_missing_is_named() {
        let circumstances = Circumstances { capabilities: 1 << CAP_BPF, ..Circumstances::default() };
        let missing = circumstances.missing().unwrap();
        assert!(missing.contains("CAP_PERFMON") && !missing.contains("CAP_BPF and"), "{missing}");
        let root = Circumstances { capabilities: 1 << CAP_SYS_ADMIN, ..Circumstances::default() };
        assert_eq!(root.missing(), None);
    }

    #[test]
    fn lockdown_is_named_even_to_root() {
        let circumstances =
            Circumstances { capabilities: u64::MAX, locked_down: true, ..Circumstances::default() };
        assert!(circumstances.missing().unwrap().contains("lockdown"));
    }

    #[test]
    fn an_absent_place_is_not_a_defect_but_the_unexpected_is() {
        let root = Circumstances { capabilities: u64::MAX, ..Circumstances::default() };
        assert!(matches!(verdict_of(&failed(libc::ENOENT), &root), Verdict::NotHere { .. }));
        assert!(matches!(verdict_of(&failed(libc::ENOMEM), &root), Verdict::Broken { .. }));
        let Verdict::Denied { missing } = verdict_of(&failed(libc::EPERM), &root) else {
            panic!("not denied")
        };
        assert!(missing.contains("security module"), "{missing}");
    }
}
