//! How much was done, from slices of time: pure, from what each has shown.
//!
//! In a slice a program is slowed by the hits, or it is not: one that waits for its device loses nothing, one that is
//! bound by its own work all that hits take. Which of both is not known beforehand, and is measured where it can be: the
//! more calls are probed, the more a hit costs, and the time of an operation, as a function of what is added to it, bends
//! upwards only (it is the longest of several paths). A line through two such times meets no cost at all below the truth,
//! and the truth is not above the time at the lower cost: between both it lies.
//!
//! While probes are put in place a program is held up, between slices, where nobody sees it. One that is bound by its pace
//! makes up for that, one that is bound by its device or its own work loses some of the time, and none loses more.

use std::collections::VecDeque;

use super::spread::{self, Unbounded};

/// Slices that are remembered.
const REMEMBERED: usize = 256;
/// What a hit costs is known to a fifth.
const KNOWN_TO: f64 = 1.2;
/// No more than this is taken to be lost to hits.
const MOST_LOST: f64 = 0.95;

/// What a slice has shown.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Taken {
    /// For how long it stands, in seconds: since the one before, and its own length.
    pub stands_for: f64,
    /// For how long it counted, in seconds.
    pub seconds: f64,
    /// For how long probes were put in place since the slice before, in seconds.
    pub held_up: f64,
    /// Operations in it: posts, or completion entries.
    pub operations: f64,
    /// Posts in it, where it is one of polls.
    pub beside: f64,
    /// Share of the program's time that hits took at most, 0–1.
    pub lost: f64,
    /// What hits cost, in seconds a second.
    pub paid: f64,
}

impl Taken {
    fn rate(&self) -> f64 {
        self.operations / self.seconds.max(1e-9)
    }
}

/// Rates, by slices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Operations a second.
    pub rate: f64,
    /// How far that may be off (95 %), as a part of it.
    pub error: Result<f64, Unbounded>,
    /// Share of the program's time that hits took at most.
    pub lost: f64,
    /// What hits cost, in seconds a second.
    pub paid: f64,
}

impl Pace {
    fn of(slices: &VecDeque<Taken>, rate_of: impl Fn(&Taken) -> f64) -> Option<Self> {
        let number = slices.len() as f64;
        let mean = |of: &dyn Fn(&Taken) -> f64| slices.iter().map(of).sum::<f64>() / number;
        let weight: f64 = slices.iter().map(|slice| slice.stands_for).sum();
        let worth = weight * weight / slices.iter().map(|slice| slice.stands_for.powi(2)).sum::<f64>();
        let rate = slices.iter().map(|slice| slice.stands_for * rate_of(slice)).sum::<f64>() / weight;
        let plain = mean(&rate_of);
        let residues: Vec<_> = slices.iter().map(|slice| rate_of(slice) - plain).collect();
        (weight > 0.0).then(|| Self {
            rate,
            error: spread::error_of_mean(&residues, worth, rate),
            lost: mean(&|slice| slice.lost),
            paid: mean(&|slice| slice.paid),
        })
    }

    /// Of rates that no further hit has slowed. `None` without any.
    pub fn undisturbed(rates: &VecDeque<f64>) -> Option<Self> {
        let number = rates.len() as f64;
        let rate = rates.iter().sum::<f64>() / number;
        let residues: Vec<_> = rates.iter().map(|one| one - rate).collect();
        let error = spread::error_of_mean(&residues, number, rate);
        (!rates.is_empty()).then_some(Self { rate, error, lost: 0.0, paid: 0.0 })
    }

    /// What hits cost each operation, in seconds.
    fn cost(&self) -> f64 {
        self.paid / self.rate
    }
}

/// By how much more is done without hits than was found with them, 1 for no more: at least, and at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    pub least: f64,
    pub most: f64,
    /// The share of the time that hits took where there is no saying how much more is done without them.
    beyond: Option<f64>,
}

impl Correction {
    /// Where nothing is known but what hits took.
    pub fn unknown(lost: f64) -> Self {
        let at_most = (lost * KNOWN_TO).max(0.0);
        let most = 1.0 / (1.0 - at_most.min(MOST_LOST));
        Self { least: 1.0, most, beyond: (at_most > MOST_LOST).then_some(lost) }
    }

    /// Of posts: `alone` in slices of their own, and `beside` polls, where hits cost more.
    pub fn of_posts(alone: &Pace, beside: Option<&Pace>) -> Self {
        let unknown = Self::unknown(alone.lost);
        let Some(beside) = beside.filter(|beside| beside.cost() > alone.cost() * KNOWN_TO) else {
            return unknown;
        };
        let (Ok(one), Ok(other)) = (alone.error, beside.error) else { return unknown };
        // The time of an operation at the higher cost by that at the lower one, at most.
        let longer = alone.rate / beside.rate * (1.0 + one.hypot(other));
        let line = alone.cost() / (beside.cost() - alone.cost()) * (longer - 1.0).max(0.0);
        let most = if line < 1.0 { 1.0 / (1.0 - line) } else { f64::INFINITY };
        if most < unknown.most { Self { least: 1.0, most, beyond: None } } else { unknown }
    }

    /// What is taken to be true: as many times as much as the least as the most is of it.
    pub fn middle(&self) -> f64 {
        (self.least * self.most).sqrt()
    }

    /// How far that may be off, as a part of it.
    ///
    /// # Errors
    /// Where nothing bounds what was lost.
    pub fn doubt(&self) -> Result<f64, Unbounded> {
        match self.beyond {
            Some(lost) => Err(Unbounded::Slowed(lost)),
            None => Ok((self.most / self.least).sqrt() - 1.0),
        }
    }
}

/// An estimate, and how far it may be off (95 %), or why that is not known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub value: f64,
    pub off: Result<f64, Unbounded>,
}

/// What was done of one part of the functions.
#[derive(Debug, Default)]
pub struct Ledger {
    taken: VecDeque<Taken>,
    /// Slices so far.
    number: u64,
    /// What all slices stand for, as found in them.
    stood_for: f64,
    /// Of that, what falls into the time in which the program was held up.
    held_up: f64,
    /// Rates found in slices, and those of posts in slices of polls.
    pace: Option<Pace>,
    beside: Option<Pace>,
    /// Counted while nothing was left out.
    whole: f64,
    /// What the tables hold: each operation by what it counted for.
    told: f64,
}

impl Ledger {
    /// So much was added to what the tables hold; nothing is left out at present where it is `whole`.
    pub fn count(&mut self, operations: f64, whole: bool) {
        self.told += operations;
        if whole {
            self.whole += operations;
        }
    }

    /// A slice has ended.
    pub fn take(&mut self, slice: Taken) {
        if self.taken.len() == REMEMBERED {
            self.taken.pop_front();
        }
        self.number += 1;
        self.stood_for += slice.stands_for * slice.rate();
        self.held_up += slice.held_up.min(slice.stands_for) * slice.rate();
        self.taken.push_back(slice);
        self.pace = Pace::of(&self.taken, Taken::rate);
        self.beside = Pace::of(&self.taken, |slice| slice.beside / slice.seconds.max(1e-9))
            .filter(|pace| pace.rate > 0.0);
    }

    /// For so many seconds nobody looked, and no slice will stand for them; for some of them the program was held up.
    pub fn pass(&mut self, seconds: f64, held_up: f64) {
        let rate = self.pace.map_or(0.0, |pace| pace.rate);
        self.stood_for += rate * seconds;
        self.held_up += rate * held_up.min(seconds);
    }

    /// Slices that were taken.
    pub fn slices(&self) -> u64 {
        self.number
    }

    /// What the tables hold.
    pub fn told(&self) -> f64 {
        self.told
    }

    /// Rates found in slices.
    pub fn pace(&self) -> Option<Pace> {
        self.pace
    }

    /// Rates of posts found in slices of polls.
    pub fn beside(&self) -> Option<Pace> {
        self.beside
    }

    /// All that was done until so many seconds after the last slice.
    pub fn so_far(&self, correction: &Correction, unseen: f64) -> Estimate {
        let Some(pace) = self.pace else {
            return Estimate { value: self.whole, off: Err(Unbounded::Few) };
        };
        let times = correction.middle();
        let not_done = self.held_up / 2.0 * times;
        let in_slices = (self.stood_for + pace.rate * unseen) * times - not_done;
        let off = correction.doubt().and_then(|doubt| Ok(in_slices * (pace.error? + doubt) + not_done));
        Estimate { value: self.whole + in_slices, off }
    }

    /// Completion entries that belong to so many posts: in steady state there are as many as signalled requests. `None`
    /// where no post was seen.
    pub fn of_posts(&self, posts: Estimate) -> Option<Estimate> {
        let number = self.taken.len() as f64;
        let (entries, posted) = self
            .taken
            .iter()
            .fold((0.0, 0.0), |(entries, posted), slice| (entries + slice.operations, posted + slice.beside));
        if posted <= 0.0 || entries <= 0.0 {
            return None;
        }
        let ratio = entries / posted;
        let residues: Vec<_> =
            self.taken.iter().map(|slice| slice.operations - ratio * slice.beside).collect();
        let error = spread::error_of_mean(&residues, number, entries / number);
        let value = self.whole + posts.value * ratio;
        let off = posts.off.and_then(|off| Ok(ratio * (posts.value * error? + off)));
        Some(Estimate { value, off })
    }
}

/// Of two estimates the one that is known better.
pub fn better(one: Estimate, other: Option<Estimate>) -> Estimate {
    match (one.off, other) {
        (Ok(known), Some(other)) if other.off.is_ok_and(|off| off < known) => other,
        (Err(_), Some(other)) => other,
        _ => one,
    }
}

/// Relative error bound (95 %) of what the tables hold: how far that is from what is taken to be true by now, which may be
/// `until` so much more or less by the time somebody asks, and how far that may be off.
///
/// # Errors
/// Why nothing bounds it.
pub fn error(told: f64, truth: Estimate, until: f64) -> Result<f64, Unbounded> {
    let error = ((truth.value - told).abs() + until + truth.off?) / told;
    if error < 1.0 { Ok(error) } else { Err(Unbounded::Wide) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that takes `work` for an operation, of which its device allows one in `device`, with so much added to
    /// each by hits; watched for `seconds` in each of `n` slices, one a second.
    fn slices(work: f64, device: f64, cost: f64, n: usize) -> Ledger {
        let mut ledger = Ledger::default();
        for _ in 0..n {
            let rate = 1.0 / (work + cost).max(device);
            let paid = cost * rate;
            ledger.take(Taken {
                stands_for: 1.0,
                seconds: 0.01,
                operations: rate * 0.01,
                beside: rate * 0.01,
                lost: paid,
                paid,
                ..Taken::default()
            });
        }
        ledger
    }

    #[test]
    fn the_truth_lies_between_a_line_through_two_costs_and_what_was_found_at_the_lower_one() {
        for (work, device) in [(1e-5, 0.0), (1e-5, 1e-4), (1e-5, 1.02e-5), (1e-5, 1.3e-5), (1e-5, 2e-5)] {
            let (posts, polls) = (slices(work, device, 1e-6, 10), slices(work, device, 8e-6, 10));
            let correction = Correction::of_posts(&posts.pace().expect("slices"), polls.beside().as_ref());
            let found = posts.so_far(&correction, 0.0);
            let truth = 10.0 / work.max(device);
            let off = found.off.expect("a bound");
            assert!((found.value - truth).abs() <= off + 1.0, "{work} {device}: {found:?} {truth}");
            assert!(off / truth < 0.11, "{work} {device}: {found:?}");
        }
    }

    #[test]
    fn a_program_that_waits_for_its_device_loses_nothing_and_that_is_known() {
        let (posts, polls) = (slices(1e-6, 2e-5, 1e-6, 10), slices(1e-6, 2e-5, 1e-5, 10));
        let correction = Correction::of_posts(&posts.pace().expect("slices"), polls.beside().as_ref());
        assert!(correction.most < 1.001, "{correction:?}");
        // Without polls it may have lost all that hits took.
        let unknown = Correction::of_posts(&posts.pace().expect("slices"), None);
        assert!(unknown.most > 1.04, "{unknown:?}");
    }

    #[test]
    fn completions_follow_posts_however_much_polls_are_slowed() {
        let polls = slices(1e-5, 0.0, 9e-6, 10);
        let truth = Estimate { value: 1e6, off: Ok(1e4) };
        let told = polls.of_posts(truth).expect("an estimate");
        assert!((told.value / 1e6 - 1.0).abs() < 1e-9 && told.off.is_ok_and(|off| off < 1.1e4), "{told:?}");
        let alone = polls.so_far(&Correction::unknown(0.47), 0.0);
        assert_eq!(better(alone, Some(told)), told);
        assert_eq!(better(told, Some(alone)), told);
        assert_eq!(better(alone, None), alone);
    }

    #[test]
    fn bounds_hold_how_slices_differ_what_is_unseen_and_how_far_off_the_tables_are() {
        let mut ledger = Ledger::default();
        ledger.count(50.0, true);
        let none = Correction::unknown(0.0);
        assert_eq!(ledger.so_far(&none, 1.0), Estimate { value: 50.0, off: Err(Unbounded::Few) });
        for operations in [90.0, 110.0, 100.0] {
            ledger.take(Taken { stands_for: 1.0, seconds: 0.1, operations, ..Taken::default() });
        }
        let known = ledger.so_far(&none, 0.0);
        assert!((known.value - 3050.0).abs() < 1e-6, "{known:?}");
        assert!(known.off.is_ok_and(|off| off > 600.0), "of three slices little is known: {known:?}");
        assert!((ledger.so_far(&none, 0.5).value - 3550.0).abs() < 1e-6);
        let truth = Estimate { value: 110.0, off: Ok(5.0) };
        assert_eq!(error(100.0, truth, 0.0), Ok(0.15));
        assert_eq!(error(100.0, truth, 2.0), Ok(0.17));
        assert_eq!(error(10.0, truth, 0.0), Err(Unbounded::Wide), "a bound as large as the figure is none");
        assert_eq!(error(0.0, truth, 0.0), Err(Unbounded::Wide));
        assert_eq!(error(0.0, Estimate { value: 0.0, off: Ok(0.0) }, 0.0), Err(Unbounded::Wide));
        let unknown = Estimate { off: Err(Unbounded::Few), ..truth };
        assert_eq!(error(100.0, unknown, 0.0), Err(Unbounded::Few));
    }

    #[test]
    fn wild_slices_give_no_bound_and_no_panic() {
        let mut ledger = Ledger::default();
        assert_eq!((ledger.pace(), ledger.beside()), (None, None));
        let nothing = Estimate { value: 0.0, off: Ok(0.0) };
        assert_eq!(ledger.of_posts(nothing), None);
        for slice in [
            Taken::default(),
            Taken {
                stands_for: f64::MAX,
                operations: f64::MAX,
                lost: 7.0,
                paid: f64::INFINITY,
                ..Taken::default()
            },
            Taken { beside: 1.0, operations: 1.0, seconds: 1e-12, ..Taken::default() },
        ] {
            ledger.take(slice);
            if let Some(pace) = ledger.pace() {
                let correction = Correction::of_posts(&pace, ledger.beside().as_ref());
                assert!(correction.most >= 1.0 && correction.doubt().unwrap_or(0.0) < 4.0, "{correction:?}");
            }
            let told = ledger.so_far(&Correction::unknown(0.0), 1.0);
            assert!(error(1.0, told, 0.0).is_err(), "{told:?}");
        }
        let most = 1.0 / (1.0 - MOST_LOST);
        assert_eq!((Correction::unknown(f64::NAN).most, Correction::unknown(9.0).most), (1.0, most));
    }

    #[test]
    fn where_hits_take_nearly_all_the_time_there_is_no_bound_and_that_is_the_reason() {
        let posts = slices(6e-8, 0.0, 1.4e-6, 10);
        let correction = Correction::of_posts(&posts.pace().expect("slices"), None);
        let told = posts.so_far(&correction, 0.0);
        assert!(matches!(told.off, Err(Unbounded::Slowed(share)) if share > 0.95), "{told:?}");
        // Completions of posts that were all seen are known all the same.
        let seen = posts.of_posts(Estimate { value: 1e6, off: Ok(0.0) }).expect("an estimate");
        assert_eq!(better(told, Some(seen)), seen);
    }

    #[test]
    fn while_probes_are_put_in_place_all_may_be_done_or_nothing() {
        let (mut still, mut held_up) = (Ledger::default(), Ledger::default());
        for _ in 0..10 {
            let slice = Taken { stands_for: 1.0, seconds: 0.1, operations: 100.0, ..Taken::default() };
            still.take(slice);
            held_up.take(Taken { held_up: 0.02, ..slice });
        }
        let none = Correction::unknown(0.0);
        let (still, told) = (still.so_far(&none, 0.0), held_up.so_far(&none, 0.0));
        let off = told.off.expect("a bound");
        assert!((told.value + off - still.value).abs() < 1e-6, "one that makes up for it: {told:?}");
        assert!((told.value - off - 0.98 * still.value).abs() < 1e-6, "one that does not: {told:?}");
        assert_eq!(still.off, Ok(0.0));
    }

    #[test]
    fn what_slices_that_stand_for_long_have_shown_decides_and_counts_as_fewer() {
        let ledger = |times: [f64; 6]| {
            let mut ledger = Ledger::default();
            for (stands_for, operations) in times.into_iter().zip([90.0, 110.0, 95.0, 105.0, 100.0, 88.0]) {
                ledger.take(Taken { stands_for, seconds: 0.1, operations, ..Taken::default() });
            }
            ledger.pace().expect("slices")
        };
        let (equal, unequal) = (ledger([1.0; 6]), ledger([0.1, 9.0, 0.1, 0.1, 1.0, 0.1]));
        assert!(unequal.rate > 1080.0 && equal.rate < 1000.0, "{equal:?} {unequal:?}");
        let (equal, unequal) = (equal.error.expect("a bound"), unequal.error.expect("a bound"));
        assert!(unequal > 1.8 * equal, "{equal} {unequal}");
    }
}
