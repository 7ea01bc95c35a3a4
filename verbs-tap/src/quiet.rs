//! What keeps the tap unseen: `errno` left as it was, and a lock that survives fork.

use std::sync::atomic::{AtomicBool, Ordering};

/// Restores `errno` when dropped: everything the tap does beside the program's own call happens inside one.
pub struct KeepErrno(i32);

impl KeepErrno {
    pub fn new() -> Self {
        // SAFETY: glibc's errno location is valid for the calling thread.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// The lock of the slow paths (a new object, a new thread, a destroyed object). A mutex of the C library would stay
/// locked for ever in a child forked while another thread held it; this one is opened by the fork handler.
pub struct Lock(AtomicBool);

/// Opens the lock when dropped.
pub struct Held<'a>(&'a Lock);

impl Lock {
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub fn hold(&self) -> Held<'_> {
        while self.0.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // SAFETY: no arguments, no memory.
            unsafe { libc::sched_yield() };
        }
        Held(self)
    }

    /// In a forked child: whoever held it does not exist here.
    pub fn reset_in_child(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_what_it_was_after_a_failing_call() {
        // SAFETY: errno of this thread; close of a descriptor that cannot exist.
        unsafe {
            *libc::__errno_location() = 77;
            {
                let _keep = KeepErrno::new();
                assert_eq!(libc::close(-1), -1);
            }
            assert_eq!(*libc::__errno_location(), 77);
        }
    }

    #[test]
    fn a_lock_held_by_a_thread_that_fork_left_behind_opens() {
        let lock = Lock::new();
        std::mem::forget(lock.hold());
        lock.reset_in_child();
        drop(lock.hold());
    }
}
