//! Finding and mapping the shared file of a process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use probe_common::site::Rates;
use probe_common::tap::{BYTES, Header, MAGIC, SLOTS, Slot, VERSION};

/// Why the counters of a process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The process is not there, or may not be looked into.
    #[error("cannot look into process {0}")]
    Process(u32, #[source] io::Error),
    /// Something else bears the name of the tap's file.
    #[error("process {pid} has a file named verbs-tap that is not this version's: {what}")]
    Foreign {
        /// The process.
        pid: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The file could not be mapped.
    #[error("cannot map the counters of process {0}")]
    Map(u32, #[source] io::Error),
    /// The process folded slots during every attempt to read them.
    #[error("process {0} reorganised its counters during each of {1} attempts to read them")]
    Unsteady(u32, u32),
}

/// The shared file of one process, open.
pub struct Tap {
    pid: u32,
    at: NonNull<Header>,
    identity: (u64, u64),
    _file: File,
}

// SAFETY: the mapping is shared memory that consists of atomics, and lives as long as this value.
unsafe impl Send for Tap {}
// SAFETY: as above.
unsafe impl Sync for Tap {}

impl Tap {
    /// Opens the file of a process; `None` when it does not run under the tap, or has not used verbs yet.
    ///
    /// # Errors
    /// [`TapError`] for a process that cannot be looked into, and for a file that is not the tap's.
    pub fn of(pid: u32) -> Result<Option<Self>, TapError> {
        let names = names(pid)?;
        let mut foreign = None;
        for path in candidates(pid)? {
            let file = match OpenOptions::new().read(true).write(true).open(path) {
                Ok(file) => file,
                // The process, or its descriptor, went away in between.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(TapError::Process(pid, e)),
            };
            match Self::map(pid, file) {
                // A forked child shows its parent's file until it makes its own, and a profiler those it reads.
                Ok(tap) if names.contains(&tap.header().pid.load(Relaxed)) => return Ok(Some(tap)),
                Ok(_) => {}
                Err(error) => foreign = Some(error),
            }
        }
        foreign.map_or(Ok(None), Err)
    }

    fn map(pid: u32, file: File) -> Result<Self, TapError> {
        let foreign = |what| TapError::Foreign { pid, what };
        let metadata = file.metadata().map_err(|e| TapError::Map(pid, e))?;
        let (length, identity) = (metadata.len(), (metadata.dev(), metadata.ino()));
        if length != BYTES as u64 {
            return Err(foreign("its size is another"));
        }
        // SAFETY: asks for the seals of an open file. Unsealed, the process could shrink it under our feet, and the
        // next read would kill this program.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(foreign("it is not sealed"));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of a file that has this length and cannot get shorter.
        let at = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        let at = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
        let at = at.ok_or_else(|| TapError::Map(pid, io::Error::last_os_error()))?;
        let tap = Self { pid, at, identity, _file: file };
        let header = tap.header();
        let layout = (header.magic.load(Acquire), header.version.load(Relaxed));
        let sizes = (header.slot_bytes.load(Relaxed), header.slots.load(Relaxed));
        if layout != (MAGIC, VERSION) {
            return Err(foreign("it was written by another version of the tap"));
        }
        if sizes != (u32::try_from(size_of::<Slot>()).unwrap_or(0), u32::try_from(SLOTS).unwrap_or(0)) {
            return Err(foreign("its slots have another size"));
        }
        Ok(tap)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Device and inode of the file: a program that replaced another has a file of its own.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Asks the process to call its probe sites for so many of its operations.
    pub fn ask(&self, rates: Rates) {
        self.header().fire.store(rates.0, Relaxed);
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: mapped while self lives.
        unsafe { self.at.as_ref() }
    }

    /// The slots that were ever used.
    pub(super) fn slots(&self) -> &[Slot] {
        let used = usize::try_from(self.header().used.load(Acquire)).unwrap_or(SLOTS).min(SLOTS);
        // SAFETY: SLOTS slots follow the header in the mapping; they consist of atomics.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(1).cast(), used) }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference outlives self.
        unsafe { libc::munmap(self.at.as_ptr().cast(), BYTES) };
    }
}

/// How the kernel shows the file.
const LINK: &str = "/memfd:verbs-tap (deleted)";

/// Files of that name among the descriptors, and among the mappings for a program that has closed all descriptors.
fn candidates(pid: u32) -> Result<Vec<PathBuf>, TapError> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let descriptors = fs::read_dir(process.join("fd")).map_err(|e| TapError::Process(pid, e))?;
    let open = descriptors.filter_map(Result::ok).map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        open.filter(|path| fs::read_link(path).is_ok_and(|to| to == Path::new(LINK))).collect();
    if found.is_empty() {
        let maps = fs::read_to_string(process.join("maps")).map_err(|e| TapError::Process(pid, e))?;
        let ranges =
            maps.lines().filter(|line| line.ends_with(LINK)).filter_map(|line| line.split(' ').next());
        found.extend(ranges.map(|range| process.join("map_files").join(range)));
    }
    Ok(found)
}

/// The ids of a process in the pid namespaces it is in: the file holds that of the innermost.
fn names(pid: u32) -> Result<Vec<u32>, TapError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|e| TapError::Process(pid, e))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let mut names: Vec<u32> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    names.push(pid);
    Ok(names)
}
