//! What happens to the device when the program forks.
//!
//! The child inherits memory and descriptors of a device it does not own: no helper thread, rings mapped away, peers
//! that know only the parent. So the child forgets the device (inherited objects then answer EIO), closes the
//! device's private descriptors, since an open socket would hide the parent's death from its peers, and may open a
//! device of its own. It also renews the pages of the probe sites: Linux 6.18 rewrites a probed nop into a call to a
//! trampoline that the child does not inherit, and the child would die at its first post.

use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering::*};

const MAX_FDS: usize = 1024;
/// Descriptors the child must close, -1 where free. A fixed table: the child may not allocate or lock.
static FDS: [AtomicI32; MAX_FDS] = [const { AtomicI32::new(-1) }; MAX_FDS];
static HANDLER: Once = Once::new();

/// Registers the fork handler once. `in_child` runs in every forked child: no locks, no allocation.
pub fn install(in_child: extern "C" fn()) {
    HANDLER.call_once(|| {
        // SAFETY: the handler only uses async-signal-safe calls.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Has `fd` closed in forked children. With the table full the child merely keeps a spare descriptor.
pub fn close_in_children(fd: i32) {
    for slot in &FDS {
        if slot.compare_exchange(-1, fd, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

/// Takes `fd` back out of the table, before the parent closes it and its number means something else.
pub fn forget(fd: i32) {
    for slot in &FDS {
        if slot.compare_exchange(fd, -1, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

/// In the child: closes everything in the table.
pub fn close_all() {
    for slot in &FDS {
        let fd = slot.swap(-1, AcqRel);
        if fd >= 0 {
            // SAFETY: the child owns its copy of the descriptor.
            unsafe { libc::close(fd) };
        }
    }
}

/// In the child: drops the private copies of the pages from `first` to `last`, so that they are read from the library
/// again, and has the kernel put the probes that are still wanted into them.
pub fn refresh_code(first: usize, last: usize) {
    const PAGE: usize = 4096;
    let start = first & !(PAGE - 1);
    let end = (last + PAGE) & !(PAGE - 1);
    // The kernel puts probes into a mapping when it is made, split or merged; the last two split it and merge it again
    // without a moment in which the code could not run.
    for advice in [libc::MADV_DONTNEED, libc::MADV_DONTDUMP, libc::MADV_DODUMP] {
        // SAFETY: file-backed text of this library; the pages are read again from the file when next touched.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
    }
}
