//! The system calls behind an attachment: a perf event that names the place, and a BPF link to it.
//!
//! aya attaches one program at a time and offers no way to raise the number of return-probe slots; here any number of
//! places is attached to one program, from as many threads as wanted. Both descriptors are owned: when the profiler
//! ends, however it ends, the kernel detaches.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::AttachError;

const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_ATTR_SIZE_VER5: u32 = 112;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PERF_EVENT: u32 = 41;
/// `PROC_PID_INIT_INO` of the kernel: the inode of the first pid namespace.
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;

/// An attached probe; dropping it detaches.
#[derive(Debug)]
pub struct Link {
    // The link is closed before the event it refers to.
    _link: OwnedFd,
    _event: Option<OwnedFd>,
}

impl From<OwnedFd> for Link {
    /// A link that refers to no event, or an event without a link of its own.
    fn from(link: OwnedFd) -> Self {
        Self { _link: link, _event: None }
    }
}

/// `struct perf_event_attr` as far as probes use it (version 5, 112 bytes).
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    rest: [u64; 5],
}

/// `union bpf_attr` for `BPF_LINK_CREATE` of a perf event.
#[repr(C)]
#[derive(Default)]
struct LinkCreateAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    bpf_cookie: u64,
    rest: [u64; 5],
}

/// A probe of a perf PMU (`uprobe` or `kprobe`): its type number and the bit that says "return".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pmu {
    kind: u32,
    return_bit: u32,
}

impl Pmu {
    /// Reads what the kernel says of a PMU.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no such PMU.
    pub fn read(name: &'static str) -> Result<Self, AttachError> {
        let folder = format!("/sys/bus/event_source/devices/{name}");
        let step = if name == "uprobe" { "perf's uprobe events" } else { "perf's kprobe events" };
        let read = |file: &str| {
            std::fs::read_to_string(format!("{folder}/{file}")).map_err(|source| AttachError { step, source })
        };
        let kind = parse_number(&read("type")?).ok_or_else(|| malformed(step))?;
        let return_bit = parse_number(read("format/retprobe")?.trim().trim_start_matches("config:"))
            .ok_or_else(|| malformed(step))?;
        Ok(Self { kind, return_bit })
    }

    /// Attaches a program at an offset of a file, for all processes. `path` must name the file through a descriptor
    /// (`/proc/self/fd/N`) where the file itself may be replaced.
    ///
    /// # Errors
    /// [`AttachError`] with the kernel's answer.
    pub fn attach_file(
        self,
        program: BorrowedFd<'_>,
        path: &str,
        offset: u64,
        returns: bool,
        cookie: u64,
    ) -> Result<Link, AttachError> {
        self.attach(program, path, offset, returns, cookie)
    }

    /// Attaches a program at a kernel function.
    ///
    /// # Errors
    /// [`AttachError`] with the kernel's answer.
    pub fn attach_symbol(
        self,
        program: BorrowedFd<'_>,
        symbol: &str,
        returns: bool,
        cookie: u64,
    ) -> Result<Link, AttachError> {
        self.attach(program, symbol, 0, returns, cookie)
    }

    fn attach(
        self,
        program: BorrowedFd<'_>,
        name: &str,
        offset: u64,
        returns: bool,
        cookie: u64,
    ) -> Result<Link, AttachError> {
        let name = CString::new(name).map_err(|_| malformed("perf_event_open"))?;
        let attr = PerfEventAttr {
            kind: self.kind,
            size: PERF_ATTR_SIZE_VER5,
            config: u64::from(returns) << self.return_bit,
            config1: name.as_ptr() as u64,
            config2: offset,
            ..PerfEventAttr::default()
        };
        // `name` lives until the call has returned.
        link(open(&attr)?, program, cookie)
    }
}

/// Attaches a program to an event that tracefs has made, by its number.
///
/// # Errors
/// [`AttachError`] with the kernel's answer.
pub fn attach_event(program: BorrowedFd<'_>, id: u64, cookie: u64) -> Result<Link, AttachError> {
    link(open(&of_tracefs(id))?, program, cookie)
}

/// Attaches a program to such an event of a place in a file, without anybody hitting it by that: the program runs as long as
/// the event is open otherwise ([`open_event`]). It is open for this process alone, which does not map the file.
///
/// # Errors
/// [`AttachError`] with the kernel's answer.
pub fn attach_to_hidden(program: BorrowedFd<'_>, id: u64, cookie: u64) -> Result<Link, AttachError> {
    /// `disabled` and `enable_on_exec` of `perf_event_attr`: the kernel need not go through all that map the file.
    const NEVER: u64 = 1 | 1 << 12;
    const ANY_CPU: libc::c_int = -1;
    let attr = PerfEventAttr { flags: NEVER, ..of_tracefs(id) };
    link(open_for(&attr, std::process::id() as libc::pid_t, ANY_CPU)?, program, cookie)
}

/// Opens such an event for all processes, without a program of its own.
///
/// # Errors
/// [`AttachError`] with the kernel's answer.
pub fn open_event(id: u64) -> Result<Link, AttachError> {
    open(&of_tracefs(id)).map(Link::from)
}

fn of_tracefs(id: u64) -> PerfEventAttr {
    PerfEventAttr {
        kind: PERF_TYPE_TRACEPOINT,
        size: PERF_ATTR_SIZE_VER5,
        config: id,
        sample_period: 1,
        ..PerfEventAttr::default()
    }
}

fn open(attr: &PerfEventAttr) -> Result<OwnedFd, AttachError> {
    const ANY_PID: libc::pid_t = -1;
    // The program runs wherever the place is hit; the CPU only says whose event list the event is kept on.
    const FIRST_CPU: libc::c_int = 0;
    open_for(attr, ANY_PID, FIRST_CPU)
}

fn open_for(attr: &PerfEventAttr, pid: libc::pid_t, cpu: libc::c_int) -> Result<OwnedFd, AttachError> {
    const NO_GROUP: libc::c_int = -1;
    // SAFETY: the attribute is as long as it says; the kernel copies what it points to during the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            pid,
            cpu,
            NO_GROUP,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    owned(fd, "perf_event_open")
}

fn link(event: OwnedFd, program: BorrowedFd<'_>, cookie: u64) -> Result<Link, AttachError> {
    let attr = LinkCreateAttr {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: event.as_raw_fd() as u32,
        attach_type: BPF_PERF_EVENT,
        bpf_cookie: cookie,
        ..LinkCreateAttr::default()
    };
    // SAFETY: the attribute is as long as said, and the kernel only reads it.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, std::ptr::from_ref(&attr), size_of::<LinkCreateAttr>())
    };
    Ok(Link { _link: owned(fd, "bpf(BPF_LINK_CREATE)")?, _event: Some(event) })
}

fn owned(fd: libc::c_long, step: &'static str) -> Result<OwnedFd, AttachError> {
    if fd < 0 {
        return Err(AttachError { step, source: io::Error::last_os_error() });
    }
    // SAFETY: the call has just returned this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn parse_number(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

fn malformed(step: &'static str) -> AttachError {
    AttachError { step, source: io::Error::from_raw_os_error(libc::ENODEV) }
}

/// True when this process sees the pids the kernel's probes report. In another pid namespace they are different.
pub fn pid_namespace_is_initial() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(true, |ns| ns.ino() == INITIAL_PID_NAMESPACE)
}
