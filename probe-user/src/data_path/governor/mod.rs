//! The governor: a thread that keeps what watching costs within what is allowed.
//!
//! Several times in a tenth of a second it looks at what each process was hit by and how much CPU time it used, and asks
//! the libraries of ours in it for as many operations as that allows. Functions of providers are watched all the time
//! where that is cheap enough, else in slices of time. What is spent too much, before the first look or when a program
//! becomes busy, is saved again later.

mod before;
mod estimate;
mod flags;
mod plan;
mod process;
mod slices;
mod spread;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use probe_common::wire::{Spent, part};

pub use flags::Flags;
pub use plan::Allowed;
pub use slices::SlicesTold;

use self::process::Process;
use self::slices::Slices;
use super::group::Placed;
use super::own_time::{Bound, OwnTime};
use super::{Costs, Targets};
use crate::collect::wire::FunctionTables;

/// Time between two looks.
const TICK: Duration = Duration::from_millis(20);
/// The same while every operation of some kind is looked at: a program that suddenly does a lot pays in full for so long.
const SHORT_TICK: Duration = Duration::from_millis(5);
/// And while a program has only just been met: one that becomes busy pays for every operation until it was looked at.
const FIRST_TICK: Duration = Duration::from_millis(2);
/// Where nothing has changed for a while, a look can wait for so many times as long: each costs some 50 µs of CPU time.
const CALM: u32 = 4;
/// Between two looks there is no more, but where they take too much of a processor.
const LONGEST_TICK: Duration = TICK.saturating_mul(CALM);

/// What looks may take. The first have to search for what later ones know, and come when a program may pay in full until the
/// next; none is so late that a program which becomes busy goes unnoticed. Attaching is mostly waiting, and does not count.
const OWN_TIME: Bound =
    Bound { one_in: 50, saved: Duration::from_millis(20), longest: Duration::from_secs(1) };

/// The governor of a recording.
pub struct Governor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    bell: Condvar,
}

struct State {
    processes: HashMap<u32, Process>,
    /// Processes that are not watched, and are hit at functions of providers all the same.
    bystanders: HashMap<u32, Process>,
    slices: Slices,
    costs: Costs,
    targets: Targets,
    allowed: Allowed,
    /// The tap's sites are wanted too.
    taps: bool,
    /// Functions are being put under watch.
    holds: usize,
    end: bool,
}

/// What the governor has done to a process.
#[derive(Debug, Clone, Default)]
pub struct Told(Arc<Mutex<[Option<SlicesTold>; part::COUNT]>>);

impl Told {
    /// How the functions of providers are watched, by part; `None` where they are all the time.
    pub fn slices(&self) -> [Option<SlicesTold>; part::COUNT] {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell(&self, part: usize, slices: SlicesTold) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[part] = Some(slices);
    }
}

impl Governor {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(
        allowed: Allowed,
        taps: bool,
        targets: Targets,
        costs: Costs,
        tables: FunctionTables,
        told: Told,
    ) -> std::io::Result<Self> {
        let slices = Slices::new(tables, told);
        let state = State {
            processes: HashMap::new(),
            bystanders: HashMap::new(),
            slices,
            costs,
            targets,
            allowed,
            taps,
            holds: 0,
            end: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), bell: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("governor".to_owned()).spawn(move || run(&of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// A process uses verbs: it is looked after from now on.
    pub fn meet(&self, pid: u32) {
        let mut state = self.shared.lock();
        let (taps, allowed) = (state.taps, state.allowed);
        let process = state.processes.entry(pid).or_insert_with(|| {
            // A busy one pays until the next look: that is not to wait for its time.
            self.shared.bell.notify_all();
            Process::new(pid)
        });
        process.look(taps, &allowed);
        if process.awaits() {
            process.brace(&allowed);
            self.shared.bell.notify_all();
        }
    }

    /// A process maps a library of ours: what it does until probes are in there tells what it is to be asked for then.
    pub fn expect(&self, pid: u32) {
        let mut state = self.shared.lock();
        let (taps, allowed) = (state.taps, state.allowed);
        state.processes.entry(pid).or_insert_with(|| Process::awaiting(pid)).look(taps, &allowed);
    }

    /// Probes are about to be put into a library of ours.
    pub fn brace(&self) {
        let mut state = self.shared.lock();
        let allowed = state.allowed;
        state.processes.values_mut().for_each(|process| process.brace(&allowed));
        self.shared.bell.notify_all();
    }

    /// A process is no more.
    pub fn forget(&self, pid: u32) {
        self.shared.lock().processes.remove(&pid);
    }

    /// A program has been put in place at functions of a provider; the governor decides from now on when it is.
    pub fn take(&self, placed: Placed) {
        self.shared.lock().slices.add(placed);
        self.shared.bell.notify_all();
    }

    /// More functions are about to be taken: no slice begins as long as this is held, for it would see a part of them only.
    pub fn hold(&self) -> Hold {
        self.shared.lock().holds += 1;
        Hold(Arc::clone(&self.shared))
    }

    /// Detaches from the functions of providers, and leaves all processes as they were.
    pub fn end(mut self) {
        self.shared.lock().end = true;
        self.shared.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let mut state = self.shared.lock();
        state.processes.values().for_each(Process::restore);
        state.slices.end();
    }
}

/// See [`Governor::hold`].
pub struct Hold(Arc<Shared>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.lock().holds -= 1;
        self.0.bell.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(shared: &Shared) {
    let mut state = shared.lock();
    let mut own_time = OwnTime::new(OWN_TIME);
    let mut sleep = TICK;
    while !state.end {
        let wait = state.slices.until_change(Instant::now()).map_or(sleep, |change| change.min(sleep));
        state = shared.bell.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        if state.end {
            return;
        }
        state.look();
        sleep = own_time.sleep(state.tick());
    }
}

impl State {
    /// Time to the next look.
    fn tick(&self) -> Duration {
        let processes = || self.processes.values();
        if processes().any(Process::is_new) {
            return FIRST_TICK;
        }
        let tick =
            if processes().any(Process::is_unbounded) || self.slices.are_new() { SHORT_TICK } else { TICK };
        let calm = !self.slices.are_unbounded() && processes().all(Process::is_calm);
        if calm { tick * CALM } else { tick }
    }

    fn look(&mut self) {
        let now = Instant::now();
        let functions = self.look_at_processes(now);
        if self.slices.look(now, &functions, &self.costs, &self.allowed, self.holds == 0) {
            let meanwhile = self.look_at_processes(Instant::now());
            self.slices.opened(&meanwhile, &self.allowed);
        }
    }

    fn look_at_processes(&mut self, now: Instant) -> [slices::Spent; part::COUNT] {
        let mut functions = [slices::Spent::default(); part::COUNT];
        let (taps, allowed) = (self.taps, self.allowed);
        let hit: HashMap<u32, Spent> = self.targets.hit().into_iter().collect();
        for pid in hit.keys() {
            // One that was made while the thread that attaches was busy is not known yet, and pays in full.
            self.processes.entry(*pid).or_insert_with(|| {
                let mut process = Process::new(*pid);
                process.look(taps, &allowed);
                process
            });
        }
        for (pid, process) in &mut self.processes {
            let spent = hit.get(pid).copied().unwrap_or_default();
            let of_process = process.look_at(&spent, now, &self.costs, &allowed, taps);
            functions.iter_mut().zip(&of_process).for_each(|(sum, part)| sum.join(part));
        }
        self.look_at_bystanders(now, &mut functions);
        functions
    }

    /// Others that map the same provider pay for its functions being watched: nobody has asked them.
    fn look_at_bystanders(&mut self, now: Instant, functions: &mut [slices::Spent; part::COUNT]) {
        let (costs, allowed) = (&self.costs, self.allowed);
        let hit: HashMap<u32, Spent> = self.targets.bystanders().into_iter().collect();
        self.bystanders.retain(|pid, _| hit.contains_key(pid));
        for (pid, spent) in hit {
            let process = self.bystanders.entry(pid).or_insert_with(|| Process::new(pid));
            let of_process = process.look_at(&spent, now, costs, &allowed, false);
            functions.iter_mut().zip(&of_process).for_each(|(sum, part)| sum.bystanders.join(&part.paid));
            if process.is_gone() {
                self.bystanders.remove(&pid);
                self.targets.forget_bystander(pid);
            }
        }
    }
}
