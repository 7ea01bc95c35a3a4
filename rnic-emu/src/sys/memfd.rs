//! Shared memory in an anonymous file: nothing to find, nothing left behind when the process is killed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A shared mapping, page aligned and zeroed at first.
pub struct Shared {
    base: *mut u8,
    len: usize,
}

// SAFETY: plain memory; who may write which part is the business of its users, which only touch it through atomics and
// raw copies.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Start of the mapping.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Maps the first `len` bytes of `fd`.
    pub fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a fresh mapping of a file we hold.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: p.cast(), len })
    }

    /// Keeps the mapping out of forked children, which must not disturb their parent's device.
    pub fn keep_from_children(&self) {
        // SAFETY: our own mapping; advice only.
        unsafe { libc::madvise(self.base.cast(), self.len, libc::MADV_DONTFORK) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody uses it once its owner drops it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// A new sealed memory file of `len` bytes. Sealed, because a peer that could shrink it would kill us with SIGBUS.
pub fn create(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain calls on our descriptor.
    let ok = unsafe {
        libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) == 0
            && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
    };
    if ok { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// Whether a descriptor somebody sent us is a memory file of at least `len` bytes that can no longer change size.
pub fn is_sealed(fd: BorrowedFd<'_>, len: usize) -> bool {
    // SAFETY: plain queries; `st` is a valid place for the answer.
    unsafe {
        let seals = libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS);
        let mut st: libc::stat = std::mem::zeroed();
        seals >= 0
            && seals & SEALS == SEALS
            && libc::fstat(fd.as_raw_fd(), &mut st) == 0
            && u64::try_from(st.st_size).is_ok_and(|n| n >= len as u64)
    }
}
