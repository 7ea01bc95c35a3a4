//! One process that is looked after: how much it does, what it pays, and what it is asked for.

use std::time::{Duration, Instant};

use probe_common::site::{Rates, STREAMS};
use probe_common::wire::{Spent, hits, part};

use super::Flags;
use super::plan::{self, Allowed, Seen};
use super::slices;
use crate::data_path::Costs;
use crate::data_path::spending::cpu_ns;

/// Asked for until something is known: everything, so that what a short or slow program does is counted exactly. One that
/// does a lot pays for it until the next look.
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
    met: Instant,
    /// Looks that saw something.
    looks: u32,
    /// Looks since something changed.
    calm: u32,
    /// It was hit at functions of a provider.
    at_functions: bool,
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
        let cpu_ns = cpu_ns(pid).unwrap_or(0);
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
            met,
            looks: 0,
            calm: 0,
            at_functions: false,
        }
    }

    /// Looks for the libraries of ours in it.
    pub fn look(&mut self, taps: bool) {
        if self.flags.look(self.pid, taps) {
            self.flags.ask(Rates::one_in(self.asked));
        }
    }

    /// True where every operation of some kind is looked at: all that bounds what this costs is the next look.
    pub fn is_unbounded(&self) -> bool {
        self.flags.any() && self.asked.contains(&0)
    }

    /// True where it was hardly looked at yet.
    pub fn is_new(&self) -> bool {
        self.looks < FIRST_LOOKS && self.met.elapsed() < NEW
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
        let cpu_now = cpu_ns(self.pid).unwrap_or(last.cpu_ns);
        let used_ns = cpu_now.saturating_sub(last.cpu_ns) as f64;
        // The kernel adds a running thread's time up at its ticks only.
        let part = (seconds / CPU_OVER_S).min(1.0);
        self.cpu += (used_ns / seconds / 1e9 - self.cpu) * part;
        let paid_ns = (costs.sum_ns(spent) - costs.sum_ns(&last.spent)).max(0.0);
        self.debt_ns += paid_ns - allowed.overhead * used_ns;
        self.debt_ns = self.debt_ns.max(-allowed.overhead * self.cpu * SAVED_S * 1e9);
        let new = |kind: usize| spent.hits[kind].saturating_sub(last.spent.hits[kind]);
        let at_sites: u64 = (0..STREAMS).map(new).sum();
        self.looks = self.looks.saturating_add(u32::from(at_sites > 0));
        if at_sites > 0 && !self.flags.any() && self.searches < SEARCHES {
            self.searches += 1;
            self.look(taps);
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
        if self.flags.any() {
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
            hits: hits_of[part].into_iter().map(new).sum(),
            operations: spent.operations[part].saturating_sub(last.spent.operations[part]),
            beside: spent.beside.saturating_sub(last.spent.beside),
            cost_ns: (costs.part_ns(spent, part) - costs.part_ns(&last.spent, part)).max(0.0),
            cpu_ns: self.cpu * seconds * 1e9,
            busy_ns,
            cpus: self.cpu,
            processes: u32::from(spent.operations[part] > last.spent.operations[part]),
        });
        self.last = Some(Last { at: now, spent: *spent, cpu_ns: cpu_now });
        self.at_functions |= functions.iter().any(|part| part.hits > 0);
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
    if at_sites < FEW { 1000.0 } else { costs.sum_ns(spent) / at_sites as f64 }
}
