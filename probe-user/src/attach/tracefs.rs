//! Events made through tracefs, for what perf's own cannot do.
//!
//! A kernel return probe keeps a slot from entry to return, and by default has as many as twice the processors: of 200
//! threads that register at once most returns are lost. Only an event of tracefs lets the number be chosen.
//!
//! A place of a file where probes come and go: of perf's own events each is by itself, and for every one that is closed, and
//! every program that is taken off one, the kernel waits up to a tenth of a second, one after the other, while programs are
//! hit at those that come later. An event of tracefs can be open several times: one that nobody hits stays and has the
//! program, those that are hit come and go beside it without a wait.
//!
//! Such events outlive their maker, disabled; they carry the maker's pid and start time, and the next profiler removes
//! those whose maker is no more.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::AttachError;
use super::perf::{Link, attach_to_hidden, open_event};
use crate::target::start_ns_of;

const PREFIX: &str = "rdma_probe_";
/// Slots per return probe: calls of one function that may be in progress at once.
const SLOTS: u32 = 4096;

/// A list of events in tracefs, and what is told where it does not do.
#[derive(Debug)]
struct List {
    file: &'static str,
    finding: &'static str,
    reading: &'static str,
    writing: &'static str,
}

/// In the kernel.
const KERNEL: List = List {
    file: "kprobe_events",
    finding: "kprobe_events in /sys/kernel/tracing",
    reading: "reading kprobe_events",
    writing: "writing kprobe_events",
};
/// In files.
const FILES: List = List {
    file: "uprobe_events",
    finding: "uprobe_events in /sys/kernel/tracing",
    reading: "reading uprobe_events",
    writing: "writing uprobe_events",
};

/// The events of this process in one list.
#[derive(Debug)]
struct Own {
    root: PathBuf,
    list: List,
    group: String,
}

impl Own {
    /// Finds the list and clears it of what profilers left that were killed.
    fn find(list: List) -> Result<Self, AttachError> {
        let root = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .iter()
            .map(PathBuf::from)
            .find(|root| root.join(list.file).exists())
            .ok_or(AttachError { step: list.finding, source: io::Error::from_raw_os_error(libc::ENODEV) })?;
        let text = fs::read_to_string(root.join(list.file))
            .map_err(|source| AttachError { step: list.reading, source })?;
        let pid = std::process::id();
        let group = format!("{PREFIX}{pid}_{}", start_ns_of(pid).unwrap_or(0));
        let own = Self { root, list, group };
        for leftover in leftovers(&text, start_ns_of) {
            // Another profiler may clear it at the same time.
            let _ = own.append(&format!("-:{leftover}"));
        }
        Ok(own)
    }

    /// Makes an event of a kind (`p`, `r4096`) at a place; returns its number for `perf_event_open`.
    fn make(&self, kind: &str, name: &str, place: &str) -> Result<u64, AttachError> {
        self.append(&format!("{kind}:{}/{name} {place}", self.group))
            .map_err(|source| AttachError { step: self.list.writing, source })?;
        const STEP: &str = "reading the event's id";
        let id = fs::read_to_string(self.root.join("events").join(&self.group).join(name).join("id"))
            .map_err(|source| AttachError { step: STEP, source })?;
        id.trim().parse().map_err(|_| AttachError { step: STEP, source: io::ErrorKind::InvalidData.into() })
    }

    fn remove(&self, name: &str) {
        let _ = self.append(&format!("-:{}/{name}", self.group));
    }

    fn append(&self, line: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(self.root.join(self.list.file))?;
        // In one write: the kernel takes each write as whole commands.
        file.write_all(format!("{line}\n").as_bytes())
    }
}

/// The return-probe events of this process; dropping it removes them.
#[derive(Debug)]
pub struct ReturnEvents {
    own: Own,
    made: Vec<String>,
}

impl ReturnEvents {
    /// Finds tracefs and clears leftovers of profilers that were killed.
    ///
    /// # Errors
    /// Where tracefs or its kprobe events are not there, or not for us.
    pub fn new() -> Result<Self, AttachError> {
        Ok(Self { own: Own::find(KERNEL)?, made: Vec::new() })
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
        let id = self.own.make(&format!("r{SLOTS}"), &name, symbol);
        // One whose number cannot be read is there all the same.
        self.made.push(name);
        id
    }

    /// Returns missed by our events for want of slots, as the kernel counts them.
    pub fn missed(&self) -> u64 {
        fs::read_to_string(self.own.root.join("kprobe_profile"))
            .map_or(0, |text| missed_in(&text, &self.made))
    }
}

impl Drop for ReturnEvents {
    fn drop(&mut self) {
        self.made.iter().for_each(|name| self.own.remove(name));
    }
}

/// Places of files where probes of this process come and go.
#[derive(Debug)]
pub struct FileEvents {
    own: Arc<Own>,
    made: AtomicU32,
}

impl FileEvents {
    /// Finds tracefs and clears leftovers of profilers that were killed.
    ///
    /// # Errors
    /// Where tracefs or its uprobe events are not there, or not for us.
    pub fn new() -> Result<Self, AttachError> {
        Ok(Self { own: Arc::new(Own::find(FILES)?), made: AtomicU32::new(0) })
    }

    /// Makes the event of a place with its program; nothing hits it yet. `path` must name the file through a descriptor
    /// (`/proc/self/fd/N`) where the file itself may be replaced.
    ///
    /// # Errors
    /// [`AttachError`] with the kernel's answer.
    pub fn make(
        &self,
        program: BorrowedFd<'_>,
        path: &str,
        offset: u64,
        returns: bool,
        cookie: u64,
    ) -> Result<FileEvent, AttachError> {
        let name = format!("place_{}", self.made.fetch_add(1, Ordering::Relaxed));
        let kind = if returns { "r" } else { "p" };
        let id = self.own.make(kind, &name, &format!("{path}:{offset:#x}"));
        // From here on it is removed however this goes on.
        let mut event = FileEvent { own: Arc::clone(&self.own), name, id: 0, hidden: None };
        event.id = id?;
        event.hidden = Some(attach_to_hidden(program, event.id, cookie)?);
        Ok(event)
    }
}

/// A place of a file where probes come and go; dropping it removes its event.
#[derive(Debug)]
pub struct FileEvent {
    own: Arc<Own>,
    name: String,
    id: u64,
    /// What has the program.
    hidden: Option<Link>,
}

impl FileEvent {
    /// Has all processes hit it.
    ///
    /// # Errors
    /// [`AttachError`] with the kernel's answer.
    pub fn open(&self) -> Result<Link, AttachError> {
        open_event(self.id)
    }
}

impl Drop for FileEvent {
    fn drop(&mut self) {
        // One in use cannot be removed.
        self.hidden = None;
        self.own.remove(&self.name);
    }
}

/// Events of makers that are no more, as `group/name`. `start_of` gives the start time of a living process.
fn leftovers(events: &str, start_of: impl Fn(u32) -> Option<u64>) -> Vec<String> {
    events
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
                    p:rdma_probe_12_500/place_0 /proc/self/fd/9:0x0000000000001230\n\
                    p:kprobes/mine do_sys_open\n\
                    r4096:rdma_probe_x/odd odd\n";
        // 10 lives, 11 is another process by now, 12 is gone.
        let start_of = |pid| match pid {
            10 => Some(500),
            11 => Some(900),
            _ => None,
        };
        assert_eq!(leftovers(text, start_of), ["rdma_probe_11_500/ib_umem_get", "rdma_probe_12_500/place_0"]);
    }

    #[cfg(target_arch = "x86_64")]
    #[unsafe(naked)]
    extern "C" fn probed(_: u64) -> u64 {
        std::arch::naked_asm!(".p2align 6", "push rdi", "pop rax", "ret")
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_place_is_hit_while_its_event_is_open_and_leaves_nothing() {
        use std::os::fd::{AsFd as _, AsRawFd as _};

        use crate::attach::{Programs, Setting};
        use probe_common::wire::KernelOffsets;

        let setting = Setting { whole_host: false, data_path: true, offsets: KernelOffsets::default() };
        let (Ok(programs), Ok(events)) = (Programs::load(&setting), FileEvents::new()) else {
            eprintln!("skipped: this user or kernel cannot attach probes");
            return;
        };
        let program = programs.load_uprobe("req_notify_enter").expect("a program");
        let place = crate::contexts::code_at(std::process::id(), probed as *const () as u64).expect("a file");
        let file = place.file.open().expect("this program");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let event = events.make(program.as_fd(), &path, place.offset, false, 0).expect("an event");
        let hits_of_ten = || {
            let profile = events.own.root.join("uprobe_profile");
            let hits = || {
                let text = fs::read_to_string(&profile).expect("hits");
                let line =
                    text.lines().find(|line| line.split_ascii_whitespace().nth(1) == Some(&event.name));
                let hits = line.and_then(|line| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok());
                hits.expect("the event")
            };
            let before = hits();
            for n in 0..10 {
                assert_eq!(std::hint::black_box(probed(n)), n);
            }
            hits() - before
        };
        for _ in 0..2 {
            assert_eq!(hits_of_ten(), 0, "nothing is hit by what stays");
            let open = event.open().expect("it opens");
            assert_eq!(hits_of_ten(), 10);
            drop(open);
        }
        assert_eq!(hits_of_ten(), 0);
        let (name, list) = (event.name.clone(), events.own.root.join(FILES.file));
        let ours =
            || fs::read_to_string(&list).expect("events").contains(&format!("{}/{name} ", events.own.group));
        assert!(ours());
        drop(event);
        assert!(!ours());
    }

    #[test]
    fn misses_are_summed_over_our_own_events() {
        let text = "  ib_umem_get   2000   7\n  other   1   100\n  rxe_reg_user_mr 5 3\n";
        let ours = ["ib_umem_get".to_owned(), "rxe_reg_user_mr".to_owned()];
        assert_eq!(missed_in(text, &ours), 10);
        assert_eq!(missed_in("garbage\n\n", &ours), 0);
    }
}
