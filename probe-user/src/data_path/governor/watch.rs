//! One part of the functions of providers: watched all the time, or in slices of it.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use probe_common::wire::Slice;
use probe_common::wire::function::Hit;

use super::estimate::{Correction, Estimate, Ledger, Taken};
use super::plan::{self, Allowed, Next, SliceSeen};
use super::slices::{Paid, SlicesTold, Spent};
use super::spread::Unbounded;
use crate::attach::Link;
use crate::collect::clock::now_ns;
use crate::data_path::group::Placed;
use crate::data_path::point::Turn;

/// Before anything is decided, so much of the time must have been seen, or so many hits.
const FIRST_LOOK: Duration = Duration::from_millis(15);
const MANY_HITS: u64 = 200;
/// The very first look comes after this.
const VERY_FIRST_LOOK: Duration = Duration::from_millis(2);
/// So much of what is allowed goes into paying off what was paid at first.
const PAID_OFF: f64 = 0.5;
/// What was not spent is kept for so long.
const SAVED_S: f64 = 0.5;

/// What piled up while probes were put in place is worked off in so long.
const SHORTEST_SETTLING: Duration = Duration::from_millis(2);
const LONGEST_SETTLING: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// In place, for good as far as is known.
    Always { since: Instant },
    /// In place since it was `opened`, counting in between for so many; `gap` is the time before that was not seen.
    Slice { opened: Instant, since: Instant, until: Instant, gap: Duration, weight: u64 },
    /// Not in place.
    Pause,
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

/// What is taken to be true, for a slice that begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// All that will have been done in the middle of the time until the next slice.
    pub operations: f64,
    /// Operations a second that are to be expected in the slice.
    pub rate: f64,
}

/// How a slice begins.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// The probes are in place.
    opened: Instant,
    /// From when on it counts.
    since: Instant,
    length: Duration,
    /// What was not seen before.
    gap: Duration,
    weight: u64,
}

/// A part, and whether it is watched now.
pub struct Watch {
    /// Its programs.
    pub programs: Vec<Placed>,
    state: State,
    number: u64,
    /// Since something can be watched.
    began: Option<Instant>,
    /// Since the present state began.
    seen: Spent,
    /// Beyond what is allowed.
    debt_ns: f64,
    /// The same, before anything was decided.
    arrears_ns: f64,
    /// Time watched.
    watched: Duration,
    /// For how long probes were put in place since it was counted last.
    held_up: Duration,
    /// Share of hits in the last slices.
    share: f64,
    /// The same, of processes that are not watched.
    bystanders_share: f64,
    length: Duration,
    ledger: Ledger,
    /// Until when it was counted last.
    counted_until: Option<Instant>,
    /// Something was seen of it.
    judged: bool,
    /// More than one process does something: what is true of all together need not be of each.
    several: bool,
    /// Posts that were made while it was watched all the time.
    anchor: f64,
    /// Posts when that began last.
    posts_at_return: f64,
    /// When it was first taken away, by the clock of the programs.
    paused_ns: Option<u64>,
    was_hit: bool,
    /// Next time the probes stay in place.
    for_good: bool,
    /// Why there are none any more.
    refused: Option<String>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            programs: Vec::new(),
            state: State::Always { since: Instant::now() },
            number: 0,
            began: None,
            seen: Spent::default(),
            debt_ns: 0.0,
            arrears_ns: 0.0,
            watched: Duration::ZERO,
            held_up: Duration::ZERO,
            share: 0.0,
            bystanders_share: 0.0,
            length: Duration::from_millis(10),
            ledger: Ledger::default(),
            counted_until: None,
            judged: false,
            several: false,
            anchor: 0.0,
            posts_at_return: 0.0,
            paused_ns: None,
            was_hit: false,
            for_good: false,
            refused: None,
        }
    }
}

impl Watch {
    /// There is something to be watched from now on.
    pub fn begin(&mut self) {
        if self.began.is_none() {
            let now = Instant::now();
            (self.began, self.state) = (Some(now), State::Always { since: now });
        }
    }

    /// True where probes are to be in place.
    pub fn is_watched(&self) -> bool {
        matches!(self.state, State::Always { .. } | State::Slice { .. })
    }

    /// Puts all in place that is not: polls, which are hit most, last.
    pub fn put_in_place(&mut self) {
        for turn in [Turn::First, Turn::Then, Turn::Last] {
            for program in self.programs.iter_mut().filter(|program| program.group.turn == turn) {
                // What cannot be attached any more is not seen in this slice; the others are.
                let _ = program.put();
            }
        }
    }

    /// Takes those away that were ever hit: nobody pays for the others.
    pub fn take_away(&mut self, hit: &Hit) -> Vec<Link> {
        let hit = self.programs.iter_mut().filter(|program| program.is_hit(hit));
        hit.flat_map(|program| std::mem::take(&mut program.links)).collect()
    }

    pub fn is_always(&self) -> bool {
        matches!(self.state, State::Always { .. })
    }

    /// True where all that bounds what it costs is the next look.
    pub fn is_unbounded(&self) -> bool {
        self.began.is_some() && self.is_always()
    }

    pub fn is_in_slice(&self) -> bool {
        matches!(self.state, State::Slice { .. })
    }

    pub fn is_paused(&self) -> bool {
        self.state == State::Pause
    }

    /// True where nothing of it will ever be seen, or has been.
    pub fn tells_nothing(&self) -> bool {
        !self.was_hit || self.state == State::Refused
    }

    /// True as long as it is not known what it costs: all that bounds it is the next look.
    pub fn is_new(&self) -> bool {
        self.is_unbounded() && !self.judged
    }

    /// Time until something is to be changed, where that is known.
    pub fn until_change(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Slice { until, .. } => Some(until.saturating_duration_since(now)),
            State::Always { since } if self.is_new() => {
                (since + VERY_FIRST_LOOK).checked_duration_since(now).filter(|wait| !wait.is_zero())
            }
            _ => None,
        }
    }

    /// What slices have shown so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// All that was done until then, by this correction.
    pub fn so_far(&self, correction: &Correction, then: Instant) -> Estimate {
        if self.paused_ns.is_none() {
            return Estimate { value: self.ledger.told(), off: Ok(0.0) };
        }
        let unseen = match (self.state, self.counted_until) {
            (State::Slice { .. } | State::Pause, Some(until)) => then.saturating_duration_since(until),
            _ => Duration::ZERO,
        };
        self.ledger.so_far(correction, unseen.as_secs_f64())
    }

    /// Of so many posts those that were made while this part was left out, or in slices.
    pub fn posts_meanwhile(&self, posts: f64) -> f64 {
        posts - self.anchor
    }

    /// This part is left out from now on, having been watched all the time, with so many posts made.
    pub fn anchor(&mut self, posts: f64) {
        self.anchor += posts - self.posts_at_return;
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
        if self.programs.is_empty() {
            return Change::None;
        }
        self.take_in(spent, allowed);
        self.seen.add(spent);
        self.was_hit |= spent.paid.hits > 0;
        match self.state {
            State::Always { since }
                if now.duration_since(since) >= FIRST_LOOK || self.seen.paid_by_all().hits >= MANY_HITS =>
            {
                self.judge(now, since, single_stepped, allowed)
            }
            State::Slice { opened, since, until, gap, weight } if now >= until => {
                let counted = until.duration_since(since);
                self.watched += counted;
                let in_place = now.duration_since(opened).as_nanos().max(1) as f64;
                let Paid { cost_ns, busy_ns, .. } = self.seen.paid;
                let paid = cost_ns / in_place;
                // One that is kept from a processor by others loses by its own time, one that waits by that of the clock.
                let of_cpu = if busy_ns > 0.0 { cost_ns / busy_ns } else { 0.0 };
                self.ledger.take(Taken {
                    stands_for: (gap + counted).as_secs_f64(),
                    seconds: counted.as_secs_f64(),
                    held_up: std::mem::take(&mut self.held_up).as_secs_f64(),
                    operations: self.seen.operations as f64 / weight.max(1) as f64,
                    beside: self.seen.beside as f64,
                    lost: paid.max(of_cpu),
                    paid,
                });
                self.close(until);
                self.judge(now, since, single_stepped, allowed);
                Change::Close
            }
            State::Pause if self.debt_ns <= 0.0 && may_open => Change::Open,
            _ => Change::None,
        }
    }

    /// What was done and paid since the last look, whatever state that was in.
    fn take_in(&mut self, spent: &Spent, allowed: &Allowed) {
        // Whoever shares the provider with what is watched is spared as that is.
        let paid = spent.paid_by_all();
        let income = allowed.overhead * paid.cpu_ns;
        let paid_off = (income * PAID_OFF).min(self.arrears_ns);
        self.arrears_ns -= paid_off;
        self.debt_ns += paid.cost_ns - (income - paid_off);
        if self.is_paused() && self.number == 0 {
            self.fall_behind();
        }
        if paid.cpus > 0.0 {
            self.debt_ns = self.debt_ns.max(-allowed.overhead * paid.cpus * SAVED_S * 1e9);
        }
        self.several |= spent.processes > 1;
        self.ledger.count(spent.operations as f64, self.is_always());
    }

    /// What was paid before anything was decided is paid off beside slices: none at all would be no help to anybody.
    fn fall_behind(&mut self) {
        self.arrears_ns += std::mem::take(&mut self.debt_ns).max(0.0);
    }

    /// What was paid while the probes were put in place, and done in the slice by now.
    pub fn opened(&mut self, spent: &Spent, allowed: &Allowed) {
        self.take_in(spent, allowed);
        // Nothing of a slice is done before it counts: a call that was under way when the last one ended, and returns
        // now, is of that one and counts for as much as it did.
        if matches!(self.state, State::Slice { since, .. } if Instant::now() >= since) {
            self.seen.operations += spent.operations;
            self.seen.beside += spent.beside;
        }
    }

    /// For so long probes were put in place: the program may have been held up.
    pub fn hold_up(&mut self, time: Duration) {
        if !self.is_always() {
            self.held_up += time;
        }
    }

    /// Decides after having seen something, with the probes in place until now.
    fn judge(&mut self, now: Instant, since: Instant, single_stepped: bool, allowed: &Allowed) -> Change {
        let mut change = Change::None;
        let paid = self.seen.paid_by_all();
        if paid.hits == 0 || paid.busy_ns <= 0.0 {
            // Nothing was done: nothing is paid.
            if self.is_always() {
                self.stay(now, since);
            }
            return change;
        }
        follow(&mut self.share, &self.seen.paid);
        follow(&mut self.bystanders_share, &self.seen.bystanders);
        self.judged = true;
        match (plan::next(&SliceSeen { share: self.dearest_share(), single_stepped }, allowed), self.state) {
            (Next::Always, State::Always { .. }) => self.stay(now, since),
            // What was saved before pays for a while.
            (Next::Slices(_), State::Always { .. }) if self.may_stay(allowed) => self.stay(now, since),
            (Next::Always, _) => self.for_good = true,
            (Next::Slices(length), State::Always { .. }) => {
                self.watched += now.duration_since(since);
                self.length = length;
                self.fall_behind();
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

    /// A little too much for a little while is no reason to look at a part only: it is known for certain soon.
    fn may_stay(&self, allowed: &Allowed) -> bool {
        /// So many times as much is too much at once.
        const TOO_MUCH: f64 = 10.0;
        self.dearest_share() < allowed.overhead * TOO_MUCH
            && self.debt_ns <= allowed.overhead * self.seen.paid_by_all().cpus * SAVED_S * 1e9
    }

    /// Share of hits in the time of those that they take most of.
    fn dearest_share(&self) -> f64 {
        self.share.max(self.bystanders_share)
    }

    fn stay(&mut self, now: Instant, since: Instant) {
        self.watched += now.duration_since(since);
        self.state = State::Always { since: now };
        self.seen = Spent::default();
    }

    /// Nothing counts any more since then.
    fn close(&mut self, since: Instant) {
        self.state = State::Pause;
        self.counted_until = Some(since);
        self.paused_ns.get_or_insert_with(now_ns);
    }

    /// What programs are told that are not to count: in the past, so that what is hit until the probes are gone does not.
    pub fn nothing(&self) -> Slice {
        Slice { until_ns: 1, from_ns: 0, weight: 0, idle_weight: 0, number: self.number }
    }

    /// For how long the next slice is to count: by chance, so that a program's own rhythm does not fall in step.
    pub fn next_length(&self) -> Duration {
        self.length.mul_f64(0.5 + chance())
    }

    /// How a slice of this length begins, with the probes in place. `due` is what will have been done by some time, where
    /// that is known, else the time before counts `correction` times as much as the slice. `took` is the time in which the
    /// probes were put in place: the program was held up by that, and needs as long to go on as before.
    pub fn opening(
        &self,
        length: Duration,
        due: impl Fn(Instant) -> Option<Due>,
        correction: f64,
        took: Duration,
    ) -> Opening {
        let settles = took.clamp(SHORTEST_SETTLING, LONGEST_SETTLING);
        let opened = Instant::now();
        let since = opened + settles;
        let gap = self.counted_until.map_or(Duration::ZERO, |until| since.saturating_duration_since(until));
        let due = due(since + length + gap / 2);
        let lacking = due.map(|due| (due.operations - self.ledger.told(), due.rate * length.as_secs_f64()));
        Opening { opened, since, length, gap, weight: plan::weight(gap, length, correction, lacking) }
    }

    /// The slice that counts from now on. `posts` is how many were made so far.
    pub fn open(&mut self, opening: Opening, posts: f64) -> Slice {
        let Opening { opened, since, length, gap, weight } = opening;
        self.seen = Spent::default();
        if std::mem::take(&mut self.for_good) {
            self.posts_at_return = posts;
            self.ledger.pass(gap.as_secs_f64(), std::mem::take(&mut self.held_up).as_secs_f64());
            self.state = State::Always { since };
            return Slice::default();
        }
        self.number += 1;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let from_ns = now_ns().saturating_add(ns(since.saturating_duration_since(Instant::now())));
        self.state = State::Slice { opened, since, until: since + length, gap, weight };
        Slice {
            until_ns: from_ns.saturating_add(ns(length)),
            from_ns,
            weight,
            idle_weight: plan::weight_of(gap, length, self.share),
            number: self.number,
        }
    }

    /// What is told of it, with this error bound or the reason why there is none; `None` as long as it was watched all
    /// the time.
    pub fn told(
        &self,
        now: Instant,
        single_stepped: bool,
        error: Result<f64, Unbounded>,
    ) -> Option<SlicesTold> {
        let (began, since_ns) = (self.began?, self.paused_ns?);
        let error = if self.several { Err(Unbounded::Shared) } else { error };
        let all = now.duration_since(began).as_secs_f64().max(1e-6);
        Some(SlicesTold {
            since_ns,
            share: (self.watched.as_secs_f64() / all).min(1.0),
            error: error.ok(),
            unbounded: error.err().map(|why| why.to_string()),
            ratios: single_stepped,
            slowdown: plan::slowdown(self.share),
            slices: self.number,
            refused: self.refused.clone(),
        })
    }
}

/// Takes in what share of the time hits took. Of few hits little is known: one that was timed while others held the
/// processor is most of their cost.
fn follow(share: &mut f64, paid: &Paid) {
    if paid.hits > 0 && paid.busy_ns > 0.0 {
        let (now, hits) = ((paid.cost_ns / paid.busy_ns).clamp(0.0, 0.99), paid.hits as f64);
        *share += (now - *share) * hits / (hits + 100.0);
    }
}

/// A number by chance, 0–1.
fn chance() -> f64 {
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}
