//! What the governor's own looks may take of a processor.

use std::time::{Duration, Instant};

/// The looks may take one CPU divided by this,
const SHARE: u32 = 50;
/// and so much on top that was saved before: the first looks have to search for what later ones know, and come when a
/// program pays in full until the next.
const SAVED: Duration = Duration::from_millis(20);

/// CPU time of the thread that looks. Attaching is mostly waiting, and does not count.
pub struct OwnTime {
    saved: Saved,
    at: Instant,
    used: Duration,
}

impl OwnTime {
    /// From now on, in the thread that looks.
    pub fn new() -> Self {
        Self { saved: Saved(SAVED.as_secs_f64()), at: Instant::now(), used: thread_time() }
    }

    /// How long to sleep after a look, at least a `tick`.
    pub fn sleep(&mut self, tick: Duration) -> Duration {
        let (now, used) = (Instant::now(), thread_time());
        let (elapsed, took) = (now.duration_since(self.at), used.saturating_sub(self.used));
        (self.at, self.used) = (now, used);
        self.saved.sleep(elapsed, took, tick)
    }
}

/// Seconds of CPU time that may be used beyond the share; less than nothing where more was used.
struct Saved(f64);

impl Saved {
    fn sleep(&mut self, elapsed: Duration, took: Duration, tick: Duration) -> Duration {
        let earned = elapsed.as_secs_f64() / f64::from(SHARE);
        self.0 = (self.0 + earned - took.as_secs_f64()).min(SAVED.as_secs_f64());
        // Never so long that a program which becomes busy goes unnoticed.
        let owed = (-self.0).clamp(0.0, 0.02) * f64::from(SHARE);
        tick.max(Duration::from_secs_f64(owed))
    }
}

/// CPU time of this thread; nothing where the kernel does not tell.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the one value it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_dear_first_look_is_paid_from_what_was_saved() {
        let mut saved = Saved(SAVED.as_secs_f64());
        assert_eq!(saved.sleep(MS, 5 * MS, 2 * MS), 2 * MS);
    }

    #[test]
    fn looks_that_always_take_long_come_as_seldom_as_their_share_asks() {
        let mut saved = Saved(0.0);
        let (mut at, mut used) = (Duration::ZERO, Duration::ZERO);
        let mut slept = 2 * MS;
        for _ in 0..1000 {
            at += slept + MS;
            used += MS;
            slept = saved.sleep(slept + MS, MS, 2 * MS);
        }
        let share = used.as_secs_f64() / at.as_secs_f64();
        assert!((0.018..0.021).contains(&share), "{share}");
    }

    #[test]
    fn cheap_looks_keep_their_tick_and_save_no_more_than_so_much() {
        let mut saved = Saved(0.0);
        for _ in 0..1000 {
            assert_eq!(saved.sleep(Duration::from_secs(1), MS / 100, 5 * MS), 5 * MS);
        }
        assert!(saved.0 <= SAVED.as_secs_f64());
    }
}
