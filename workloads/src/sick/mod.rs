//! Small verbs programs, each with exactly one fault, and its healthy twin: what a diagnosis must find, and be silent
//! on. `rdma-workload sick NAME [--healthy]`.
//!
//! A program is named after the rule that finds it. Adding one means adding a file and its line in [`ALL`].

mod kit;

macro_rules! programs {
    ($($module:ident),+ $(,)?) => {
        $(mod $module;)+
        /// All programs, by name.
        pub const ALL: &[&Program] = &[$(&$module::PROGRAM),+];
    };
}

programs! {
    ack_timeout_long,
    ack_timeout_never,
    ack_timeout_short,
    adjacent_wrs,
    atomics_hot,
    busy_poll_idle,
    cq_per_qp,
    cq_too_small,
    event_lost_wakeup,
    events_at_high_rate,
    everything_signalled,
    fork_protection_unneeded,
    host_gap_dominates,
    hugepages_safe_slow,
    latency_with_loss,
    local_protection_error,
    many_qps,
    map_count_near,
    memlock_near,
    mr_leak,
    nothing_signalled,
    one_queue_pair,
    one_wr_per_post,
    path_mtu_small,
    qp_change_failed,
    qp_churn,
    qp_in_error,
    qp_leak,
    qps_above_units,
    queue_creation_failed,
    random_beyond_reach,
    reads_and_writes_mixed,
    reads_one_at_a_time,
    receiver_not_ready,
    receives_after_rtr,
    registration_failed,
    registration_hot,
    registration_per_connection,
    registration_per_domain,
    registration_repeated,
    registration_small_pages,
    remote_access_error,
    remote_invalid_request,
    requests_flushed,
    retry_exceeded,
    rnr_retry_exceeded,
    rnr_retry_zero,
    rnr_timer_zero,
    send_queue_full,
    small_not_inlined,
    threads_share_qp,
    unaligned_payload,
    unsignalled_run_long,
}

use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::device::Device;
use crate::emulated::Settings;
use crate::error::usage;

use kit::Kit;

/// What moves the data, where the fault costs nothing otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Any device.
    Anything,
    /// A NIC, or the emulated device with a NIC's timing.
    Timing,
}

/// A sick program.
pub struct Program {
    /// Its name: that of the rule that finds it.
    pub name: &'static str,
    /// What it does wrong.
    pub fault: &'static str,
    /// What its twin does instead.
    pub healthy: &'static str,
    /// What it runs on.
    pub needs: Needs,
    /// A variable of the environment that makes the fault, and its value.
    pub environment: Option<(&'static str, &'static str)>,
    /// The program.
    pub run: fn(&Kit, bool) -> Result<()>,
}

impl Program {
    /// Settings of the emulated device.
    pub fn settings(&self) -> Settings {
        // A 64th of a NIC's speed: what two processors can keep up with.
        let speed = (self.needs == Needs::Timing).then(|| "1/64".to_owned());
        Settings { profile: None, speed }
    }
}

/// The program of that name.
///
/// # Errors
/// A usage error that lists those there are.
pub fn find(name: &str) -> Result<&'static Program> {
    ALL.iter().copied().find(|program| program.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|program| program.name).collect();
        usage(format!("unknown sick program {name:?}; there are {}", names.join(", ")))
    })
}

/// All programs, one a line.
pub fn list() -> String {
    let mut text = String::new();
    for program in ALL {
        let _ = writeln!(text, "{:<28} {}", program.name, program.fault);
    }
    text
}

/// Set once the environment is as the program needs it.
const PREPARED: &str = "RDMA_WORKLOAD_SICK";

/// Runs a program, or its twin, on the device that `open` gives.
///
/// # Errors
/// Whatever keeps it from running; a fault it has on purpose is none.
pub fn run(
    program: &Program,
    healthy: bool,
    seconds: Duration,
    open: impl FnOnce() -> Result<Device>,
) -> Result<()> {
    if let Some((name, value)) = program.environment.filter(|_| !healthy)
        && std::env::var_os(PREPARED).is_none()
    {
        let this = std::env::current_exe().context("finding this program")?;
        let error =
            Command::new(this).args(std::env::args_os().skip(1)).env(name, value).env(PREPARED, "1").exec();
        bail!("starting over with {name} set: {error}");
    }
    (program.run)(&Kit::new(open()?, seconds), healthy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        let names: Vec<_> = ALL.iter().map(|program| program.name).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(names, sorted);
    }

    #[test]
    fn a_program_that_does_not_exist_is_answered_with_those_that_do() {
        let error = find("cq-per-pq").err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("cq-per-pq") && error.contains("cq-per-qp"));
    }
}
