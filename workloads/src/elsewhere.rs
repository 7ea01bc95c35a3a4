//! A comparison measured in a process of its own, because the emulated device has to take its time differently for it: not at
//! all where the host's own effects are measured, a NIC's where the device's are.

use crate::bench::Bench;
use crate::device::DeviceKind;
use crate::emulated::{self, Settings};
use crate::error::usage;
use crate::interrupt;
use crate::outcome::Outcome;
use crate::suite::{Comparison, Timing};
use anyhow::{Context as _, Result, bail};
use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fs};

/// Whether this process's device is timed otherwise than the comparison needs.
pub fn needed(bench: &Bench, comparison: &Comparison) -> bool {
    bench.device().kind == DeviceKind::Emulated
        && bench.options.speed.is_none()
        && !bench.is_remote()
        && !fits(emulated::speed().as_deref(), comparison.timing)
}

/// Whether a device at that speed will do. Any scale serves where only ratios matter.
fn fits(speed: Option<&str>, timing: Timing) -> bool {
    match timing {
        Timing::Untimed => speed.is_none(),
        Timing::Scaled => speed.is_some(),
        Timing::Real => speed == Some("1"),
    }
}

/// Runs one comparison, counted from 0, in a process whose device is timed as it needs.
pub fn compare(bench: &Bench, name: &str, at: usize, comparison: &Comparison) -> Result<Outcome> {
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let output = folder.path().join("outcome.json");
    let mut command = Command::new(env::current_exe().context("finding this program")?);
    command.args(["compare", name, "--json", "--device", &bench.device().info.name]);
    command
        .arg(format!("--comparison={}", at + 1))
        .args(bench.options.arguments())
        .arg("--output")
        .arg(&output);
    let settings =
        Settings { profile: Some(emulated::profile()), speed: comparison.timing.speed().map(str::to_owned) };
    settings.apply(&mut command);
    let mut child =
        Guarded(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("starting over")?);
    let status = child.wait()?;
    if !status.success() {
        let mut said = String::new();
        if let Some(mut stream) = child.0.stderr.take() {
            // What it says is a line; whatever else comes is not worth waiting for.
            let _ = stream.read_to_string(&mut said);
        }
        let line = said.lines().last().unwrap_or("it said nothing");
        let line = line.strip_prefix("rdma-workload: ").unwrap_or(line).to_owned();
        if status.code() == Some(2) {
            return Err(usage(line));
        }
        bail!("{line}");
    }
    let text = fs::read(&output).context("reading what a comparison came to")?;
    serde_json::from_slice(&text).context("reading what a comparison came to")
}

/// A child that does not outlive an interrupted run.
struct Guarded(Child);

impl Guarded {
    fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait().context("waiting for a comparison")? {
                return Ok(status);
            }
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // Asked, not killed: it has huge pages to give back.
            // SAFETY: our own child, not waited for yet.
            unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_effects_need_an_untimed_device_and_nic_effects_a_timed_one() {
        assert!(fits(None, Timing::Untimed) && !fits(Some("1/64"), Timing::Untimed));
        assert!(
            !fits(None, Timing::Scaled)
                && fits(Some("1/8"), Timing::Scaled)
                && fits(Some("1"), Timing::Scaled)
        );
        assert!(
            fits(Some("1"), Timing::Real) && !fits(Some("1/64"), Timing::Real) && !fits(None, Timing::Real)
        );
    }
}
