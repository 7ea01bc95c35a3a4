//! One part of the functions of providers: watched all the time, or in slices of it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use probe_common::wire::Slice;

use super::plan::{self, Allowed, Next, SliceSeen};
use super::slices::{SlicesTold, Spent};
use crate::attach::Link;
use crate::collect::clock::now_ns;
use crate::data_path::group::Group;

/// Slices whose rates are remembered.
const REMEMBERED: usize = 256;
/// Before anything is decided, so much of the time must have been seen.
const FIRST_LOOK: Duration = Duration::from_millis(15);

/// What piled up while probes were put in place is worked off in so long.
const SHORTEST_SETTLING: Duration = Duration::from_millis(2);
const LONGEST_SETTLING: Duration = Duration::from_millis(50);

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

/// What is to be done after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Take the probes away.
    Close,
    /// Put them in place.
    Open,
}

/// What a slice that has ended has shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ended {
    /// Operations a second, as if nobody had looked, as far as that is known.
    pub rate: f64,
    /// For how long they were counted, in seconds.
    pub seconds: f64,
    /// Posts a second meanwhile.
    pub beside: f64,
}

/// A part, and whether it is watched now.
pub struct Watch {
    pub groups: Vec<Group>,
    /// Probes in place.
    pub links: Vec<Link>,
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
    /// By how much less gets done in a slice: 0–1.
    lost: f64,
    length: Duration,
    rates: VecDeque<f64>,
    /// When it was first taken away, by the clock of the programs.
    paused_ns: Option<u64>,
    was_hit: bool,
    /// Next time the probes stay in place.
    for_good: bool,
    /// Why there are none any more.
    refused: Option<String>,
    ended: Option<Ended>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            links: Vec::new(),
            state: State::Always { since: Instant::now() },
            number: 0,
            began: None,
            seen: Spent::default(),
            debt_ns: 0.0,
            watched: Duration::ZERO,
            share: 0.0,
            lost: 0.0,
            length: Duration::from_millis(10),
            rates: VecDeque::new(),
            paused_ns: None,
            was_hit: false,
            for_good: false,
            refused: None,
            ended: None,
        }
    }
}

impl Watch {
    /// There is something to be watched from now on. True where it is in place now.
    pub fn begin(&mut self) -> bool {
        if self.began.is_none() {
            let now = Instant::now();
            (self.began, self.state) = (Some(now), State::Always { since: now });
        }
        matches!(self.state, State::Always { .. } | State::Slice { .. })
    }

    pub fn is_always(&self) -> bool {
        matches!(self.state, State::Always { .. })
    }

    pub fn is_in_slice(&self) -> bool {
        matches!(self.state, State::Slice { .. })
    }

    pub fn is_paused(&self) -> bool {
        matches!(self.state, State::Pause { .. })
    }

    /// True where nothing of it will ever be seen, or has been.
    pub fn tells_nothing(&self) -> bool {
        !self.was_hit || self.state == State::Refused
    }

    /// Time until something is to be changed, where that is known.
    pub fn until_change(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Slice { until, .. } => Some(until.saturating_duration_since(now)),
            _ => None,
        }
    }

    /// Takes in what was paid since the last look, and decides. Slices begin only where they `may_open`.
    pub fn look(
        &mut self,
        now: Instant,
        spent: &Spent,
        single_stepped: bool,
        allowed: &Allowed,
        may_open: bool,
    ) -> Change {
        if self.groups.is_empty() {
            return Change::None;
        }
        self.seen.add(spent);
        self.was_hit |= spent.hits > 0;
        self.debt_ns += spent.cost_ns - allowed.overhead * spent.cpu_ns;
        match self.state {
            State::Always { since } if now.duration_since(since) >= FIRST_LOOK => {
                self.judge(now, since, single_stepped, allowed)
            }
            State::Slice { since, until, weight } if now >= until => {
                let counted = until.duration_since(since);
                self.watched += counted;
                let seconds = counted.as_secs_f64().max(1e-6);
                let useful = seconds * (1.0 - self.lost).max(0.05);
                let rate = self.seen.operations as f64 / weight.max(1) as f64 / useful;
                if self.rates.len() == REMEMBERED {
                    self.rates.pop_front();
                }
                self.rates.push_back(rate);
                self.ended = Some(Ended { rate, seconds, beside: self.seen.beside as f64 / seconds });
                self.close(now);
                self.judge(now, since, single_stepped, allowed);
                Change::Close
            }
            State::Pause { .. } if self.debt_ns <= 0.0 && may_open => Change::Open,
            _ => Change::None,
        }
    }

    /// What the slice that has just ended has shown; once.
    pub fn ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// What was paid while the probes were put in place.
    pub fn opened(&mut self, spent: &Spent, allowed: &Allowed) {
        self.debt_ns += spent.cost_ns - allowed.overhead * spent.cpu_ns;
    }

    /// Decides after having seen something, with the probes in place until now.
    fn judge(&mut self, now: Instant, since: Instant, single_stepped: bool, allowed: &Allowed) -> Change {
        let mut change = Change::None;
        if self.seen.hits == 0 || self.seen.cpu_ns <= 0.0 {
            // Nothing was done: nothing is paid.
            if self.is_always() {
                self.stay(now, since);
            }
            return change;
        }
        let share = (self.seen.cost_ns / self.seen.cpu_ns).clamp(0.0, 0.99);
        self.share = if self.number == 0 { share } else { (self.share + share) / 2.0 };
        self.lost = self.share;
        match (plan::next(&SliceSeen { share: self.share, single_stepped }, allowed), self.state) {
            (Next::Always, State::Always { .. }) => self.stay(now, since),
            (Next::Always, _) => self.for_good = true,
            (Next::Slices(length), State::Always { .. }) => {
                self.watched += now.duration_since(since);
                self.length = length;
                self.close(now);
                change = Change::Close;
            }
            (Next::Slices(length), _) => self.length = length,
            (Next::Refused(slowdown), _) => {
                self.close(now);
                change = Change::Close;
                self.state = State::Refused;
                self.refused = Some(format!(
                    "single-stepping would slow the program {slowdown:.1} times in each slice, and --max-slowdown is {}",
                    allowed.max_slowdown
                ));
            }
        }
        self.seen = Spent::default();
        change
    }

    fn stay(&mut self, now: Instant, since: Instant) {
        self.watched += now.duration_since(since);
        self.state = State::Always { since: now };
        self.seen = Spent::default();
    }

    fn close(&mut self, now: Instant) {
        self.state = State::Pause { since: now };
        self.paused_ns.get_or_insert_with(now_ns);
    }

    /// What programs are told that are not to count: in the past, so that what is hit until the probes are gone does not.
    pub fn nothing(&self) -> Slice {
        Slice { until_ns: 1, from_ns: 0, weight: 0, idle_weight: 0, number: self.number }
    }

    /// The probes are in place: the slice that counts from now on. `lost` is by how much less gets done in it, where
    /// that is known better than by what hits take, and `took` the time in which the probes were put in place: the
    /// program was held up by that, and needs as long to go on as before.
    pub fn open(&mut self, links: Vec<Link>, lost: Option<f64>, took: Duration) -> Slice {
        let settles = took.clamp(SHORTEST_SETTLING, LONGEST_SETTLING);
        let begin = Instant::now() + settles;
        let paused = match self.state {
            State::Pause { since } => begin.duration_since(since),
            _ => Duration::ZERO,
        };
        self.links = links;
        self.seen = Spent::default();
        if std::mem::take(&mut self.for_good) {
            self.state = State::Always { since: begin };
            return Slice::default();
        }
        self.lost = lost.unwrap_or(self.share);
        let (weight, length) = plan::weight(paused, self.length, self.lost);
        self.number += 1;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let from_ns = now_ns().saturating_add(ns(settles));
        self.state = State::Slice { since: begin, until: begin + length, weight };
        Slice {
            until_ns: from_ns.saturating_add(ns(length)),
            from_ns,
            weight,
            idle_weight: plan::weight_of(paused, length, self.share),
            number: self.number,
        }
    }

    /// What is told of it; `None` as long as it was watched all the time. `doubt` is how far off the correction may be.
    pub fn told(&self, now: Instant, single_stepped: bool, doubt: Option<f64>) -> Option<SlicesTold> {
        let (began, since_ns) = (self.began?, self.paused_ns?);
        let all = now.duration_since(began).as_secs_f64().max(1e-6);
        let unseen = match self.state {
            State::Pause { since } => now.duration_since(since).as_secs_f64() / all,
            _ => 0.0,
        };
        let rates: Vec<f64> = self.rates.iter().copied().collect();
        let doubt = doubt.unwrap_or_else(|| plan::doubt(self.share));
        Some(SlicesTold {
            since_ns,
            share: (self.watched.as_secs_f64() / all).min(1.0),
            error: plan::slices_error(&rates, doubt, unseen),
            ratios: single_stepped,
            slowdown: plan::slowdown(self.share),
            slices: self.number,
            refused: self.refused.clone(),
        })
    }
}
