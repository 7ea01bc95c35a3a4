//! The files the tap shares: found among what a process has open or mapped, checked, mapped.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use super::TapError;

/// A file of the tap, mapped for reading and writing.
pub struct Mapped {
    at: NonNull<u8>,
    bytes: usize,
    identity: (u64, u64),
    _file: File,
}

// SAFETY: the mapping is shared memory that is looked at through atomics, and lives as long as this value.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Device and inode.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is at the beginning.
    ///
    /// # Safety
    /// `T` consists of atomics, fits into the file, and needs no more alignment than a page has.
    pub unsafe fn start<T>(&self) -> &T {
        // SAFETY: mapped while self lives; the rest as promised.
        unsafe { self.at.cast().as_ref() }
    }

    /// As many values as there are from byte `from` on.
    ///
    /// # Safety
    /// As for [`Self::start`], of all `count` values.
    pub unsafe fn rest<T>(&self, from: usize, count: usize) -> &[T] {
        // SAFETY: mapped while self lives; the rest as promised.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(from).cast(), count) }
    }

    fn new(pid: u32, file: File, fits: impl Fn(usize) -> bool) -> Result<Self, TapError> {
        let foreign = |what| TapError::Foreign { pid, what };
        let metadata = file.metadata().map_err(|e| TapError::Map(pid, e))?;
        let identity = (metadata.dev(), metadata.ino());
        let bytes = usize::try_from(metadata.len()).ok().filter(|bytes| fits(*bytes));
        let bytes = bytes.ok_or_else(|| foreign("its size is another"))?;
        // SAFETY: asks for the seals of an open file. Unsealed, the process could shrink it under our feet, and the
        // next read would kill this program.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(foreign("it is not sealed"));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of a file that has this length and cannot get shorter.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        let at = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
        let at = at.ok_or_else(|| TapError::Map(pid, io::Error::last_os_error()))?;
        Ok(Self { at, bytes, identity, _file: file })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference outlives self.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// The file of that name which belongs to a process; `None` when it has none, or none that is ready. `fits` says whether a file can have that
/// many bytes, `check` whether it is of this version, and the id of the process that writes it.
///
/// # Errors
/// [`TapError`] for a process that cannot be looked into, and for a file that is not the tap's.
pub fn find(
    pid: u32,
    name: &str,
    fits: impl Fn(usize) -> bool,
    check: impl Fn(&Mapped) -> Result<u32, &'static str>,
) -> Result<Option<Mapped>, TapError> {
    let names = names(pid)?;
    let mut wrong = None;
    for path in candidates(pid, name)? {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            // The process, or its descriptor, went away in between.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(TapError::Process(pid, e)),
        };
        if !is_begun(&file).map_err(|e| TapError::Map(pid, e))? {
            continue;
        }
        let mapped = Mapped::new(pid, file, &fits);
        match mapped.and_then(|mapped| match check(&mapped) {
            Ok(writer) => Ok((mapped, writer)),
            Err(what) => Err(TapError::Foreign { pid, what }),
        }) {
            // A forked child shows its parent's file until it makes its own, and a profiler those it reads.
            Ok((mapped, writer)) if names.contains(&writer) => return Ok(Some(mapped)),
            Ok(_) => {}
            Err(error) => wrong = Some(error),
        }
    }
    wrong.map_or(Ok(None), Err)
}

/// Whether a file has its magic, with which both kinds begin and which is written last: from then on it has its size, is
/// sealed and filled in. Before, it is nobody's yet, not another version's.
fn is_begun(file: &File) -> io::Result<bool> {
    let mut magic = [0; 8];
    match file.read_exact_at(&mut magic, 0) {
        Ok(()) => Ok(magic != [0; 8]),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

/// Files of that name among the descriptors, and among the mappings for a program that has closed all descriptors.
fn candidates(pid: u32, name: &str) -> Result<Vec<PathBuf>, TapError> {
    // How the kernel shows the file.
    let link = format!("/memfd:{name} (deleted)");
    let process = PathBuf::from(format!("/proc/{pid}"));
    let descriptors = fs::read_dir(process.join("fd")).map_err(|e| TapError::Process(pid, e))?;
    let open = descriptors.filter_map(Result::ok).map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        open.filter(|path| fs::read_link(path).is_ok_and(|to| to == Path::new(&link))).collect();
    if found.is_empty() {
        let maps = fs::read_to_string(process.join("maps")).map_err(|e| TapError::Process(pid, e))?;
        let ranges =
            maps.lines().filter(|line| line.ends_with(&link)).filter_map(|line| line.split(' ').next());
        found.extend(ranges.map(|range| process.join("map_files").join(range)));
    }
    Ok(found)
}

/// The ids of a process in the pid namespaces it is in: a file holds that of the innermost.
fn names(pid: u32) -> Result<Vec<u32>, TapError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|e| TapError::Process(pid, e))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let mut names: Vec<u32> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    names.push(pid);
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::fd::FromRawFd as _;

    use super::*;

    const BYTES: usize = 4096;

    /// A file as the tap makes it, in the process that runs the tests.
    fn made(name: &str) -> File {
        let name = CString::new(name).expect("a name");
        // SAFETY: a new descriptor, owned by nobody else.
        unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0, "no memfd");
            File::from_raw_fd(fd)
        }
    }

    fn found(name: &str) -> Result<bool, TapError> {
        let check = |mapped: &Mapped| {
            // SAFETY: one byte of a file that has more.
            let first: &std::sync::atomic::AtomicU8 = unsafe { mapped.start() };
            let is_ours = first.load(std::sync::atomic::Ordering::Acquire) == 1;
            if is_ours { Ok(std::process::id()) } else { Err("it is another version's") }
        };
        find(std::process::id(), name, |bytes| bytes == BYTES, check).map(|mapped| mapped.is_some())
    }

    #[test]
    fn a_file_that_is_being_made_is_not_there_yet_at_any_stage() {
        let name = "verbs-tap-test-being-made";
        let file = made(name);
        assert!(!found(name).expect("empty"));
        file.set_len(BYTES as u64).expect("a length");
        assert!(!found(name).expect("not sealed"));
        // SAFETY: seals a file of this test.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert_eq!(sealed, 0);
        assert!(!found(name).expect("without its magic"));
        file.write_all_at(&[1], 0).expect("its magic");
        assert!(found(name).expect("ready"));
    }

    #[test]
    fn a_file_of_another_version_or_size_is_named_as_such() {
        let name = "verbs-tap-test-foreign";
        let file = made(name);
        file.set_len(BYTES as u64).expect("a length");
        file.write_all_at(&[2], 0).expect("another magic");
        assert!(matches!(found(name), Err(TapError::Foreign { what: "it is not sealed", .. })));
        file.set_len(8).expect("a length");
        assert!(matches!(found(name), Err(TapError::Foreign { what: "its size is another", .. })));
    }
}
