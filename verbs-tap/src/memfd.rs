//! Memory shared with a profiler: a file of no file system, found by its name through `/proc`.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

/// A new file, mapped.
pub struct Memfd {
    pub fd: i32,
    pub inode: u64,
    /// Page aligned, zeroed, and as long as was asked for.
    pub at: NonNull<c_void>,
}

/// Makes a file of that length, sealed so that a reader can rely on it, and maps it. `None` when that fails.
pub fn make(name: &CStr, bytes: usize) -> Option<Memfd> {
    // SAFETY: plain system calls on values of ours; the mapping is checked.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return None;
        }
        let fd = move_out_of_the_way(fd);
        let length = libc::off_t::try_from(bytes).ok()?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        let mut stat: libc::stat = std::mem::zeroed();
        let ready = libc::ftruncate(fd, length) == 0
            && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
            && libc::fstat(fd, &mut stat) == 0;
        let at = if ready {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0)
        } else {
            libc::MAP_FAILED
        };
        if at == libc::MAP_FAILED {
            libc::close(fd);
            return None;
        }
        Some(Memfd { fd, inode: stat.st_ino, at: NonNull::new(at)? })
    }
}

/// Programs count on getting low descriptors: keep out of their way.
fn move_out_of_the_way(fd: i32) -> i32 {
    const OUT_OF_THE_WAY: i32 = 1000;
    // SAFETY: duplicates and closes a descriptor of ours.
    unsafe {
        for lowest in [OUT_OF_THE_WAY, 200] {
            let moved = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest);
            if moved >= 0 {
                libc::close(fd);
                return moved;
            }
        }
    }
    fd
}

/// In a forked child: unmaps the parent's file (nothing if `at` is null) and closes its descriptor, unless the program
/// has closed all descriptors and used the number again. Nothing in the child may point into the file any more.
pub fn abandon(at: *mut c_void, bytes: usize, fd: i32, inode: u64) {
    // SAFETY: the mapping is of that length and no longer used, as promised; the descriptor is still our file.
    unsafe {
        if !at.is_null() {
            libc::munmap(at, bytes);
        }
        let mut stat: libc::stat = std::mem::zeroed();
        if fd >= 0 && libc::fstat(fd, &mut stat) == 0 && stat.st_ino == inode {
            libc::close(fd);
        }
    }
}
