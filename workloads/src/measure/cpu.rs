//! CPU used by the measuring thread, and hardware counters where the machine has them.

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// CPU time of the calling thread since it started.
pub fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of this process.
pub fn process_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; both clocks exist on every supported kernel, and a failure leaves zero.
    unsafe { libc::clock_gettime(id, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Hardware counts of one run. A counter that never ran is absent, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerfCounts {
    /// CPU cycles.
    pub cycles: Option<f64>,
    /// Instructions retired.
    pub instructions: Option<f64>,
    /// Last-level cache misses.
    pub cache_misses: Option<f64>,
}

impl PerfCounts {
    /// Every count divided by `ops`.
    pub fn per(self, ops: f64) -> PerfCounts {
        let per = |count: Option<f64>| count.filter(|_| ops > 0.0).map(|count| count / ops);
        PerfCounts {
            cycles: per(self.cycles),
            instructions: per(self.instructions),
            cache_misses: per(self.cache_misses),
        }
    }

    /// Sums two runs; a counter missing in either is missing in the sum.
    pub fn plus(self, other: PerfCounts) -> PerfCounts {
        let add = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        PerfCounts {
            cycles: add(self.cycles, other.cycles),
            instructions: add(self.instructions, other.instructions),
            cache_misses: add(self.cache_misses, other.cache_misses),
        }
    }
}

/// Measures CPU time and hardware counters between [`CpuClock::start`] and [`CpuClock::stop`], on this thread.
pub struct CpuClock {
    thread: Duration,
    process: Duration,
    counters: [Option<Counter>; 3],
}

impl CpuClock {
    /// Starts measuring.
    pub fn start() -> CpuClock {
        let counters = [Hardware::CPU_CYCLES, Hardware::INSTRUCTIONS, Hardware::CACHE_MISSES].map(|event| {
            let mut counter = Builder::new(event).build().ok()?;
            counter.enable().ok()?;
            Some(counter)
        });
        CpuClock { thread: thread_time(), process: process_time(), counters }
    }

    /// Ends the measurement: CPU time of this thread, of the whole process, and the counters.
    pub fn stop(mut self) -> (Duration, Duration, PerfCounts) {
        let thread = thread_time().saturating_sub(self.thread);
        let process = process_time().saturating_sub(self.process);
        let [cycles, instructions, cache_misses] = self.counters.each_mut().map(|slot| {
            let counter = slot.as_mut()?;
            counter.disable().ok()?;
            let read = counter.read_count_and_time().ok()?;
            scaled(read.count, read.time_enabled, read.time_running)
        });
        (thread, process, PerfCounts { cycles, instructions, cache_misses })
    }
}

/// A count scaled up for the share of time the counter was on the CPU; absent when it never was.
fn scaled(count: u64, enabled: u64, running: u64) -> Option<f64> {
    (running > 0).then(|| count as f64 * (enabled as f64 / running as f64).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_never_ran_is_unavailable_and_a_shared_one_is_scaled() {
        assert_eq!(scaled(0, 100, 0), None);
        assert_eq!(scaled(50, 100, 50), Some(100.0));
        assert_eq!(scaled(50, 100, 100), Some(50.0));
    }

    #[test]
    fn a_sum_with_a_missing_counter_is_missing() {
        let with = PerfCounts { cycles: Some(1.0), instructions: Some(2.0), cache_misses: None };
        assert_eq!(with.plus(PerfCounts::default()).cycles, None);
        assert_eq!(with.plus(with).cycles, Some(2.0));
    }

    #[test]
    fn working_takes_cpu_time() {
        let clock = CpuClock::start();
        let mut sum = 0u64;
        for i in 0..2_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(i));
        }
        let (thread, process, _) = clock.stop();
        assert!(thread > Duration::ZERO && process >= thread / 2, "{sum}");
    }
}
