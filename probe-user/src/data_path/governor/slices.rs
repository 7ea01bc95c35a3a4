//! Functions of providers, watched all the time or in slices of it.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, MapData};
use probe_common::wire::Slice;
use serde::Serialize;

use super::Told;
use super::plan::{self, Allowed, Next, SliceSeen};
use crate::attach::{Link, drop_links};
use crate::collect::clock::now_ns;
use crate::collect::wire::PlainSlice;
use crate::data_path::Costs;
use crate::data_path::group::Group;
use crate::data_path::point::Turn;

/// Slices whose rates are remembered.
const REMEMBERED: usize = 256;
/// Before anything is decided, so much of the time must have been seen.
const FIRST_LOOK: Duration = Duration::from_millis(15);

/// How functions of providers are watched.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SlicesTold {
    /// Share of the time that was watched, 0–1.
    pub share: f64,
    /// Relative error bound of what is estimated; `None` where nothing bounds it yet.
    pub error: Option<f64>,
    /// Only ratios mean something.
    pub ratios: bool,
    /// How many times as long the program takes in a slice.
    pub slowdown: f64,
    /// Slices so far.
    pub slices: u64,
    /// Why there are none any more.
    pub refused: Option<String>,
}

/// What processes did and paid at functions of a provider.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// Hits, returns included.
    pub hits: u64,
    /// Calls that the hits stand for.
    pub operations: u64,
    /// What they cost.
    pub cost_ns: f64,
    /// CPU time of the processes.
    pub cpu_ns: f64,
}

impl Spent {
    /// Adds another process.
    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.operations += other.operations;
        self.cost_ns += other.cost_ns;
        self.cpu_ns += other.cpu_ns;
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// In place, for good as far as is known.
    Always { since: Instant },
    /// In place until then, counting for so many.
    Slice { since: Instant, until: Instant, weight: u64 },
    /// Not in place.
    Pause { since: Instant },
    /// Never again.
    Refused,
}

/// The functions, and whether they are watched now.
pub struct Slices {
    map: Array<MapData, PlainSlice>,
    told: Told,
    groups: Vec<Group>,
    links: Vec<Link>,
    state: State,
    number: u64,
    /// Since something can be watched.
    began: Option<Instant>,
    /// Since the present state began.
    seen: Spent,
    /// Beyond what is allowed.
    debt_ns: f64,
    /// Time watched.
    watched: Duration,
    /// Share of hits in the last slice.
    share: f64,
    length: Duration,
    rates: VecDeque<f64>,
    paused_ever: bool,
    /// Next time they stay in place.
    for_good: bool,
    /// Why there are none any more.
    refused: Option<String>,
    detaching: Vec<thread::JoinHandle<()>>,
}

impl Slices {
    pub fn new(map: Array<MapData, PlainSlice>, told: Told) -> Self {
        Self {
            map,
            told,
            groups: Vec::new(),
            links: Vec::new(),
            state: State::Always { since: Instant::now() },
            number: 0,
            began: None,
            seen: Spent::default(),
            debt_ns: 0.0,
            watched: Duration::ZERO,
            share: 0.0,
            length: Duration::from_millis(10),
            rates: VecDeque::new(),
            paused_ever: false,
            for_good: false,
            refused: None,
            detaching: Vec::new(),
        }
    }

    /// More functions, which are watched now.
    pub fn add(&mut self, groups: Vec<Group>, links: Vec<Link>) {
        if self.began.is_none() {
            let now = Instant::now();
            (self.began, self.state) = (Some(now), State::Always { since: now });
        }
        self.groups.extend(groups);
        if matches!(self.state, State::Always { .. } | State::Slice { .. }) {
            self.links.extend(links);
        } else {
            self.detach(links);
        }
    }

    /// Time until something is to be changed, where that is known.
    pub fn until_change(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Slice { until, .. } => Some(until.saturating_duration_since(now)),
            _ => None,
        }
    }

    /// Takes in what was paid since the last look, and decides. True where a slice has begun: what was paid until then is
    /// not of it.
    pub fn look(&mut self, now: Instant, spent: &Spent, costs: &Costs, allowed: &Allowed) -> bool {
        if self.groups.is_empty() {
            return false;
        }
        self.detaching.retain(|thread| !thread.is_finished());
        self.seen.add(spent);
        self.debt_ns += spent.cost_ns - allowed.overhead * spent.cpu_ns;
        match self.state {
            State::Always { since } if now.duration_since(since) >= FIRST_LOOK => {
                self.judge(now, since, costs, allowed);
            }
            State::Slice { since, until, weight } if now >= until => {
                let counted = until.duration_since(since);
                self.watched += counted;
                let useful = counted.as_secs_f64() * (1.0 - self.share).max(0.05);
                self.remember(self.seen.operations as f64 / weight.max(1) as f64 / useful.max(1e-6));
                self.close(now);
                self.judge(now, since, costs, allowed);
            }
            State::Pause { since } if self.debt_ns <= 0.0 => {
                self.open(since);
                return true;
            }
            _ => {}
        }
        self.tell(now, costs);
        false
    }

    /// What was paid while the probes were put in place.
    pub fn opened(&mut self, spent: &Spent, allowed: &Allowed) {
        self.debt_ns += spent.cost_ns - allowed.overhead * spent.cpu_ns;
    }

    /// Decides after having seen something, with the probes in place until now.
    fn judge(&mut self, now: Instant, since: Instant, costs: &Costs, allowed: &Allowed) {
        if self.seen.hits == 0 || self.seen.cpu_ns <= 0.0 {
            // Nothing was done: nothing is paid.
            if let State::Always { .. } = self.state {
                self.watched += now.duration_since(since);
                self.state = State::Always { since: now };
            }
            return;
        }
        let share = (self.seen.cost_ns / self.seen.cpu_ns).clamp(0.0, 0.99);
        self.share = if self.number == 0 { share } else { (self.share + share) / 2.0 };
        let single_stepped = costs.single_steps();
        match (plan::next(&SliceSeen { share: self.share, single_stepped }, allowed), self.state) {
            (Next::Always, State::Always { .. }) => {
                self.watched += now.duration_since(since);
                self.state = State::Always { since: now };
            }
            (Next::Always, _) => {
                self.for_good = true;
            }
            (Next::Slices(length), State::Always { .. }) => {
                self.watched += now.duration_since(since);
                self.length = length;
                self.close(now);
            }
            (Next::Slices(length), _) => self.length = length,
            (Next::Refused(slowdown), _) => {
                self.close(now);
                self.state = State::Refused;
                self.refused = Some(format!(
                    "single-stepping would slow the program {slowdown:.1} times in each slice, and --max-slowdown is {}",
                    allowed.max_slowdown
                ));
            }
        }
        self.seen = Spent::default();
    }

    /// Ends the counting, and takes the probes away.
    fn close(&mut self, now: Instant) {
        // In the past: what is hit until the probes are gone does not count.
        self.set(Slice { until_ns: 1, weight: 0, number: self.number });
        let links = std::mem::take(&mut self.links);
        self.detach(links);
        self.state = State::Pause { since: now };
        self.paused_ever = true;
    }

    /// Puts the probes in place, and begins to count.
    fn open(&mut self, paused_since: Instant) {
        let mut links = Vec::new();
        for turn in [Turn::First, Turn::Then, Turn::Last] {
            for group in self.groups.iter().filter(|group| group.turn == turn) {
                // What cannot be attached any more is not seen in this slice; the others are.
                links.extend(group.attach().unwrap_or_default());
            }
        }
        self.links = links;
        let begin = Instant::now();
        self.seen = Spent::default();
        if self.for_good {
            self.for_good = false;
            self.set(Slice::default());
            self.state = State::Always { since: begin };
            return;
        }
        let (weight, length) = plan::weight(begin.duration_since(paused_since), self.length, self.share);
        self.number += 1;
        let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        self.set(Slice { until_ns: now_ns().saturating_add(length_ns), weight, number: self.number });
        self.state = State::Slice { since: begin, until: begin + length, weight };
    }

    fn set(&mut self, slice: Slice) {
        // The table has one place, which can always be written.
        let _ = self.map.set(0, PlainSlice(slice), 0);
    }

    /// Detaching waits in the kernel: the program is free of the probes long before.
    fn detach(&mut self, links: Vec<Link>) {
        if links.is_empty() {
            return;
        }
        let spawned = thread::Builder::new().name("detach".to_owned()).spawn(move || drop_links(links));
        self.detaching.extend(spawned);
    }

    fn remember(&mut self, rate: f64) {
        if self.rates.len() == REMEMBERED {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);
    }

    fn tell(&self, now: Instant, costs: &Costs) {
        let Some(began) = self.began.filter(|_| self.paused_ever) else { return };
        let all = now.duration_since(began).as_secs_f64().max(1e-6);
        let unseen = match self.state {
            State::Pause { since } => now.duration_since(since).as_secs_f64() / all,
            _ => 0.0,
        };
        let rates: Vec<f64> = self.rates.iter().copied().collect();
        self.told.tell(Some(SlicesTold {
            share: (self.watched.as_secs_f64() / all).min(1.0),
            error: plan::slices_error(&rates, self.share, unseen),
            ratios: costs.single_steps(),
            slowdown: plan::slowdown(self.share),
            slices: self.number,
            refused: self.refused.clone(),
        }));
    }

    pub fn end(&mut self) {
        drop_links(std::mem::take(&mut self.links));
        for thread in self.detaching.drain(..) {
            let _ = thread.join();
        }
    }
}
