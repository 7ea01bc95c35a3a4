//! What work of the profiler's own that comes again and again may take of a processor.

use std::time::{Duration, Instant};

use super::cpu_time;

/// A share of one processor, and how long work may wait to stay within it.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// One CPU divided by this may be used.
    pub one_in: u32,
    /// So much on top that was saved before.
    pub saved: Duration,
    /// The longest wait.
    pub longest: Duration,
}

/// CPU time of the thread that works, kept within a bound.
pub struct OwnTime {
    bound: Bound,
    saved: Saved,
    at: Instant,
    used_ns: u64,
}

impl OwnTime {
    /// From now on, in the thread that works.
    pub fn new(bound: Bound) -> Self {
        let saved = Saved(bound.saved.as_secs_f64());
        Self { bound, saved, at: Instant::now(), used_ns: cpu_time::of_this_thread() }
    }

    /// How long to sleep after some work, at least a `tick`.
    pub fn sleep(&mut self, tick: Duration) -> Duration {
        let (elapsed, took) = self.since_last();
        self.saved.sleep(elapsed, took, tick, &self.bound)
    }

    /// What was done since is other work, which has no bound.
    pub fn leave_out(&mut self) {
        self.since_last();
    }

    fn since_last(&mut self) -> (Duration, Duration) {
        let (now, used_ns) = (Instant::now(), cpu_time::of_this_thread());
        let took = Duration::from_nanos(used_ns.saturating_sub(self.used_ns));
        let elapsed = now.duration_since(self.at);
        (self.at, self.used_ns) = (now, used_ns);
        (elapsed, took)
    }
}

/// Seconds of CPU time that may be used beyond the share; less than nothing where more was used.
struct Saved(f64);

impl Saved {
    fn sleep(&mut self, elapsed: Duration, took: Duration, tick: Duration, bound: &Bound) -> Duration {
        let one_in = f64::from(bound.one_in);
        let earned = elapsed.as_secs_f64() / one_in;
        self.0 = (self.0 + earned - took.as_secs_f64()).min(bound.saved.as_secs_f64());
        let owed = (-self.0 * one_in).clamp(0.0, bound.longest.as_secs_f64());
        tick.max(Duration::from_secs_f64(owed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const BOUND: Bound =
        Bound { one_in: 50, saved: Duration::from_millis(20), longest: Duration::from_secs(1) };

    #[test]
    fn a_dear_first_look_is_paid_from_what_was_saved() {
        let mut saved = Saved(BOUND.saved.as_secs_f64());
        assert_eq!(saved.sleep(MS, 5 * MS, 2 * MS, &BOUND), 2 * MS);
    }

    #[test]
    fn looks_that_always_take_long_come_as_seldom_as_their_share_asks() {
        let mut saved = Saved(0.0);
        let (mut at, mut used) = (Duration::ZERO, Duration::ZERO);
        let mut slept = 2 * MS;
        for _ in 0..1000 {
            at += slept + MS;
            used += MS;
            slept = saved.sleep(slept + MS, MS, 2 * MS, &BOUND);
        }
        let share = used.as_secs_f64() / at.as_secs_f64();
        assert!((0.018..0.021).contains(&share), "{share}");
    }

    #[test]
    fn cheap_looks_keep_their_tick_and_save_no_more_than_so_much() {
        let mut saved = Saved(0.0);
        for _ in 0..1000 {
            assert_eq!(saved.sleep(Duration::from_secs(1), MS / 100, 5 * MS, &BOUND), 5 * MS);
        }
        assert!(saved.0 <= BOUND.saved.as_secs_f64());
    }

    #[test]
    fn however_much_is_owed_no_wait_is_longer_than_the_bound_says() {
        let mut saved = Saved(0.0);
        let bound = Bound { longest: 10 * MS, ..BOUND };
        assert_eq!(saved.sleep(MS, Duration::from_secs(3), Duration::ZERO, &bound), 10 * MS);
    }
}
