//! A comparison measured in a process of its own, because the emulated device has to take its time differently for it: not at
//! all where the host's own effects are measured, a NIC's where the device's are.

use crate::bench::Bench;
use crate::device::DeviceKind;
use crate::emulated::{self, Settings};
use crate::error::usage;
use crate::interrupt;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::suite::{Comparison, Timing};
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
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
pub fn compare(
    bench: &Bench,
    name: &str,
    at: usize,
    comparison: &Comparison,
    progress: &mut Progress,
) -> Result<Outcome> {
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let output = folder.path().join("outcome.json");
    let mut command = Command::new(env::current_exe().context("finding this program")?);
    command.args(["compare", name, "--json", "--progress=json", "--device", &bench.device().info.name]);
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
    let said = listen(child.0.stderr.take());
    let (status, last) = child.wait(&said, progress)?;
    if !status.success() {
        let line = last.as_deref().unwrap_or("it said nothing");
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
    /// Waits for its end and passes its steps on; returns the last line that was none as well.
    fn wait(
        &mut self,
        said: &Receiver<String>,
        progress: &mut Progress,
    ) -> Result<(ExitStatus, Option<String>)> {
        let mut last = None;
        loop {
            match said.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(step) => progress.step(&step),
                    Err(_) => last = Some(line),
                },
                // Its end is known when it has said all it had to say.
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok((self.0.wait().context("waiting for a comparison")?, last));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            interrupt::check()?;
        }
    }
}

/// The lines of a child's standard error, as they come.
fn listen(stream: Option<ChildStderr>) -> Receiver<String> {
    let (sender, lines) = mpsc::sync_channel(64);
    std::thread::spawn(move || {
        for line in stream.into_iter().flat_map(|s| BufReader::new(s).lines()).map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
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
