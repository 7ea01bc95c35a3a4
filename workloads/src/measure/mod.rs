//! Honest measurement: interleaved runs, a ratio with its confidence interval, latency percentiles, CPU per operation.

mod ab;
mod cpu;
mod sample;
mod stats;
mod verdict;

pub use ab::{Compared, Plan, Side, compare, measure};
pub use cpu::{CpuClock, PerfCounts};
pub use sample::{Latency, LatencySummary, Sample, Summary};
pub use stats::{Interval, median, median_interval};
pub(crate) use verdict::figure;
pub use verdict::{Direction, Measured, Metric};
