//! Kernel return probes with enough slots.
//!
//! A kernel return probe keeps a slot from entry to return, and by default has as many as twice the processors: of 200
//! threads that register at once most returns are lost. Only an event made through tracefs lets the number be chosen.
//! Such an event outlives its maker, disabled; it carries the maker's pid and start time, and the next profiler removes
//! those whose maker is no more.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::AttachError;
use crate::target::start_ns_of;

const PREFIX: &str = "rdma_probe_";
/// Slots per return probe: calls of one function that may be in progress at once.
const SLOTS: u32 = 4096;

/// The return-probe events of this process; dropping it removes them.
#[derive(Debug)]
pub struct ReturnEvents {
    root: PathBuf,
    group: String,
    made: Vec<String>,
}

impl ReturnEvents {
    /// Finds tracefs and clears leftovers of profilers that were killed.
    ///
    /// # Errors
    /// Where tracefs or its kprobe events are not there, or not for us.
    pub fn new() -> Result<Self, AttachError> {
        let root = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .iter()
            .map(PathBuf::from)
            .find(|root| root.join("kprobe_events").exists())
            .ok_or(AttachError {
                step: "kprobe_events in /sys/kernel/tracing",
                source: io::Error::from_raw_os_error(libc::ENODEV),
            })?;
        let text = fs::read_to_string(root.join("kprobe_events"))
            .map_err(|source| AttachError { step: "reading kprobe_events", source })?;
        for leftover in leftovers(&text, start_ns_of) {
            // Another profiler may clear it at the same time.
            let _ = append(&root, &format!("-:{leftover}"));
        }
        let pid = std::process::id();
        let start = start_ns_of(pid).unwrap_or(0);
        Ok(Self { root, group: format!("{PREFIX}{pid}_{start}"), made: Vec::new() })
    }

    /// Makes the event for one function; returns its number for `perf_event_open`.
    ///
    /// # Errors
    /// The kernel's answer: it has no such function, or takes no probe there.
    pub fn make(&mut self, symbol: &str) -> Result<u64, AttachError> {
        // Compiler-made suffixes (`.isra.0`) are not allowed in event names.
        let plain: String = symbol.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        // `kprobe_profile` leaves the group out: the pid keeps our counts apart from another profiler's.
        let name = format!("{plain}__{}", std::process::id());
        append(&self.root, &format!("r{SLOTS}:{}/{name} {symbol}", self.group))
            .map_err(|source| AttachError { step: "writing kprobe_events", source })?;
        self.made.push(name.clone());
        let id = fs::read_to_string(self.root.join("events").join(&self.group).join(&name).join("id"))
            .map_err(|source| AttachError { step: "reading the event's id", source })?;
        id.trim().parse().map_err(|_| AttachError {
            step: "reading the event's id",
            source: io::ErrorKind::InvalidData.into(),
        })
    }

    /// Returns missed by our events for want of slots, as the kernel counts them.
    pub fn missed(&self) -> u64 {
        fs::read_to_string(self.root.join("kprobe_profile")).map_or(0, |text| missed_in(&text, &self.made))
    }
}

impl Drop for ReturnEvents {
    fn drop(&mut self) {
        for name in &self.made {
            let _ = append(&self.root, &format!("-:{}/{name}", self.group));
        }
    }
}

fn append(root: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(root.join("kprobe_events"))?;
    // In one write: the kernel takes each write as whole commands.
    file.write_all(format!("{line}\n").as_bytes())
}

/// Events of makers that are no more, as `group/name`. `start_of` gives the start time of a living process.
fn leftovers(kprobe_events: &str, start_of: impl Fn(u32) -> Option<u64>) -> Vec<String> {
    kprobe_events
        .lines()
        .filter_map(|line| {
            let event = line.split_ascii_whitespace().next()?.split_once(':')?.1;
            let (pid, start) = event.split_once('/')?.0.strip_prefix(PREFIX)?.split_once('_')?;
            let (pid, start) = (pid.parse().ok()?, start.parse::<u64>().ok()?);
            (start_of(pid) != Some(start)).then(|| event.to_owned())
        })
        .collect()
}

/// The misses that `kprobe_profile` (name, hits, misses) tells of the named events.
fn missed_in(kprobe_profile: &str, names: &[String]) -> u64 {
    kprobe_profile
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let name = fields.next()?;
            names.iter().any(|ours| ours == name).then(|| fields.nth(1)?.parse::<u64>().ok())?
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_dead_makers_and_of_reused_pids_are_leftovers() {
        let text = "r4096:rdma_probe_10_500/ib_umem_get ib_umem_get\n\
                    r4096:rdma_probe_11_500/ib_umem_get ib_umem_get\n\
                    r4096:rdma_probe_12_500/ib_umem_get ib_umem_get\n\
                    p:kprobes/mine do_sys_open\n\
                    r4096:rdma_probe_x/odd odd\n";
        // 10 lives, 11 is another process by now, 12 is gone.
        let start_of = |pid| match pid {
            10 => Some(500),
            11 => Some(900),
            _ => None,
        };
        assert_eq!(
            leftovers(text, start_of),
            ["rdma_probe_11_500/ib_umem_get", "rdma_probe_12_500/ib_umem_get"]
        );
    }

    #[test]
    fn misses_are_summed_over_our_own_events() {
        let text = "  ib_umem_get   2000   7\n  other   1   100\n  rxe_reg_user_mr 5 3\n";
        let ours = ["ib_umem_get".to_owned(), "rxe_reg_user_mr".to_owned()];
        assert_eq!(missed_in(text, &ours), 10);
        assert_eq!(missed_in("garbage\n\n", &ours), 0);
    }
}
