//! A trial whose operation is registering and deregistering one buffer.

use super::about::Trial;
use crate::bench::Bench;
use crate::interrupt;
use crate::measure::{CpuClock, Latency, Sample};
use crate::memory::{Buffer, MemoryKind};
use crate::verbs::{Access, Mr, Pd};
use anyhow::Result;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Registers the same buffer again and again; latency is that of the registration alone.
pub struct Registering {
    pd: Pd,
    buffer: Rc<Buffer>,
}

impl Registering {
    /// Allocates `length` bytes of that kind, all touched.
    pub fn open(bench: &Bench, kind: MemoryKind, length: usize) -> Result<Registering> {
        let pd = Pd::new(&bench.device().context)?;
        Ok(Registering { pd, buffer: Rc::new(Buffer::allocate(kind, length)?) })
    }
}

impl Trial for Registering {
    fn run(&mut self, budget: Duration) -> Result<Sample> {
        let clock = CpuClock::start();
        let (start, mut ops, mut latency) = (Instant::now(), 0, Latency::default());
        while start.elapsed() < budget {
            interrupt::check()?;
            let before = Instant::now();
            let region = Mr::register(&self.pd, &self.buffer, Access::Local)?;
            latency.record(before.elapsed().as_nanos() as u64);
            drop(region);
            ops += 1;
        }
        let elapsed = start.elapsed();
        let (cpu, process_cpu, counters) = clock.stop();
        Ok(Sample { ops, elapsed, latency, cpu, process_cpu, counters })
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("memory: {}", self.buffer.obtained().describe())]
    }
}
