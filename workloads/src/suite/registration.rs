//! Memory registered for every operation, once, or on first use and kept.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use crate::bench::Bench;
use crate::device::DeviceKind;
use crate::emulated;
use crate::endpoint::{Endpoint, Spec};
use crate::interrupt;
use crate::measure::{CpuClock, Latency, Metric, Sample, median};
use crate::memory::{Buffer, MemoryKind};
use crate::mr_cache::MrCache;
use crate::predict;
use crate::sync::execute;
use crate::table::time;
use crate::verbs::{Access, Mr, Pd, SendList, ffi};
use anyhow::{Context as _, Result, bail};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The workload.
pub struct Registration;

static ABOUT: About = About {
    name: "registration",
    question: "What does registering memory for every operation cost, against a pool or a cache of registrations?",
    claim: "one registration costs about 200 µs; tens of thousands a second in the hot path made throughput fall",
    note: "the cost is a fixed part plus a part per page, so one figure cannot be right; first touch and fork add to it",
    signal: "registrations per second and per message, kernel pin time, re-registration of the same range",
    variants: &[
        Variant { key: "per-op", label: "register, write, deregister" },
        Variant { key: "pool", label: "copy into a buffer registered once, write" },
        Variant { key: "cache", label: "look the registration up, write" },
    ],
    comparisons: &[
        Comparison {
            title: "a pool registered once instead of registering per operation",
            baseline: "per-op",
            optimised: "pool",
            metric: Metric::Rate,
            reality: Reality::Host,
            timing: Timing::Untimed,
        },
        Comparison {
            title: "a registration cache instead of registering per operation",
            baseline: "per-op",
            optimised: "cache",
            metric: Metric::Rate,
            reality: Reality::Host,
            timing: Timing::Untimed,
        },
    ],
    sweep: Some(Sweep {
        parameter: "size",
        unit: "bytes",
        values: &[4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304],
        usual: 65_536,
        variants: &["per-op", "pool", "cache"],
    }),
};

/// Buffers the application cycles through; all fit the cache.
const BUFFERS: usize = 16;

enum Way {
    PerOp,
    Pool,
    Cache(MrCache),
}

/// Synchronous writes from a ring of application buffers. Fields in the order of their destruction.
struct Writes {
    way: Way,
    endpoint: Endpoint,
    pd: Pd,
    buffers: Vec<Rc<Buffer>>,
    size: usize,
    list: SendList,
    next: usize,
}

impl Writes {
    fn open(bench: &Bench, variant: &str, size: usize) -> Result<Writes> {
        let way = match variant {
            "per-op" => Way::PerOp,
            "pool" => Way::Pool,
            "cache" => Way::Cache(MrCache::new(2 * BUFFERS)),
            other => bail!("no variant {other:?}"),
        };
        let kind = bench.memory(MemoryKind::Aligned);
        let spec = Spec { local: size, remote: size as u64, depth: 4, local_memory: kind, ..Spec::default() };
        let endpoint = Endpoint::open(bench, &spec)?;
        let pd = endpoint.local.pd().clone();
        let buffers =
            (0..BUFFERS).map(|_| Buffer::allocate(kind, size).map(Rc::new)).collect::<Result<Vec<_>>>()?;
        Ok(Writes { way, endpoint, pd, buffers, size, list: SendList::with_capacity(1), next: 0 })
    }

    fn operation(&mut self) -> Result<()> {
        let buffer = Rc::clone(&self.buffers[self.next % BUFFERS]);
        self.next += 1;
        match &mut self.way {
            Way::PerOp => {
                let region = Mr::register(&self.pd, &buffer, Access::Local)?;
                write(&self.endpoint, &mut self.list, region.addr(), region.lkey(), self.size)
            }
            Way::Pool => {
                let pool = &self.endpoint.local;
                pool.buffer().copy_from(0, &buffer, 0, self.size);
                write(&self.endpoint, &mut self.list, pool.addr(), pool.lkey(), self.size)
            }
            Way::Cache(cache) => {
                let region = cache.get(&self.pd, &buffer)?;
                write(&self.endpoint, &mut self.list, region.addr(), region.lkey(), self.size)
            }
        }
    }
}

fn write(endpoint: &Endpoint, list: &mut SendList, addr: u64, lkey: u32, size: usize) -> Result<()> {
    list.clear();
    let length = u32::try_from(size).context("size does not fit 32 bits")?;
    list.write(0, ffi::ibv_sge { addr, length, lkey }, endpoint.remote.addr, endpoint.remote.rkey, None);
    list.flag_last(true, false);
    execute(&endpoint.qps[0], list)
}

impl Trial for Writes {
    fn run(&mut self, budget: Duration) -> Result<Sample> {
        let clock = CpuClock::start();
        let (start, mut ops, mut latency) = (Instant::now(), 0, Latency::default());
        let mut last = Duration::ZERO;
        while last < budget {
            interrupt::check()?;
            self.operation()?;
            let now = start.elapsed();
            latency.record((now - last).as_nanos() as u64);
            last = now;
            ops += 1;
        }
        let elapsed = start.elapsed();
        let (cpu, process_cpu, counters) = clock.stop();
        Ok(Sample { ops, elapsed, latency, cpu, process_cpu, counters })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("application memory: {}", self.buffers[0].obtained().describe())];
        if let Way::Cache(cache) = &self.way {
            notes.push(format!("registration cache: {} hits, {} misses", cache.hits(), cache.misses()));
        }
        notes
    }
}

impl Workload for Registration {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        let size = value.or(bench.options.size).unwrap_or(65_536);
        Ok(Box::new(Writes::open(bench, variant, usize::try_from(size).context("size does not fit")?)?))
    }

    fn demonstrate(&self, bench: &Bench) -> Result<Vec<Finding>> {
        let pd = Pd::new(&bench.device().context)?;
        let (base, per_page) = cost(&pd, &[4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20], &Mode::Touched)?;
        let mut findings = vec![Finding {
            statement: "registering costs a fixed part plus a part per page".into(),
            observed: format!(
                "{} + {} per 4 KiB page (64 KiB: {}, 4 MiB: {})",
                time(base),
                time(per_page),
                time(base + 16.0 * per_page),
                time(base + 1024.0 * per_page)
            ),
            holds: Some(per_page > 0.0 && base > 0.0),
        }];
        if bench.device().kind == DeviceKind::Emulated {
            findings.push(driver_part(&emulated::profile())?);
        }
        const PROBE: usize = 4 << 20;
        let touched = registration_time(&pd, PROBE, &Mode::Touched)?;
        let untouched = registration_time(&pd, PROBE, &Mode::FirstTouch)?;
        findings.push(Finding {
            statement: "registering memory that was never touched takes its page faults too".into(),
            observed: format!("4 MiB touched before: {}, never touched: {}", time(touched), time(untouched)),
            holds: Some(untouched > 1.2 * touched),
        });
        let forked = registration_time(&pd, PROBE, &Mode::AfterFork)?;
        findings.push(Finding {
            statement: "registering memory shared with a forked child copies every page first".into(),
            observed: format!(
                "4 MiB without a child: {}, with a child holding it: {}",
                time(touched),
                time(forked)
            ),
            holds: Some(forked > 1.2 * touched),
        });
        Ok(findings)
    }
}

/// The emulated device pins pages for real but has no driver and no firmware, whose part the model knows.
fn driver_part(profile: &str) -> Result<Finding> {
    let figures = [64u64 << 10, 4 << 20].map(|bytes| predict::registration(profile, bytes, 4096));
    let [small, large] = figures;
    let ((small_reg, small_dereg), (large_reg, large_dereg)) = (small?, large?);
    Ok(Finding {
        statement: "a NIC's driver and firmware add their own part to what was measured here".into(),
        observed: format!(
            "the model ({profile}) puts registering and deregistering at {} + {} for 64 KiB, {} + {} for 4 MiB",
            time(small_reg),
            time(small_dereg),
            time(large_reg),
            time(large_dereg)
        ),
        holds: None,
    })
}

/// State of memory at registration.
enum Mode {
    /// Every page present.
    Touched,
    /// No page present.
    FirstTouch,
    /// Every page present and shared, copy-on-write, with a child.
    AfterFork,
}

/// Median nanoseconds of one registration.
fn registration_time(pd: &Pd, size: usize, mode: &Mode) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..9 {
        interrupt::check()?;
        let buffer = Rc::new(match mode {
            Mode::FirstTouch => Buffer::untouched(size)?,
            Mode::Touched | Mode::AfterFork => Buffer::allocate(MemoryKind::Aligned, size)?,
        });
        let child = matches!(mode, Mode::AfterFork).then(Child::fork).transpose()?;
        let start = Instant::now();
        let region = Mr::register(pd, &buffer, Access::Local)?;
        times.push(start.elapsed().as_nanos() as f64);
        drop(region);
        drop(child);
    }
    median(&times).context("no registration was timed")
}

/// Fits base and per-page nanoseconds through the median times of several sizes, by least squares.
fn cost(pd: &Pd, sizes: &[usize], mode: &Mode) -> Result<(f64, f64)> {
    let points = sizes
        .iter()
        .map(|&size| Ok((size as f64 / 4096.0, registration_time(pd, size, mode)?)))
        .collect::<Result<Vec<_>>>()?;
    fit(&points).context("registration times could not be fitted")
}

/// Line through points, each weighted by 1/y² so that the small sizes, which determine the base, count as much as the large.
fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(x, y) in points.iter().filter(|(_, y)| *y > 0.0) {
        let weight = 1.0 / (y * y);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    let determinant = w * wxx - wx * wx;
    if !(determinant.is_finite() && determinant > 0.0) {
        return None;
    }
    let slope = (w * wxy - wx * wy) / determinant;
    Some(((wy - slope * wx) / w, slope))
}

/// A forked child that only waits to be killed, so that its copy of our memory stays shared.
struct Child(libc::pid_t);

impl Child {
    fn fork() -> Result<Child> {
        // SAFETY: the child calls only async-signal-safe functions and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("forking"),
            0 => loop {
                // SAFETY: prctl and pause are plain system calls. The child must not outlive a killed parent.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::pause();
                }
            },
            child => Ok(Child(child)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_and_a_per_page_part_are_told_apart() {
        let points: Vec<_> =
            [1.0, 16.0, 256.0, 1024.0].map(|pages| (pages, 20_000.0 + 300.0 * pages)).to_vec();
        let (base, per_page) = fit(&points).unwrap();
        assert!((base - 20_000.0).abs() < 1.0 && (per_page - 300.0).abs() < 0.01);
    }

    #[test]
    fn a_single_size_cannot_be_fitted() {
        assert_eq!(fit(&[(1.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(fit(&[]), None);
    }

    #[test]
    fn a_forked_child_is_gone_when_dropped() {
        let child = Child::fork().unwrap();
        let pid = child.0;
        drop(child);
        // SAFETY: signal 0 only asks whether the process exists.
        assert_ne!(unsafe { libc::kill(pid, 0) }, 0);
    }
}
