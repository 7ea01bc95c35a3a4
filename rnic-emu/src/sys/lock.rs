//! A mutual exclusion lock that can be taken in one function and released in another.
//!
//! The extended posting interface holds the send queue from `ibv_wr_start` to `ibv_wr_complete`, which no guard that
//! lives on a stack can express. Waiters spin for less than a microsecond, then sleep in the kernel: with two cores, a
//! spinning waiter would keep the holder from running.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::*};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody sleeps: the holder must wake one when it lets go.
const WAITED_FOR: u32 = 2;
const SPINS: u32 = 60;

/// A value only its holder may touch.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which one exists at a time.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for Lock<T> {}

/// Releases the lock when dropped.
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until the lock is ours.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        self.acquire();
        Held { lock: self }
    }

    /// The lock if nobody holds it now.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).ok().map(|_| Held { lock: self })
    }

    /// Takes the lock without a guard; [`Self::release`] must follow.
    #[inline]
    pub fn acquire(&self) {
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
    }

    /// Lets go of a lock taken with [`Self::acquire`].
    #[inline]
    pub fn release(&self) {
        if self.word.swap(FREE, Release) == WAITED_FOR {
            futex_wake(&self.word, 1);
        }
    }

    /// Frees the lock whoever holds it. For a forked child, where the holder may be a thread that does not exist.
    pub fn break_open(&self) {
        self.word.store(FREE, Release);
    }

    /// The value, for the thread that took the lock with [`Self::acquire`].
    ///
    /// # Safety
    /// The calling thread holds the lock and no other reference to the value is alive.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the lock, which the caller holds")]
    #[inline]
    pub unsafe fn held_value(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.value.get() }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.word.load(Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
            {
                return;
            }
        }
        while self.word.swap(WAITED_FOR, Acquire) != FREE {
            futex_wait(&self.word, WAITED_FOR, None);
        }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the proof of holding the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release();
    }
}

/// Sleeps while `word` holds `expected`, at most `timeout_ns`. May return early.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let t = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let t = t.as_ref().map_or(std::ptr::null(), |t| t as *const libc::timespec);
    // SAFETY: the kernel reads the word and the timeout, both alive for the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            t,
        );
    }
}

/// Wakes up to `n` sleepers of `word`.
pub fn futex_wake(word: &AtomicU32, n: i32) {
    // SAFETY: the kernel only uses the address.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_threads_lose_no_increment() {
        let lock = Lock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..50_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 200_000);
    }

    #[test]
    fn a_held_lock_refuses_try_lock_and_frees_on_drop() {
        let lock = Lock::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
