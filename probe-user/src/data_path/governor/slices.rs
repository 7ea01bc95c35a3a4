//! Functions of providers, watched all the time or in slices of it: posts and polls each by themselves.
//!
//! A program that waits polls as often as it can. Hits then take most of the time in a slice, and whether the program
//! gets less done by that depends on what it waits for: where that is the device, nothing is lost. So polls have slices
//! of their own, in which posts are counted beside. How many completion entries there are for each post does not depend
//! on how fast both go: it is told by the slices of polls, and the number of posts by those of posts. And how much less is
//! posted beside polls than in slices of posts says how much hits cost.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use probe_common::wire::{Slice, function, part};
use serde::Serialize;

use super::estimate::{self, Correction, Estimate, Pace};
use super::plan::Allowed;
use super::watch::{Change, Due, Watch};
use super::{LONGEST_TICK, Told};
use crate::attach::{Link, drop_links};
use crate::collect::wire::{FunctionTables, PlainSlice};
use crate::data_path::Costs;
use crate::data_path::group::Placed;

/// Times outside of slices of polls in which posts are remembered that are watched all the time.
const REMEMBERED: usize = 64;

/// How a part of the functions of providers is watched.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SlicesTold {
    /// When it was first not watched (`CLOCK_MONOTONIC`, ns).
    pub since_ns: u64,
    /// Share of the time that was watched, 0–1.
    pub share: f64,
    /// Relative error bound of what is estimated; `None` where nothing bounds it yet.
    pub error: Option<f64>,
    /// Why there is no error bound.
    pub unbounded: Option<String>,
    /// Only ratios mean something.
    pub ratios: bool,
    /// How many times as long the program takes in a slice, where it does not wait.
    pub slowdown: f64,
    /// Slices so far.
    pub slices: u64,
    /// Why there are none any more.
    pub refused: Option<String>,
}

/// What processes did and paid at a part of the functions of a provider.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// What they paid.
    pub paid: Paid,
    /// Posts, or completion entries, that the hits stand for.
    pub operations: u64,
    /// Posts while polls were watched in a slice.
    pub beside: u64,
    /// Processes that did something.
    pub processes: u32,
    /// What others paid that are not watched.
    pub bystanders: Paid,
}

/// What processes paid at a part of the functions of a provider.
#[derive(Debug, Clone, Copy, Default)]
pub struct Paid {
    /// Hits, returns included.
    pub hits: u64,
    /// What they cost.
    pub cost_ns: f64,
    /// CPU time of the processes, by what they use on the average: of it what may be paid is a part.
    pub cpu_ns: f64,
    /// CPU time of the processes in just this time, hits included.
    pub busy_ns: f64,
    /// CPUs they use.
    pub cpus: f64,
}

impl Paid {
    /// Adds another time.
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.cost_ns += other.cost_ns;
        self.cpu_ns += other.cpu_ns;
        self.busy_ns += other.busy_ns;
        self.cpus = self.cpus.max(other.cpus);
    }

    /// Adds another process at the same time.
    pub fn join(&mut self, other: &Self) {
        let cpus = self.cpus + other.cpus;
        self.add(other);
        self.cpus = cpus;
    }

    /// Takes over the hits of another part.
    fn take_hits(&mut self, other: &mut Self) {
        self.hits += std::mem::take(&mut other.hits);
        self.cost_ns += std::mem::take(&mut other.cost_ns);
    }
}

impl Spent {
    /// Adds another time.
    pub fn add(&mut self, other: &Self) {
        self.paid.add(&other.paid);
        self.operations += other.operations;
        self.beside += other.beside;
        self.processes = self.processes.max(other.processes);
        self.bystanders.add(&other.bystanders);
    }

    /// What all paid, watched or not.
    pub fn paid_by_all(&self) -> Paid {
        let mut all = self.paid;
        all.join(&self.bystanders);
        all
    }

    /// Adds another process at the same time.
    pub fn join(&mut self, other: &Self) {
        let (cpus, processes) = (self.paid.cpus + other.paid.cpus, self.processes + other.processes);
        self.add(other);
        (self.paid.cpus, self.processes) = (cpus, processes);
    }
}

/// Posts outside of slices of polls, since the last of those.
#[derive(Debug, Clone, Copy, Default)]
struct Outside {
    posts: f64,
    seconds: f64,
}

/// Both parts.
pub struct Slices {
    tables: FunctionTables,
    told: Told,
    parts: [Watch; part::COUNT],
    outside: Outside,
    /// Posts were seen without polls since the last slice of those.
    posts_seen: bool,
    last_look: Instant,
    /// Posts a second outside of slices of polls, where they are watched all the time.
    alone: VecDeque<f64>,
    detaching: Vec<thread::JoinHandle<()>>,
}

impl Slices {
    pub fn new(tables: FunctionTables, told: Told) -> Self {
        Self {
            tables,
            told,
            parts: Default::default(),
            outside: Outside::default(),
            posts_seen: false,
            last_look: Instant::now(),
            alone: VecDeque::new(),
            detaching: Vec::new(),
        }
    }

    /// A program more, which is in place now. The next look takes it away again where nothing of it counts.
    pub fn add(&mut self, program: Placed) {
        let watch = &mut self.parts[program.group.part];
        watch.programs.push(program);
        watch.begin();
    }

    /// Time until something is to be changed, where that is known.
    pub fn until_change(&self, now: Instant) -> Option<Duration> {
        self.parts.iter().filter_map(|watch| watch.until_change(now)).min()
    }

    /// Takes in what was paid since the last look, and decides. True where a slice has begun: what was paid until then is
    /// not of it.
    pub fn look(
        &mut self,
        now: Instant,
        spent: &[Spent; part::COUNT],
        costs: &Costs,
        allowed: &Allowed,
        may_open: bool,
    ) -> bool {
        self.detaching.retain(|thread| !thread.is_finished());
        let allowed = self.of_each(allowed);
        let spent = self.as_paid(spent);
        self.note_outside(now, &spent[part::POSTS]);
        let mut opened = false;
        for (place, spent) in spent.iter().enumerate() {
            let may_open = may_open && !opened && self.may_open(place);
            let posts = self.truth(part::POSTS, now).value;
            let watch = &mut self.parts[place];
            let (slices, was_always) = (watch.ledger().slices(), watch.is_always());
            match watch.look(now, spent, costs.single_steps(place), &allowed, may_open) {
                Change::None => {}
                Change::Close => {
                    if was_always {
                        self.parts[place].anchor(posts);
                    }
                    self.set(place, self.parts[place].nothing());
                }
                Change::Open => {
                    self.open(place, posts);
                    opened = true;
                }
            }
            self.posts_seen |= place == part::POSTS && self.parts[place].ledger().slices() > slices;
        }
        self.take_away();
        for place in 0..part::COUNT {
            let error = estimate::error(
                self.parts[place].ledger().told(),
                self.truth(place, now),
                self.until_next_look(place),
            );
            if let Some(told) = self.parts[place].told(now, costs.single_steps(place), error) {
                self.told.tell(place, told);
            }
        }
        opened
    }

    /// What may be done of a part until the next look, where nobody sees it.
    fn until_next_look(&self, place: usize) -> f64 {
        let watch = &self.parts[place];
        let rate = watch.ledger().pace().map_or(0.0, |pace| pace.rate);
        if watch.is_always() { 0.0 } else { rate * LONGEST_TICK.as_secs_f64() }
    }

    /// True where something is watched all the time.
    pub fn are_unbounded(&self) -> bool {
        self.parts.iter().any(Watch::is_unbounded)
    }

    /// True as long as it is not known what something costs that is watched all the time.
    pub fn are_new(&self) -> bool {
        self.parts.iter().any(Watch::is_new)
    }

    /// What was paid while the probes were put in place.
    pub fn opened(&mut self, spent: &[Spent; part::COUNT], allowed: &Allowed) {
        let allowed = self.of_each(allowed);
        for (watch, spent) in self.parts.iter_mut().zip(spent) {
            watch.opened(spent, &allowed);
        }
        self.last_look = Instant::now();
    }

    /// What each part may cost.
    fn of_each(&self, allowed: &Allowed) -> Allowed {
        let parts = self.parts.iter().filter(|watch| !watch.programs.is_empty()).count();
        Allowed { overhead: allowed.overhead / parts.max(1) as f64, ..*allowed }
    }

    /// Posts that are counted beside polls are paid by these.
    fn as_paid(&self, spent: &[Spent; part::COUNT]) -> [Spent; part::COUNT] {
        let [mut posts, mut polls] = *spent;
        if self.parts[part::POLLS].is_in_slice() && !self.parts[part::POSTS].is_always() {
            polls.paid.take_hits(&mut posts.paid);
            polls.bystanders.take_hits(&mut posts.bystanders);
        }
        [posts, polls]
    }

    /// Whether a slice of a part may begin: one of posts only while nothing else is in the way, one of polls only when it
    /// is known how posts go without.
    fn may_open(&self, place: usize) -> bool {
        let [posts, polls] = &self.parts;
        if place == part::POSTS {
            !polls.is_in_slice()
        } else {
            !posts.is_in_slice() && (self.posts_seen || posts.tells_nothing())
        }
    }

    /// Posts that are always counted are counted outside of slices of polls, too.
    fn note_outside(&mut self, now: Instant, posts: &Spent) {
        let seconds = now.duration_since(self.last_look).as_secs_f64();
        self.last_look = now;
        // Until they are gone, hits go on costing.
        if self.parts[part::POSTS].is_always()
            && self.parts[part::POLLS].is_paused()
            && self.detaching.is_empty()
        {
            self.outside.posts += posts.operations as f64;
            self.outside.seconds += seconds;
            self.posts_seen = true;
        }
    }

    /// How fast posts are made where nothing else is watched.
    fn posts_alone(&self) -> Option<Pace> {
        let posts = &self.parts[part::POSTS];
        if posts.is_always() { Pace::undisturbed(&self.alone) } else { posts.ledger().pace() }
    }

    /// By how much more is posted than slices of posts have shown.
    fn correction(&self) -> Correction {
        let Some(alone) = self.posts_alone() else { return Correction::unknown(0.0) };
        Correction::of_posts(&alone, self.parts[part::POLLS].ledger().beside().as_ref())
    }

    /// What was done of a part until then.
    fn truth(&self, place: usize, then: Instant) -> Estimate {
        let watch = &self.parts[place];
        if place == part::POSTS {
            let mut posts = watch.so_far(&self.correction(), then);
            if watch.is_always()
                && let Some(alone) = self.posts_alone()
            {
                // Those to come.
                posts.value += alone.rate * then.saturating_duration_since(self.last_look).as_secs_f64();
            }
            return posts;
        }
        let unknown = Correction::unknown(watch.ledger().pace().map_or(0.0, |pace| pace.lost));
        let posts = self.truth(part::POSTS, then);
        let meanwhile = Estimate { value: watch.posts_meanwhile(posts.value), ..posts };
        estimate::better(watch.so_far(&unknown, then), watch.ledger().of_posts(meanwhile))
    }

    /// Takes the probes away of which nothing counts, where they are hit. Those of posts stay beside polls.
    fn take_away(&mut self) {
        if self.parts.iter().all(Watch::is_watched) {
            return;
        }
        let is_beside = self.parts[part::POLLS].is_in_slice();
        // Where that cannot be read, all go: what stays in place by mistake is paid for.
        let hit = self.tables.hit.get(&0, 0).unwrap_or([1; function::COUNT]);
        let mut links = Vec::new();
        for (place, watch) in self.parts.iter_mut().enumerate() {
            if !(watch.is_watched() || place == part::POSTS && is_beside) {
                links.extend(watch.take_away(&hit));
            }
        }
        self.detach(links);
    }

    /// Puts the probes in place, and begins to count; so many posts were made so far.
    fn open(&mut self, place: usize, posts_made: f64) {
        let began = Instant::now();
        if place == part::POLLS && self.parts[part::POSTS].is_paused() {
            self.parts[part::POSTS].put_in_place();
        }
        self.parts[place].put_in_place();
        let [posts, polls] = &self.parts;
        // How many completions there are for each post does not depend on what piled up meanwhile.
        let by_posts = place == part::POLLS && polls.ledger().beside().is_some();
        let held_up = began.elapsed();
        let took = if by_posts { Duration::ZERO } else { held_up };
        if place == part::POLLS {
            self.posts_seen = false;
            let outside = std::mem::take(&mut self.outside);
            if posts.is_always() && outside.seconds > 0.0 {
                if self.alone.len() == REMEMBERED {
                    self.alone.pop_front();
                }
                self.alone.push_back(outside.posts / outside.seconds);
            }
        }
        self.parts.iter_mut().for_each(|watch| watch.hold_up(held_up));
        let watch = &self.parts[place];
        let length = watch.next_length();
        let rate = watch.ledger().pace().map(|pace| pace.rate);
        // In the middle of the time until the next slice: what comes after the last one is unseen.
        let due = |then| Some(Due { operations: self.truth(place, then).value, rate: rate? });
        let correction = if place == part::POSTS { self.correction().middle() } else { 1.0 };
        let opening = watch.opening(length, due, correction, took);
        let slice = self.parts[place].open(opening, posts_made);
        self.set(place, slice);
    }

    fn set(&mut self, place: usize, slice: Slice) {
        // The table has these places, which can always be written.
        let _ = self.tables.slices.set(place as u32, PlainSlice(slice), 0);
    }

    /// Detaching waits in the kernel: the program is free of the probes long before.
    fn detach(&mut self, links: Vec<Link>) {
        if links.is_empty() {
            return;
        }
        let spawned = thread::Builder::new().name("detach".to_owned()).spawn(move || drop_links(links));
        self.detaching.extend(spawned);
    }

    pub fn end(&mut self) {
        for watch in &mut self.parts {
            let placed = watch.programs.iter_mut();
            drop_links(placed.flat_map(|program| std::mem::take(&mut program.links)).collect());
            watch.programs.clear();
        }
        for thread in self.detaching.drain(..) {
            let _ = thread.join();
        }
    }
}
