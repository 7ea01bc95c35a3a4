//! Two effects of alignment, kept apart: CPUs sharing a cache line, and DMA crossing one.

use super::about::{About, Comparison, Finding, Reality, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::cores::{self, pin};
use crate::endpoint::Spec;
use crate::interrupt;
use crate::load::Load;
use crate::measure::{CpuClock, Latency, Metric, Sample};
use crate::predict::Case;
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The workload.
pub struct Alignment;

static ABOUT: About = About {
    name: "alignment",
    question: "What does aligning structures to 64 bytes gain, for CPUs and for DMA?",
    claim: "64-byte alignment of structures; false sharing cost 30 %",
    note: "two effects under one name: counters of two threads in one line slow the CPUs by far more than 30 % when nothing else \
           is done between updates; a DMA write across a line costs the NIC and memory controller a second access",
    signal: "SGE address modulo 64 and 4096, length modulo 64; cache misses where the machine counts them",
    variants: &[
        Variant { key: "packed", label: "two threads count in the same cache line" },
        Variant { key: "padded", label: "two threads count in lines of their own" },
        Variant { key: "crossing", label: "64-byte WRITEs that cross a line at both ends" },
        Variant { key: "aligned", label: "64-byte WRITEs on line boundaries" },
    ],
    comparisons: &[
        Comparison {
            title: "CPU false sharing: counters in lines of their own",
            baseline: "packed",
            optimised: "padded",
            metric: Metric::Rate,
            reality: Reality::Host,
            timing: Timing::Untimed,
        },
        Comparison {
            title: "DMA: requests on line boundaries",
            baseline: "crossing",
            optimised: "aligned",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
    ],
    sweep: None,
};

/// Two counters with `GAP` bytes between their starts.
#[repr(align(128))]
struct Counters<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Counters<WORDS> {
    fn new() -> Counters<WORDS> {
        Counters(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Counting by two threads; the operation is one increment.
enum Counting {
    /// Adjacent words.
    Packed(Box<Counters<2>>),
    /// First words of two pairs of lines: some CPUs prefetch lines in pairs, so 64 bytes would not always be enough.
    Padded(Box<Counters<32>>),
}

impl Counting {
    fn pair(&self) -> (&AtomicU64, &AtomicU64) {
        match self {
            Counting::Packed(counters) => (&counters.0[0], &counters.0[1]),
            Counting::Padded(counters) => (&counters.0[0], &counters.0[16]),
        }
    }
}

/// Increments between two looks at the stop flag.
const STRIDE: u64 = 1024;

fn count(counter: &AtomicU64, stop: &AtomicBool, cpu: Option<usize>) -> u64 {
    if let Some(cpu) = cpu {
        pin(cpu);
    }
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..STRIDE {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        done += STRIDE;
    }
    done
}

impl Trial for Counting {
    fn run(&mut self, budget: Duration) -> Result<Sample> {
        interrupt::check()?;
        let (first, second) = self.pair();
        let (near, far) = cores::distinct_pair();
        let stop = AtomicBool::new(false);
        let clock = CpuClock::start();
        let start = Instant::now();
        let ops = std::thread::scope(|scope| {
            let one = scope.spawn(|| count(first, &stop, near));
            let two = scope.spawn(|| count(second, &stop, far));
            std::thread::sleep(budget);
            stop.store(true, Ordering::Relaxed);
            one.join().unwrap_or(0) + two.join().unwrap_or(0)
        });
        let elapsed = start.elapsed();
        let (_, process_cpu, _) = clock.stop();
        // The work is done by threads of its own: what this thread used says nothing.
        Ok(Sample {
            ops,
            elapsed,
            latency: Latency::default(),
            cpu: process_cpu,
            process_cpu,
            ..Sample::default()
        })
    }

    fn notes(&self) -> Vec<String> {
        match cores::distinct_pair() {
            (Some(near), Some(far)) => vec![format!("threads on CPUs {near} and {far}")],
            _ => vec!["only one CPU: threads cannot share a line at the same time".into()],
        }
    }
}

fn load(bench: &Bench, variant: &str) -> Result<Load> {
    let offset = match variant {
        "crossing" => 32,
        "aligned" => 0,
        other => bail!("no variant {other:?}"),
    };
    Ok(Load {
        size: bench.size(64)?,
        window: bench.window(64),
        local_offset: offset,
        remote_offset: offset,
        region: bench.region(1 << 20),
        ..Load::default()
    })
}

impl Workload for Alignment {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, _value: Option<u64>) -> Result<Box<dyn Trial>> {
        match variant {
            "packed" => Ok(Box::new(Counting::Packed(Box::new(Counters::new())))),
            "padded" => Ok(Box::new(Counting::Padded(Box::new(Counters::new())))),
            dma => Traffic::boxed(bench, Spec::default(), load(bench, dma)?),
        }
    }

    fn case(&self, bench: &Bench, variant: &str, _value: Option<u64>) -> Result<Option<Case>> {
        if matches!(variant, "packed" | "padded") {
            return Ok(None);
        }
        Ok(Some(Case::of(load(bench, variant)?)))
    }

    fn demonstrate(&self, _bench: &Bench) -> Result<Vec<Finding>> {
        let packed = Counting::Packed(Box::new(Counters::new()));
        let padded = Counting::Padded(Box::new(Counters::new()));
        let line = |counter: &AtomicU64| (&raw const *counter) as usize / 64;
        let same = |counting: &Counting| line(counting.pair().0) == line(counting.pair().1);
        Ok(vec![Finding {
            statement: "packed counters lie in one 64-byte line, padded ones do not".into(),
            observed: format!("packed: {}, padded: {}", shared(same(&packed)), shared(same(&padded))),
            holds: Some(same(&packed) && !same(&padded)),
        }])
    }
}

fn shared(same: bool) -> &'static str {
    if same { "same line" } else { "lines apart" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_threads_increments_are_counted() {
        let mut counting = Counting::Padded(Box::new(Counters::new()));
        let sample = counting.run(Duration::from_millis(20)).unwrap();
        let (one, two) = counting.pair();
        assert_eq!(sample.ops, one.load(Ordering::Relaxed) + two.load(Ordering::Relaxed));
        assert!(sample.ops > 0);
    }
}
