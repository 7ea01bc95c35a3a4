//! How much was done, from slices of time: pure, from what each has shown.
//!
//! In a slice a program is slowed by the hits, or it is not: one that waits for its device loses nothing, one that is
//! bound by its own work all that hits take. Which of both is not known beforehand, and is measured where it can be: the
//! more calls are probed, the more a hit costs, and the time of an operation, as a function of what is added to it, bends
//! upwards only (it is the longest of several paths). A line through two such times meets no cost at all below the truth,
//! and the truth is not above the time at the lower cost: between both it lies.

use std::collections::VecDeque;

/// Slices that are remembered.
const REMEMBERED: usize = 256;
/// With fewer slices, nothing is said of how much they differ.
const FEWEST: usize = 3;
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
    /// How far that may be off (95 %), as a part of it; `None` where too little is known.
    pub error: Option<f64>,
    /// Share of the program's time that hits took at most.
    pub lost: f64,
    /// What hits cost, in seconds a second.
    pub paid: f64,
}

impl Pace {
    fn of(slices: &VecDeque<Taken>, rate_of: impl Fn(&Taken) -> f64) -> Option<Self> {
        let n = slices.len() as f64;
        let mean = |of: &dyn Fn(&Taken) -> f64| slices.iter().map(of).sum::<f64>() / n;
        let rate = mean(&rate_of);
        let error = error_of_mean(slices.iter().map(&rate_of), rate);
        (n > 0.0).then(|| Self {
            rate,
            error,
            lost: mean(&|slice| slice.lost),
            paid: mean(&|slice| slice.paid),
        })
    }

    /// Of rates that no further hit has slowed. `None` without any.
    pub fn undisturbed(rates: &VecDeque<f64>) -> Option<Self> {
        let rate = rates.iter().sum::<f64>() / rates.len() as f64;
        let error = error_of_mean(rates.iter().copied(), rate);
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
}

impl Correction {
    /// Where nothing is known but what hits took.
    pub fn unknown(lost: f64) -> Self {
        Self { least: 1.0, most: 1.0 / (1.0 - (lost * KNOWN_TO).clamp(0.0, MOST_LOST)) }
    }

    /// Of posts: `alone` in slices of their own, and `beside` polls, where hits cost more.
    pub fn of_posts(alone: &Pace, beside: Option<&Pace>) -> Self {
        let unknown = Self::unknown(alone.lost);
        let Some(beside) = beside.filter(|beside| beside.cost() > alone.cost() * KNOWN_TO) else {
            return unknown;
        };
        let (Some(one), Some(other)) = (alone.error, beside.error) else { return unknown };
        // The time of an operation at the higher cost by that at the lower one, at most.
        let longer = alone.rate / beside.rate * (1.0 + one.hypot(other));
        let line = alone.cost() / (beside.cost() - alone.cost()) * (longer - 1.0).max(0.0);
        let most = if line < 1.0 { 1.0 / (1.0 - line) } else { f64::INFINITY };
        Self { least: 1.0, most: if most.is_nan() { unknown.most } else { unknown.most.min(most) } }
    }

    /// What is taken to be true: as many times as much as the least as the most is of it.
    pub fn middle(&self) -> f64 {
        (self.least * self.most).sqrt()
    }

    /// How far that may be off, as a part of it.
    pub fn doubt(&self) -> f64 {
        (self.most / self.least).sqrt() - 1.0
    }
}

/// An estimate, and how far it may be off (95 %); `None` where that is not known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub value: f64,
    pub off: Option<f64>,
}

/// What was done of one part of the functions.
#[derive(Debug, Default)]
pub struct Ledger {
    taken: VecDeque<Taken>,
    /// Slices so far.
    number: u64,
    /// What all slices stand for, as found in them.
    stood_for: f64,
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
        self.taken.push_back(slice);
    }

    /// For so many seconds nobody looked, and no slice will stand for them.
    pub fn pass(&mut self, seconds: f64) {
        self.stood_for += self.pace().map_or(0.0, |pace| pace.rate * seconds);
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
        Pace::of(&self.taken, Taken::rate)
    }

    /// Rates of posts found in slices of polls.
    pub fn beside(&self) -> Option<Pace> {
        Pace::of(&self.taken, |slice| slice.beside / slice.seconds.max(1e-9)).filter(|pace| pace.rate > 0.0)
    }

    /// All that was done until so many seconds after the last slice.
    pub fn so_far(&self, correction: &Correction, unseen: f64) -> Estimate {
        let Some(pace) = self.pace() else { return Estimate { value: self.whole, off: None } };
        let in_slices = (self.stood_for + pace.rate * unseen) * correction.middle();
        let off = pace.error.map(|error| in_slices * (error + correction.doubt()));
        Estimate { value: self.whole + in_slices, off }
    }

    /// Completion entries that belong to so many posts: in steady state there are as many as signalled requests. `None`
    /// where no post was seen.
    pub fn of_posts(&self, posts: Estimate) -> Option<Estimate> {
        let n = self.taken.len() as f64;
        let (entries, posted) = self
            .taken
            .iter()
            .fold((0.0, 0.0), |(entries, posted), slice| (entries + slice.operations, posted + slice.beside));
        if posted <= 0.0 || entries <= 0.0 {
            return None;
        }
        let ratio = entries / posted;
        let residues = self.taken.iter().map(|slice| (slice.operations - ratio * slice.beside).powi(2));
        let deviation = (residues.sum::<f64>() / (n - 1.0) / n).sqrt() / (entries / n);
        let error = (self.taken.len() >= FEWEST).then(|| students_t(self.taken.len() - 1) * deviation);
        let value = self.whole + posts.value * ratio;
        let off = error.zip(posts.off).map(|(error, off)| ratio * (posts.value * error + off));
        Some(Estimate { value, off })
    }
}

/// Of two estimates the one that is known better.
pub fn better(one: Estimate, other: Option<Estimate>) -> Estimate {
    match other {
        Some(other) if one.off.is_none_or(|one| other.off.is_some_and(|other| other < one)) => other,
        _ => one,
    }
}

/// Relative error bound (95 %) of what the tables hold: how far that is from what is taken to be true, and how far that
/// may be off. `None` where that bounds nothing.
pub fn error(told: f64, truth: Estimate) -> Option<f64> {
    let error = ((truth.value - told).abs() + truth.off?) / told;
    (error < 1.0).then_some(error)
}

/// How far a mean may be off (95 %), as a part of it.
fn error_of_mean(values: impl Iterator<Item = f64>, mean: f64) -> Option<f64> {
    let (n, squares) =
        values.fold((0_usize, 0.0), |(n, squares), value| (n + 1, squares + (value - mean).powi(2)));
    if n < FEWEST || mean <= 0.0 {
        return None;
    }
    let count = n as f64;
    Some(students_t(n - 1) * (squares / (count - 1.0) / count).sqrt() / mean)
}

/// How many standard errors hold a mean with 95 % confidence (Student's distribution, two-sided): of few slices it is
/// hardly known how much they differ.
fn students_t(degrees_of_freedom: usize) -> f64 {
    const SMALL: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    let known = degrees_of_freedom.checked_sub(1).and_then(|place| SMALL.get(place));
    known.copied().unwrap_or(1.96 + 2.6 / degrees_of_freedom as f64)
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
        let truth = Estimate { value: 1e6, off: Some(1e4) };
        let told = polls.of_posts(truth).expect("an estimate");
        assert!((told.value / 1e6 - 1.0).abs() < 1e-9 && told.off.is_some_and(|off| off < 1.1e4), "{told:?}");
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
        assert_eq!(ledger.so_far(&none, 1.0), Estimate { value: 50.0, off: None }, "nothing known");
        for operations in [90.0, 110.0, 100.0] {
            ledger.take(Taken { stands_for: 1.0, seconds: 0.1, operations, ..Taken::default() });
        }
        let known = ledger.so_far(&none, 0.0);
        assert!((known.value - 3050.0).abs() < 1e-6, "{known:?}");
        assert!(known.off.is_some_and(|off| off > 600.0), "of three slices little is known: {known:?}");
        assert!((ledger.so_far(&none, 0.5).value - 3550.0).abs() < 1e-6);
        let truth = Estimate { value: 110.0, off: Some(5.0) };
        assert_eq!(error(100.0, truth), Some(0.15));
        assert_eq!(error(10.0, truth), None, "a bound as large as the figure is none");
        assert_eq!(error(0.0, truth), None);
        assert_eq!(error(0.0, Estimate { value: 0.0, off: Some(0.0) }), None);
        assert_eq!(error(100.0, Estimate { off: None, ..truth }), None);
    }

    #[test]
    fn wild_slices_give_no_bound_and_no_panic() {
        let mut ledger = Ledger::default();
        assert_eq!((ledger.pace(), ledger.beside()), (None, None));
        let nothing = Estimate { value: 0.0, off: Some(0.0) };
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
            let pace = ledger.pace().expect("slices");
            let correction = Correction::of_posts(&pace, ledger.beside().as_ref());
            assert!(correction.most >= 1.0 && correction.doubt() < 4.0, "{correction:?}");
            let told = ledger.so_far(&correction, 1.0);
            assert_eq!(error(1.0, told), None);
        }
        assert!(students_t(10) > students_t(11) && students_t(1000) < 1.97);
        assert_eq!(
            (Correction::unknown(f64::NAN).least, Correction::unknown(9.0).most),
            (1.0, 1.0 / (1.0 - MOST_LOST))
        );
    }
}
