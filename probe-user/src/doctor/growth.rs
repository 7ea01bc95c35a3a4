//! What grows without end: objects that are made and never given back, over all of a process or at one place of it.

use std::collections::BTreeMap;

use super::finding::{Evidence, many};
use super::subject::Subject;
use crate::report::units::count;

/// From where on something grows.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Alive at the end.
    pub min_live: f64,
    /// Share of those made that were given back.
    pub max_given_back: f64,
}

/// Objects of one kind, as the model knows them.
pub struct Objects<A> {
    /// Made, by the calls that succeeded.
    pub made: u64,
    /// Given back.
    pub given_back: u64,
    /// Alive at the end.
    pub live: u64,
    /// Of those alive: the number of the place that made it, when, and its bytes.
    pub alive: A,
}

/// Those that only grow.
#[derive(Debug, PartialEq)]
pub struct Growth {
    /// Made.
    pub made: u64,
    /// Given back.
    pub given_back: u64,
    /// Alive at the end.
    pub live: u64,
    /// Their bytes, as far as known.
    pub bytes: u64,
    /// Alive at the end, by the quarter of the time at work they were made in.
    pub quarters: [u64; 4],
    /// The place that made them, where others give back what they make.
    pub place: Option<usize>,
}

/// What is said of growth.
pub enum Grows {
    /// It does not.
    No,
    /// The time at work is too short to tell growth from set-up.
    TooShort,
    /// It does.
    Yes(Growth),
}

/// Whether objects grow without end: all of them together, else those of the place with most of them. A program that gives
/// back what it makes at one place may forget what it makes at another.
pub fn of<A>(subject: &Subject<'_>, objects: Objects<A>, limits: Limits) -> Grows
where
    A: Iterator<Item = (Option<usize>, Option<u64>, u64)>,
{
    let Objects { made, given_back, live, alive } = objects;
    if (live as f64) < limits.min_live {
        return Grows::No;
    }
    let mut places: BTreeMap<Option<usize>, (Vec<u64>, u64, u64)> = BTreeMap::new();
    for (place, since_ns, bytes) in alive {
        let (moments, n, sum) = places.entry(place).or_default();
        moments.extend(since_ns);
        *n += 1;
        *sum = sum.saturating_add(bytes);
    }
    let kept = |made: u64, back: u64| back as f64 <= made as f64 * limits.max_given_back;
    let mut candidates: Vec<Growth> = Vec::new();
    let mut too_short = false;
    let mut judge = |growth: Growth, moments: &mut dyn Iterator<Item = u64>| {
        match subject.quarters(moments) {
            None => too_short = true,
            // Growth goes on to the end; set-up is over by then.
            Some(quarters) if quarters[1..].iter().all(|n| *n >= (growth.live / 12).max(1)) => {
                candidates.push(Growth { quarters, ..growth });
            }
            Some(_) => {}
        }
    };
    let whole = |place| Growth { made, given_back, live, bytes: 0, quarters: [0; 4], place };
    if kept(made, given_back) {
        let bytes = places.values().map(|(_, _, bytes)| *bytes).fold(0, u64::saturating_add);
        let mut moments = places.values().flat_map(|(moments, _, _)| moments.iter().copied());
        judge(Growth { bytes, ..whole(None) }, &mut moments);
    } else {
        for (place, (moments, live, bytes)) in &places {
            let Some(site) = place.and_then(|place| subject.process.sites.get(place)) else { continue };
            // What was made before a window of interest is alive in it, and not counted.
            let made = site.count.saturating_sub(site.failed).max(*live);
            if site.stack.is_empty() || (*live as f64) < limits.min_live || !kept(made, made - live) {
                continue;
            }
            let growth =
                Growth { made, given_back: made - live, live: *live, bytes: *bytes, ..whole(*place) };
            judge(growth, &mut moments.iter().copied());
        }
    }
    match candidates.into_iter().max_by_key(|growth| growth.live) {
        Some(growth) => Grows::Yes(growth),
        None if too_short => Grows::TooShort,
        None => Grows::No,
    }
}

impl Growth {
    /// `354 queue pairs live, and their number only grows`
    pub fn title(&self, thing: &str) -> String {
        let at = if self.place.is_some() { ", all made at one place," } else { "" };
        format!("{}{at} live, and their number only grows", many(self.live, thing))
    }

    /// The growth over time.
    pub fn over_time(&self) -> String {
        format!(
            "alive at the end, by the quarter of the recording they were created in: {}",
            self.quarters.map(count).join(", ")
        )
    }

    /// The place that makes them and its caller, where others give back what they make.
    pub fn made_at(&self, subject: &Subject<'_>) -> Option<Evidence> {
        let site = subject.process.sites.get(self.place?)?;
        let frames = crate::report::callers(subject.model, subject.process.info.id, &site.stack);
        let way: Vec<String> = frames.take(3).collect();
        Some(Evidence { text: format!("made by {}", way.join(", called by ")), qpns: Vec::new() })
    }
}
