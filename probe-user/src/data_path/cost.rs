//! What a hit of a probe costs on this machine, by the class of the probed instruction: measured, on functions of this
//! program, because it differs thirtyfold between machines and classes.

use std::arch::naked_asm;
use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use probe_common::wire::{Spent, hits, part};
use serde::Serialize;

use super::Source;
use crate::attach::{Link, Pmu, Programs, drop_links};
use crate::contexts;
use crate::entry::{Class, Kernel};

/// Calls timed at once; short, so that most batches are not interrupted, and few: what is watched runs already, and may
/// have no processor to spare.
const BATCH: u32 = 50;
/// The same where a call takes fifty times as long.
const SLOW_BATCH: u32 = 5;
/// Batches, of which the fastest counts: what is added by other work on the machine is not the probe's.
const BATCHES: u32 = 15;

/// What hits cost, and what is hit where: written by the threads that measure and attach, read by the one that tells.
#[derive(Debug, Clone, Default)]
pub struct Costs(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    known: Mutex<Known>,
    calibrated: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    calibration: Calibration,
    is_started: bool,
    /// Nothing more will be measured.
    is_calibrated: bool,
    /// By source and [`part`].
    dearest: BTreeMap<(Source, usize), Class>,
}

/// What a probe that does nothing costs on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Calibration {
    /// A hit, in ns, by the class of the probed instruction; a class that this kernel has not, or that could not be
    /// measured, is not there.
    pub hit_ns: BTreeMap<Class, u64>,
    /// What a return costs on top, in ns.
    pub return_ns: Option<u64>,
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hit_ns.is_empty() {
            return f.write_str("what a hit costs could not be measured");
        }
        f.write_str("a hit costs")?;
        for (n, (class, ns)) in self.hit_ns.iter().enumerate() {
            let at = match class {
                Class::Optimised => "at a nop of ours that the kernel rewrites",
                Class::Emulated => "at an instruction that the kernel emulates",
                Class::SingleStepped => "at one that it single-steps",
            };
            write!(f, "{} {:.2} µs {at}", if n == 0 { "" } else { "," }, *ns as f64 / 1000.0)?;
        }
        match self.return_ns {
            Some(ns) => write!(f, ", a return {:.2} µs more", ns as f64 / 1000.0),
            None => Ok(()),
        }
    }
}

/// What the hits of one way of counting cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HitCost {
    /// The dearest class among its probes.
    pub class: Class,
    /// One hit, as measured on this machine; `None` where it could not be.
    pub hit_ns: Option<u64>,
    /// One return on top; `None` where there are none, or it could not be measured.
    pub return_ns: Option<u64>,
}

impl Costs {
    /// A probe was attached for a part of what `source` counts.
    pub fn note(&self, source: Source, part: usize, class: Class) {
        let mut known = self.lock();
        let dearest = known.dearest.entry((source, part)).or_insert(class);
        *dearest = class.max(*dearest);
    }

    /// The cost of what counts for `source`; `None` where nothing is attached.
    pub fn of(&self, source: Source) -> Option<HitCost> {
        let known = self.lock();
        let class = known.class_of(source)?;
        let calibration = &known.calibration;
        let return_ns = calibration.return_ns.filter(|_| source == Source::Function);
        Some(HitCost { class, hit_ns: calibration.hit_ns.get(&class).copied(), return_ns })
    }

    /// What hits have cost a process so far, in ns.
    pub fn sum_ns(&self, spent: &Spent) -> f64 {
        let known = self.lock();
        let class_ns = |source| known.class_of(source).map_or(0.0, |class| known.hit_ns(class));
        let site = class_ns(Source::Tap).max(class_ns(Source::Emulator));
        let at_sites = spent.hits.iter().take(hits::STREAMS).sum::<u64>() as f64 * site;
        let in_programs = spent.program_ns.iter().take(hits::STREAMS).sum::<u64>() as f64;
        let of_functions = (0..part::COUNT).map(|part| known.part_ns(spent, part)).sum::<f64>();
        at_sites + in_programs + of_functions
    }

    /// The same of hits at functions of a provider, of one part.
    pub fn part_ns(&self, spent: &Spent, part: usize) -> f64 {
        self.lock().part_ns(spent, part)
    }

    /// True where functions of a provider are single-stepped.
    pub fn single_steps(&self, part: usize) -> bool {
        self.lock().dearest.get(&(Source::Function, part)) == Some(&Class::SingleStepped)
    }

    /// Has every class measured, once, with probes of its own that do nothing: this process is never watched. Nobody need
    /// wait for the thread. Where the kernel puts one probe in place after the other, it makes others wait: so it is
    /// started when the first are in place, or where somebody wants to know before.
    pub fn calibrate(&self, programs: &Arc<Programs>) {
        if std::mem::replace(&mut self.lock().is_started, true) {
            return;
        }
        let (costs, programs) = (self.clone(), Arc::clone(programs));
        let calibrate = move || {
            costs.measure_all(&programs);
            costs.lock().is_calibrated = true;
            costs.0.calibrated.notify_all();
        };
        if thread::Builder::new().name("hit-cost".to_owned()).spawn(calibrate).is_err() {
            self.lock().is_calibrated = true;
        }
    }

    /// What was measured; `None` as long as that goes on.
    pub fn calibration(&self) -> Option<Calibration> {
        let known = self.lock();
        known.is_calibrated.then(|| known.calibration.clone())
    }

    /// What was measured, waited for at most so long.
    pub fn calibration_within(&self, most: Duration) -> Option<Calibration> {
        let pending = |known: &mut Known| !known.is_calibrated;
        let known = self.0.calibrated.wait_timeout_while(self.lock(), most, pending);
        drop(known);
        self.calibration()
    }

    fn measure_all(&self, programs: &Programs) {
        let Ok(pmu) = Pmu::read("uprobe") else { return };
        // The smallest program there is; at a return too, for the kernel takes up to 20 ms of CPU time to check another.
        let Ok(program) = programs.load_uprobe("req_notify_enter") else { return };
        let mut links = Vec::new();
        // The commonest first.
        for class in [Class::Emulated, Class::Optimised, Class::SingleStepped] {
            // A nop is rewritten only where the kernel does that; measured elsewhere it would be another class's.
            if class == Class::Optimised && !Kernel::running().rewrites_nop5 {
                continue;
            }
            let Some((ns, link)) = function(class).and_then(|f| timed(pmu, f, class, program.as_fd(), false))
            else {
                continue;
            };
            links.push(link);
            self.lock().calibration.hit_ns.insert(class, ns);
        }
        if let Some((both, link)) = function_to_return_from()
            .and_then(|function| timed(pmu, function, Class::Emulated, program.as_fd(), true))
        {
            links.push(link);
            let mut known = self.lock();
            let entry_ns = known.calibration.hit_ns.get(&Class::Emulated).copied();
            // The return alone: its probe traps at the entry too.
            known.calibration.return_ns = entry_ns.map(|entry| both.saturating_sub(entry));
        }
        // Detaching waits for the kernel a tenth of a second each; what was measured is known before.
        let _ = thread::Builder::new().name("detach".to_owned()).spawn(move || drop_links(links));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn class_of(&self, source: Source) -> Option<Class> {
        (0..part::COUNT).filter_map(|part| self.dearest.get(&(source, part))).max().copied()
    }

    fn hit_ns(&self, class: Class) -> f64 {
        self.calibration.hit_ns.get(&class).map_or_else(|| guess_ns(class), |ns| *ns as f64)
    }

    fn part_ns(&self, spent: &Spent, part: usize) -> f64 {
        let [entered, left] = if part == part::POSTS {
            [hits::POSTS, hits::POST_RETURNS]
        } else {
            [hits::POLLS, hits::POLL_RETURNS]
        };
        let class = self.dearest.get(&(Source::Function, part)).copied();
        let function = class.map_or(0.0, |class| self.hit_ns(class));
        let returned = self.calibration.return_ns.map_or(RETURN_GUESS_NS, |ns| ns as f64);
        let in_programs = spent.program_ns[entered] + spent.program_ns[left];
        spent.hits[entered] as f64 * function + spent.hits[left] as f64 * returned + in_programs as f64
    }
}

/// What a hit is taken to cost as long as it was not measured: dearer than on any machine seen.
fn guess_ns(class: Class) -> f64 {
    match class {
        Class::Optimised => 400.0,
        Class::Emulated => 800.0,
        Class::SingleStepped => 16_000.0,
    }
}

const RETURN_GUESS_NS: f64 = 400.0;

/// Nanoseconds that a probe adds to a call of a function whose first instruction is of a class, and the probe.
///
/// What a call takes without one is measured on a function that nobody probes: probes belong to the file, and another
/// profiler that measures at the same time has its own at this one. Both together are hardly dearer than one, and the
/// difference would be nearly nothing.
fn timed(
    pmu: Pmu,
    function: extern "C" fn(u64) -> u64,
    class: Class,
    program: BorrowedFd<'_>,
    returns: bool,
) -> Option<(u64, Link)> {
    let place = contexts::code_at(std::process::id(), function as usize as u64)?;
    let file = place.file.open().ok()?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let calls = if class == Class::SingleStepped { SLOW_BATCH } else { BATCH };
    let bare = fastest(function_nobody_probes()?, BATCH);
    let link = pmu.attach_file(program, &path, place.offset, returns, 0).ok()?;
    let probed = fastest(function, calls);
    Some((probed.saturating_sub(bare), link))
}

/// Nanoseconds of one call, in the fastest batch.
fn fastest(function: extern "C" fn(u64) -> u64, calls: u32) -> u64 {
    let batch = |_| {
        let began = Instant::now();
        for n in 0..calls {
            black_box(function(black_box(n.into())));
        }
        began.elapsed().as_nanos() as u64 / u64::from(calls)
    };
    (0..BATCHES).map(batch).min().unwrap_or(0)
}

/// A function whose first instruction is of a class.
fn function(class: Class) -> Option<extern "C" fn(u64) -> u64> {
    #[cfg(target_arch = "x86_64")]
    return Some(match class {
        Class::Optimised => five_byte_nop,
        Class::Emulated => push,
        Class::SingleStepped => lea,
    });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// One of its own for the return: the probe at the other's entry is there for a while yet.
fn function_to_return_from() -> Option<extern "C" fn(u64) -> u64> {
    #[cfg(target_arch = "x86_64")]
    return Some(push_again);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// As short as the others.
fn function_nobody_probes() -> Option<extern "C" fn(u64) -> u64> {
    #[cfg(target_arch = "x86_64")]
    return Some(never_probed);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn never_probed(_: u64) -> u64 {
    naked_asm!(".p2align 6", "push rdi", "pop rax", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn five_byte_nop(_: u64) -> u64 {
    // Aligned, so that the nop does not cross a page.
    naked_asm!(".p2align 6", ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "mov rax, rdi", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn push(_: u64) -> u64 {
    naked_asm!(".p2align 6", "push rdi", "pop rax", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn push_again(_: u64) -> u64 {
    naked_asm!(".p2align 6", "push rdi", "pop rax", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn lea(_: u64) -> u64 {
    naked_asm!(".p2align 6", "lea rax, [rdi + 1]", "ret")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::Setting;
    use crate::entry::{self, Entry, Owner};
    use probe_common::wire::KernelOffsets;

    #[test]
    fn the_functions_to_measure_are_of_their_classes() {
        let kernel = Kernel::from_release("6.18.0", "x86_64");
        for class in [Class::Emulated, Class::SingleStepped] {
            let Some(function) = function(class) else { return };
            assert_eq!(function(7), if class == Class::Emulated { 7 } else { 8 });
            // SAFETY: code of this program, longer than that.
            let code = unsafe { std::slice::from_raw_parts(function as *const u8, 5) };
            let entry = Entry { code, offset: 0, arguments: 1, owner: Owner::Foreign };
            let choice = entry::choose(&entry, &kernel).expect("a place");
            assert_eq!((choice.delta, choice.class), (0, class));
        }
    }

    #[test]
    fn a_hit_is_as_dear_where_another_profiler_measures_at_the_same_time() {
        let setting = Setting { whole_host: false, data_path: true, offsets: KernelOffsets::default() };
        let (Ok(programs), Ok(pmu)) = (Programs::load(&setting), Pmu::read("uprobe")) else {
            eprintln!("skipped: this user or kernel cannot attach probes");
            return;
        };
        let Some(function) = function(Class::SingleStepped) else { return };
        let program = programs.load_uprobe("req_notify_enter").expect("a program");
        let measure = || timed(pmu, function, Class::SingleStepped, program.as_fd(), false).expect("a probe");
        let (alone, first) = measure();
        let (beside, second) = measure();
        drop_links(vec![first, second]);
        // Taken as the difference that the second one makes, it would be a fiftieth.
        assert!(beside > alone / 5, "alone {alone} ns, beside another {beside} ns");
    }

    #[test]
    fn the_dearest_class_of_a_source_is_told_with_what_was_measured() {
        let costs = Costs::default();
        assert_eq!(costs.of(Source::Function), None);
        costs.note(Source::Function, part::POSTS, Class::Emulated);
        costs.note(Source::Function, part::POLLS, Class::SingleStepped);
        costs.note(Source::Function, part::POLLS, Class::Emulated);
        costs.lock().calibration.hit_ns.insert(Class::SingleStepped, 3000);
        let cost = costs.of(Source::Function).expect("a cost");
        assert_eq!((cost.class, cost.hit_ns), (Class::SingleStepped, Some(3000)));
        assert!(costs.single_steps(part::POLLS) && !costs.single_steps(part::POSTS));
        let mut spent = Spent::NONE;
        (spent.hits[hits::POSTS], spent.hits[hits::POLLS]) = (1, 2);
        spent.program_ns[hits::POLLS] = 50;
        let of_part = [part::POSTS, part::POLLS].map(|part| costs.part_ns(&spent, part));
        assert_eq!(of_part, [guess_ns(Class::Emulated), 6050.0]);
        assert_eq!(costs.sum_ns(&spent), of_part.iter().sum::<f64>());
    }

    #[test]
    fn what_was_measured_is_told_in_words_and_only_once_it_was() {
        let costs = Costs::default();
        assert_eq!(costs.calibration_within(Duration::ZERO), None);
        costs.lock().calibration.hit_ns.extend([(Class::SingleStepped, 15_100), (Class::Emulated, 402)]);
        costs.lock().calibration.return_ns = Some(251);
        costs.lock().is_calibrated = true;
        let told = costs.calibration_within(Duration::ZERO).expect("calibrated").to_string();
        assert_eq!(
            told,
            "a hit costs 0.40 µs at an instruction that the kernel emulates, 15.10 µs at one that it single-steps, \
             a return 0.25 µs more"
        );
        assert_eq!(Calibration::default().to_string(), "what a hit costs could not be measured");
    }
}
