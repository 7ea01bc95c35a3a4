//! Functions of providers, watched all the time or in slices of it: posts and polls each by themselves.
//!
//! A program that waits polls as often as it can. Hits then take most of the time in a slice, and whether the program
//! gets less done by that depends on what it waits for: where that is the device, nothing is lost. So polls have slices
//! of their own, in which posts are counted beside: how much less is posted there than outside is what the slice costs
//! the program, and by that much what it finds in its completion queues is corrected.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, MapData};
use probe_common::wire::{Slice, part};
use serde::Serialize;

use super::Told;
use super::plan::{self, Allowed};
use super::watch::{Change, Watch};
use crate::attach::{Link, drop_links};
use crate::collect::wire::PlainSlice;
use crate::data_path::Costs;
use crate::data_path::group::Group;
use crate::data_path::point::Turn;

/// Slices of polls that tell how posts go on meanwhile.
const COMPARED: usize = 64;

/// How a part of the functions of providers is watched.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SlicesTold {
    /// When it was first not watched (`CLOCK_MONOTONIC`, ns).
    pub since_ns: u64,
    /// Share of the time that was watched, 0–1.
    pub share: f64,
    /// Relative error bound of what is estimated; `None` where nothing bounds it yet.
    pub error: Option<f64>,
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
    /// Hits, returns included.
    pub hits: u64,
    /// Posts, or completion entries, that the hits stand for.
    pub operations: u64,
    /// Posts while polls were watched in a slice.
    pub beside: u64,
    /// What they cost.
    pub cost_ns: f64,
    /// CPU time of the processes.
    pub cpu_ns: f64,
}

impl Spent {
    /// Adds another process, or time.
    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.operations += other.operations;
        self.beside += other.beside;
        self.cost_ns += other.cost_ns;
        self.cpu_ns += other.cpu_ns;
    }
}

/// Posts outside of slices of polls.
#[derive(Debug, Clone, Copy, Default)]
struct Outside {
    posts: f64,
    seconds: f64,
}

/// Both parts.
pub struct Slices {
    map: Array<MapData, PlainSlice>,
    told: Told,
    parts: [Watch; part::COUNT],
    outside: Outside,
    last_look: Instant,
    /// Posts a second in slices of polls, and before each.
    compared: VecDeque<(f64, f64)>,
    /// Of the last slice of polls, until it is known how posts go without.
    inside: Option<f64>,
    detaching: Vec<thread::JoinHandle<()>>,
}

impl Slices {
    pub fn new(map: Array<MapData, PlainSlice>, told: Told) -> Self {
        Self {
            map,
            told,
            parts: Default::default(),
            outside: Outside::default(),
            last_look: Instant::now(),
            compared: VecDeque::new(),
            inside: None,
            detaching: Vec::new(),
        }
    }

    /// More functions, which are watched now.
    pub fn add(&mut self, groups: Vec<Group>, links: Vec<(usize, Link)>) {
        for group in groups {
            let watch = &mut self.parts[group.part];
            watch.groups.push(group);
        }
        let mut not_now = Vec::new();
        for (part, link) in links {
            if self.parts[part].begin() {
                self.parts[part].links.push(link);
            } else {
                not_now.push(link);
            }
        }
        self.detach(not_now);
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
    ) -> bool {
        self.detaching.retain(|thread| !thread.is_finished());
        let allowed = self.of_each(allowed);
        let spent = self.as_paid(spent);
        self.note_outside(now, &spent[part::POSTS]);
        let mut opened = false;
        for (place, spent) in spent.iter().enumerate() {
            let may_open = !opened && self.may_open(place);
            let watch = &mut self.parts[place];
            match watch.look(now, spent, costs.single_steps(place), &allowed, may_open) {
                Change::None => {}
                Change::Close => self.close(place),
                Change::Open => {
                    self.open(place);
                    opened = true;
                }
            }
            self.note_ended(place);
        }
        for place in 0..part::COUNT {
            let doubt = if place == part::POLLS { self.progress().map(|(_, doubt)| doubt) } else { None };
            if let Some(told) = self.parts[place].told(now, costs.single_steps(place), doubt) {
                self.told.tell(place, told);
            }
        }
        opened
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
        let parts = self.parts.iter().filter(|watch| !watch.groups.is_empty()).count();
        Allowed { overhead: allowed.overhead / parts.max(1) as f64, ..*allowed }
    }

    /// Posts that are counted beside polls are paid by these.
    fn as_paid(&self, spent: &[Spent; part::COUNT]) -> [Spent; part::COUNT] {
        let [mut posts, mut polls] = *spent;
        if self.parts[part::POLLS].is_in_slice() && !self.parts[part::POSTS].is_always() {
            polls.hits += std::mem::take(&mut posts.hits);
            polls.cost_ns += std::mem::take(&mut posts.cost_ns);
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
            !posts.is_in_slice() && (self.outside.seconds > 0.0 || posts.tells_nothing())
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
        }
    }

    fn note_ended(&mut self, place: usize) {
        let Some(ended) = self.parts[place].ended() else { return };
        if place == part::POLLS {
            self.inside = Some(ended.beside);
        } else {
            self.outside.posts += ended.rate * ended.seconds;
            self.outside.seconds += ended.seconds;
        }
    }

    /// How much is done in a slice of polls by what is done without, and how far that may be off.
    fn progress(&self) -> Option<(f64, f64)> {
        let compared: Vec<_> = self.compared.iter().copied().collect();
        plan::progress(&compared)
    }

    /// Ends the counting, and takes the probes away.
    fn close(&mut self, place: usize) {
        self.set(place, self.parts[place].nothing());
        let links = std::mem::take(&mut self.parts[place].links);
        self.detach(links);
    }

    /// Puts the probes in place, and begins to count.
    fn open(&mut self, place: usize) {
        let [posts, polls] = &self.parts;
        let beside: &[Group] = if place == part::POLLS && posts.is_paused() { &posts.groups } else { &[] };
        let own: &[Group] = if place == part::POLLS { &polls.groups } else { &posts.groups };
        let mut links = Vec::new();
        let began = Instant::now();
        for turn in [Turn::First, Turn::Then, Turn::Last] {
            for group in own.iter().chain(beside).filter(|group| group.turn == turn) {
                // What cannot be attached any more is not seen in this slice; the others are.
                links.extend(group.attach().unwrap_or_default());
            }
        }
        if place == part::POLLS {
            let outside = std::mem::take(&mut self.outside);
            if let Some(inside) = self.inside.take()
                && outside.posts > 0.0
            {
                if self.compared.len() == COMPARED {
                    self.compared.pop_front();
                }
                self.compared.push_back((inside, outside.posts / outside.seconds));
            }
        }
        let lost = match self.progress() {
            Some((progress, _)) if place == part::POLLS => Some(1.0 - progress),
            _ => None,
        };
        let slice = self.parts[place].open(links, lost, began.elapsed());
        self.set(place, slice);
    }

    fn set(&mut self, place: usize, slice: Slice) {
        // The table has these places, which can always be written.
        let _ = self.map.set(place as u32, PlainSlice(slice), 0);
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
            drop_links(std::mem::take(&mut watch.links));
        }
        for thread in self.detaching.drain(..) {
            let _ = thread.join();
        }
    }
}
