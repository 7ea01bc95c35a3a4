//! One process that is looked after: how much it does, what it pays, and what it is asked for.

use std::time::{Duration, Instant};

use probe_common::site::{Rates, STREAMS};
use probe_common::wire::{Spent, hits, part};

use super::Flags;
use super::before::{self, Done};
use super::plan::{self, Allowed, Seen};
use super::slices;
use crate::data_path::{Costs, cpu_time};

/// Asked for where nothing is known: everything, so that what a short or slow program does is counted exactly. One that
/// does a lot, without having done it before, pays for it until the next look.
const AT_FIRST: [u32; STREAMS] = [0; STREAMS];
/// What was seen is forgotten by half after this time.
const WINDOW_S: f64 = 1.0;
/// CPU use is that of about so long.
const CPU_OVER_S: f64 = 0.2;
/// The kernel adds a running thread's time up at its ticks: of a few of them it is known.
const TICKS_S: f64 = 0.012;
/// Until that is known, it is taken to be half of one.
const CPU_AT_FIRST: f64 = 0.5;
/// Savings are kept for so long.
const SAVED_S: f64 = 0.5;
/// So many hits between two looks are a rate.
const MANY: u64 = 50;
/// A process is new until so many looks have seen something, and at most for so long.
const FIRST_LOOKS: u32 = 5;
const NEW: Duration = Duration::from_secs(1);
/// Looks without a change after which the next is taken to bring none either.
const CALM_AFTER: u32 = 50;
/// What a hit at a site is taken to cost as long as there were few: a lot.
const HIT_GUESS_NS: f64 = 1000.0;
/// Times a process that is hit at sites of ours is searched for them.
const SEARCHES: u32 = 50;

/// A process.
pub struct Process {
    pid: u32,
    flags: Flags,
    asked: [u32; STREAMS],
    seen: [Seen; STREAMS],
    /// What it was like at the last look.
    last: Option<Last>,
    /// CPUs it uses.
    cpu: f64,
    /// Beyond what is allowed; less than nothing where something was saved.
    debt_ns: f64,
    searches: u32,
    /// What it had done when it was met.
    before: Option<Done>,
    /// The probes are not in place yet.
    awaits: bool,
    /// Since when it is known, or the probes are about to be in place.
    met: Instant,
    /// Looks that saw something.
    looks: u32,
    /// Looks since something changed.
    calm: u32,
    /// It was hit at functions of a provider.
    at_functions: bool,
    /// It had no CPU time any more at the last look.
    is_gone: bool,
}

#[derive(Clone, Copy)]
struct Last {
    at: Instant,
    spent: Spent,
    cpu_ns: u64,
}

impl Process {
    pub fn new(pid: u32) -> Self {
        let seen = AT_FIRST.map(|exponent| Seen { exponent, ..Seen::default() });
        let cpu_ns = cpu_time::of_process(pid).unwrap_or(0);
        let spent = Spent::default();
        let met = Instant::now();
        let last = Some(Last { at: met, spent, cpu_ns });
        Self {
            pid,
            flags: Flags::default(),
            asked: AT_FIRST,
            seen,
            last,
            cpu: CPU_AT_FIRST,
            debt_ns: 0.0,
            searches: 0,
            before: None,
            awaits: false,
            met,
            looks: 0,
            calm: 0,
            at_functions: false,
            is_gone: false,
        }
    }

    /// One that maps a library of ours, into which probes have yet to be put.
    pub fn awaiting(pid: u32) -> Self {
        Self { awaits: true, ..Self::new(pid) }
    }

    /// Looks for the libraries of ours in it, and asks them for what it may pay for by what it did until now.
    pub fn look(&mut self, taps: bool, allowed: &Allowed) {
        if self.flags.look(self.pid, taps) {
            self.expect(allowed);
            self.flags.ask(Rates::one_in(self.asked));
        }
    }

    /// True where there was no such process any more at the last look.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// True where nothing can have hit it yet.
    pub fn awaits(&self) -> bool {
        self.awaits
    }

    /// Probes are about to be put in place, or are: asks by what it has done lately too.
    pub fn brace(&mut self, allowed: &Allowed) {
        self.awaits = false;
        if self.looks > 0 || !self.flags.any() {
            return;
        }
        self.expect(allowed);
        self.flags.ask(Rates::one_in(self.asked));
        self.met = Instant::now();
    }

    /// Decides what is asked for as long as nothing has hit it.
    fn expect(&mut self, allowed: &Allowed) {
        let read = || {
            Some(Done {
                operations: self.flags.operations(self.pid)?,
                cpu_ns: cpu_time::of_process(self.pid)?,
            })
        };
        let Some(done) = (self.looks == 0).then(read).flatten() else { return };
        self.asked = before::exponents(self.before, done, HIT_GUESS_NS, allowed);
        self.before.get_or_insert(done);
        self.see_anew();
    }

    fn see_anew(&mut self) {
        self.seen = self.asked.map(|exponent| Seen { exponent, ..Seen::default() });
    }

    /// True where every operation of some kind is looked at: all that bounds what this costs is the next look.
    pub fn is_unbounded(&self) -> bool {
        self.flags.any() && !self.awaits && self.asked.contains(&0)
    }

    /// True where it was hardly looked at yet: what it is asked for rests on what it did before, or on nothing.
    pub fn is_new(&self) -> bool {
        self.flags.any() && !self.awaits && self.looks < FIRST_LOOKS && self.met.elapsed() < NEW
    }

    /// True where it goes on as before.
    pub fn is_calm(&self) -> bool {
        self.calm >= CALM_AFTER
    }

    pub fn restore(&self) {
        self.flags.restore();
    }

    /// Takes in what it was hit by so far, and asks for more or less. Returns what it did and paid at functions of a
    /// provider since the last look, by part.
    pub fn look_at(
        &mut self,
        spent: &Spent,
        now: Instant,
        costs: &Costs,
        allowed: &Allowed,
        taps: bool,
    ) -> [slices::Spent; part::COUNT] {
        let nothing = [slices::Spent::default(); part::COUNT];
        let Some(last) = self.last else { return nothing };
        let seconds = now.duration_since(last.at).as_secs_f64();
        if seconds < 1e-3 {
            return nothing;
        }
        let cpu_now = cpu_time::of_process(self.pid);
        self.is_gone = cpu_now.is_none();
        let cpu_now = cpu_now.unwrap_or(last.cpu_ns);
        let used_ns = cpu_now.saturating_sub(last.cpu_ns) as f64;
        // The kernel adds a running thread's time up at its ticks only.
        let part = (seconds / CPU_OVER_S).min(1.0);
        self.cpu += (used_ns / seconds / 1e9 - self.cpu) * part;
        let paid_ns = (costs.sum_ns(spent) - costs.sum_ns(&last.spent)).max(0.0);
        self.debt_ns += paid_ns - allowed.overhead * used_ns;
        self.debt_ns = self.debt_ns.max(-allowed.overhead * self.cpu * SAVED_S * 1e9);
        let new = |kind: usize| spent.hits[kind].saturating_sub(last.spent.hits[kind]);
        let at_sites: u64 = (0..STREAMS).map(new).sum();
        if at_sites > 0 {
            if self.looks == 0 {
                // The time without probes says nothing of its rates.
                self.see_anew();
            }
            self.looks = self.looks.saturating_add(1);
            self.awaits = false;
        }
        if at_sites > 0 && !self.flags.any() && self.searches < SEARCHES {
            self.searches += 1;
            self.look(taps, allowed);
        }
        self.calm = self.calm.saturating_add(1);
        for (kind, seen) in self.seen.iter_mut().enumerate() {
            if seen.is_passed_by(new(kind), seconds) {
                self.calm = 0;
            }
            seen.hits += new(kind);
            seen.lately = if new(kind) >= MANY { new(kind) as f64 / seconds } else { 0.0 };
            seen.seconds += seconds;
            if seen.seconds > WINDOW_S {
                (seen.hits, seen.seconds) = (seen.hits / 2, seen.seconds / 2.0);
            }
        }
        // What is expected stands until the first hit, for a while.
        let is_expected = self.looks == 0 && self.met.elapsed() < NEW;
        if self.flags.any() && !is_expected {
            self.ask_anew(hit_ns(spent, costs), allowed);
        }
        // What hits take is CPU time too, which the average does not know yet; the time of one that does not wait is all used.
        let paid_now: f64 =
            (0..part::COUNT).map(|part| costs.part_ns(spent, part) - costs.part_ns(&last.spent, part)).sum();
        let busy_ns = if seconds >= TICKS_S {
            used_ns.max(paid_now)
        } else {
            (self.cpu * seconds * 1e9 + paid_now).min(self.cpu.max(1.0) * seconds * 1e9)
        };
        let hits_of = [[hits::POSTS, hits::POST_RETURNS], [hits::POLLS, hits::POLL_RETURNS]];
        let functions = std::array::from_fn(|part| slices::Spent {
            paid: slices::Paid {
                hits: hits_of[part].into_iter().map(new).sum(),
                cost_ns: (costs.part_ns(spent, part) - costs.part_ns(&last.spent, part)).max(0.0),
                cpu_ns: self.cpu * seconds * 1e9,
                busy_ns,
                cpus: self.cpu,
            },
            operations: spent.operations[part].saturating_sub(last.spent.operations[part]),
            beside: spent.beside.saturating_sub(last.spent.beside),
            processes: u32::from(spent.operations[part] > last.spent.operations[part]),
            bystanders: slices::Paid::default(),
        });
        self.last = Some(Last { at: now, spent: *spent, cpu_ns: cpu_now });
        self.at_functions |= functions.iter().any(|part| part.paid.hits > 0);
        // In a pause too, its CPU time earns what the next slice may cost.
        if self.at_functions { functions } else { nothing }
    }

    fn ask_anew(&mut self, hit_ns: f64, allowed: &Allowed) {
        let wanted = plan::exponents(&self.seen, hit_ns, plan::allowance(allowed, self.cpu, self.debt_ns));
        if wanted == self.asked {
            return;
        }
        self.asked = wanted;
        self.calm = 0;
        self.flags.ask(Rates::one_in(wanted));
        for (seen, exponent) in self.seen.iter_mut().zip(wanted) {
            if seen.exponent != exponent {
                *seen = Seen { exponent, ..Seen::default() };
            }
        }
    }
}

/// What a hit at a site costs on the average, the time in the programs included; that is known from one hit in a few, and
/// taken to be a lot as long as there were few.
fn hit_ns(spent: &Spent, costs: &Costs) -> f64 {
    const FEW: u64 = 1000;
    let at_sites = spent.hits.iter().take(STREAMS).sum::<u64>();
    if at_sites < FEW { HIT_GUESS_NS } else { costs.sum_ns(spent) / at_sites as f64 }
}
