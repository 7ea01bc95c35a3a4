//! What is decided: pure, from rates and costs.
//!
//! Everything is bounded against CPU time. At sites of ours one operation in 2^k is looked at: polls that found nothing
//! at a rate of their own, for a program that waits makes millions of them; so are polls that found something, and posts
//! with and without a signalled request. Functions of a provider have no such choice, since the trap is paid before anybody can decide; they are
//! watched in slices of time.

use std::time::Duration;

use probe_common::site::{MOST_EXPONENT, STREAMS};

/// How much a recording may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowed {
    /// Share of the CPU time of what is watched, 0–1.
    pub overhead: f64,
    /// How many times as long a program may take within a slice in which it is single-stepped.
    pub max_slowdown: f64,
}

impl Default for Allowed {
    fn default() -> Self {
        Self { overhead: 0.01, max_slowdown: 1.5 }
    }
}

/// Operations of one stream as far as they were seen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Seen {
    /// Hits in the window.
    pub hits: u64,
    /// Length of the window in seconds.
    pub seconds: f64,
    /// One in 2^exponent was looked at.
    pub exponent: u32,
    /// Hits a second at the last look, where they were many: a program has become busy long before that shows in the
    /// whole window.
    pub lately: f64,
}

impl Seen {
    /// Operations a second, as far as seen.
    fn rate(&self) -> f64 {
        (self.hits as f64 / self.seconds.max(1e-9)).max(self.lately) * self.one_in()
    }

    /// Operations a second, at most: with 98 % confidence there are no more. Without a hit that is as many as may have
    /// gone unnoticed.
    pub fn at_most(&self) -> f64 {
        // With every operation looked at there is nothing to guess.
        let doubt = if self.exponent == 0 { 0.0 } else { 2.0 * (self.hits as f64).sqrt() + 4.0 };
        self.rate() + doubt * self.one_in() / self.seconds.max(1e-9)
    }

    fn one_in(&self) -> f64 {
        f64::from(self.exponent.min(MOST_EXPONENT)).exp2()
    }
}

/// Larger exponents say nothing in the time anybody waits.
const LARGEST: u32 = 20;
/// Where exponents fall, this much of what is allowed must stay free: else they would rise again at once.
const ROOM: f64 = 0.8;

/// The exponents of the streams, in the order of [`probe_common::site::Stream`], such that hits cost at most
/// `allowed_ns` a second. `hit_ns` is what one costs.
pub fn exponents(seen: &[Seen; STREAMS], hit_ns: f64, allowed_ns: f64) -> [u32; STREAMS] {
    // Raised for what was seen, lowered only where nothing that may have gone unseen speaks against it: what is looked at
    // more seldom is known less, and is no reason to look at it more seldom still.
    let at_least = shared(seen.map(|stream| stream.rate() * hit_ns), allowed_ns);
    let lower = shared(seen.map(|stream| stream.at_most() * hit_ns), allowed_ns * ROOM);
    std::array::from_fn(|i| {
        let now = seen[i].exponent;
        if at_least[i] >= now { at_least[i] } else { lower[i].min(now) }
    })
}

/// Shares out what is allowed: streams that need less than an equal part leave the rest to the others. What is done is
/// rarer than what is waited for, and so is seen whole before anything else.
fn shared(whole: [f64; STREAMS], allowed: f64) -> [u32; STREAMS] {
    let mut order: [usize; STREAMS] = std::array::from_fn(|i| i);
    order.sort_by(|a, b| whole[*a].total_cmp(&whole[*b]));
    let mut left = allowed;
    let mut exponents = [LARGEST; STREAMS];
    for (taken, stream) in order.into_iter().enumerate() {
        exponents[stream] = smallest(whole[stream], left / (STREAMS - taken) as f64);
        left -= whole[stream] / f64::from(exponents[stream]).exp2();
    }
    // Exponents are whole numbers: what that left over is enough for one more, or not.
    for stream in order {
        let more = whole[stream] / f64::from(exponents[stream]).exp2();
        if exponents[stream] > 0 && more <= left {
            exponents[stream] -= 1;
            left -= more;
        }
    }
    exponents
}

/// The smallest exponent that brings a cost within what is allowed.
fn smallest(cost: f64, allowed: f64) -> u32 {
    (0..LARGEST).find(|k| cost / f64::from(*k).exp2() <= allowed).unwrap_or(LARGEST)
}

/// What of its allowance a process may spend now, in ns of hits a second: it has used `cpu` CPUs lately, and owes
/// `debt_ns` that were spent beyond.
pub fn allowance(allowed: &Allowed, cpu: f64, debt_ns: f64) -> f64 {
    /// Time in which debts are paid off.
    const PAID_OFF: f64 = 2.0;
    let whole = allowed.overhead * cpu * 1e9;
    // Not nothing at all: what is not looked at cannot be known to have changed.
    (whole - debt_ns.max(0.0) / PAID_OFF).max(whole / 4.0)
}

/// What a slice of time has shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SliceSeen {
    /// CPU time that hits took while the probes were in place, of all there was: 0–1.
    pub share: f64,
    /// Single-stepped: only ratios are wanted, and no more than this may be.
    pub single_stepped: bool,
}

/// How functions of a provider are watched from now on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// All the time.
    Always,
    /// In slices of this length.
    Slices(Duration),
    /// Not at all: a slice would slow the program so many times.
    Refused(f64),
}

/// How many times as long a program takes where hits have this share of its time.
pub fn slowdown(share: f64) -> f64 {
    1.0 / (1.0 - share.clamp(0.0, 0.999))
}

/// Decides after a slice.
pub fn next(seen: &SliceSeen, allowed: &Allowed) -> Next {
    /// One slice in about this time.
    const PERIOD: f64 = 1.0;
    let (shortest, longest) = (0.005, 0.2);
    if seen.single_stepped && slowdown(seen.share) > allowed.max_slowdown {
        return Next::Refused(slowdown(seen.share));
    }
    if seen.share <= allowed.overhead * ROOM {
        return Next::Always;
    }
    let length = (allowed.overhead / seen.share.max(1e-6) * PERIOD).clamp(shortest, longest);
    Next::Slices(Duration::from_secs_f64(length))
}

/// For how long a slice counts, and what each call in it stands for: what has happened since the slice before and
/// happens in this one. Hits take `share` of the time in it, in which the program would have got further: so much longer
/// it counts.
pub fn weight(since_last: Duration, wanted: Duration, share: f64) -> (u64, Duration) {
    let useful = 1.0 - share.clamp(0.0, 0.95);
    let (gap, wanted) = (since_last.as_secs_f64(), wanted.as_secs_f64().max(0.001));
    // W calls for each one seen: gap + length = W · length · useful, and W is a whole number.
    let weight = ((gap + wanted) / (wanted * useful)).round().max(2.0);
    let length = gap / (weight * useful - 1.0).max(1e-3);
    (weight as u64, Duration::from_secs_f64(length.clamp(0.001, wanted * 2.0)))
}

/// What each call in a slice of this length stands for, where hits take `share` of the time in it.
pub fn weight_of(since_last: Duration, length: Duration, share: f64) -> u64 {
    let useful = length.as_secs_f64() * (1.0 - share.clamp(0.0, 0.95));
    (((since_last + length).as_secs_f64() / useful.max(1e-6)).round() as u64).max(1)
}

/// How much a program gets done in a slice, by what it does outside, from pairs of both rates; and how far that may be
/// off (95 %), as a part of it. `None` as long as there is no pair.
pub fn progress(compared: &[(f64, f64)]) -> Option<(f64, f64)> {
    let ratios: Vec<f64> = compared.iter().map(|(inside, outside)| inside / outside).collect();
    let n = ratios.len() as f64;
    let mean =
        compared.iter().map(|pair| pair.0).sum::<f64>() / compared.iter().map(|pair| pair.1).sum::<f64>();
    if !mean.is_finite() || mean <= 0.0 {
        return None;
    }
    // What hits take can only slow a program down.
    let progress = mean.clamp(0.05, 1.0);
    if ratios.len() < 3 {
        return Some((progress, 1.0));
    }
    let variance = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some((progress, students_t(ratios.len() - 1) * (variance / n).sqrt() / mean))
}

/// How far a correction by what hits take may be off.
pub fn doubt(share: f64) -> f64 {
    // A program that waits for its device does not lose what hits take: then the correction is too much by all of it. One
    // that does not wait is corrected by what a hit costs, which is known to a fifth.
    share.max(0.2 * share / (1.0 - share.min(0.99)))
}

/// Relative error bound (95 %) of what slices estimate: how much they differ, and how far off their correction may be.
/// `rates` are those found in each slice, `unseen` the part of the time after the last one. `None` where that bounds
/// nothing: too few slices, or too different ones.
pub fn slices_error(rates: &[f64], doubt: f64, unseen: f64) -> Option<f64> {
    let n = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / n;
    if rates.len() < 3 || mean <= 0.0 {
        return None;
    }
    let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let between = students_t(rates.len() - 1) * (variance / n).sqrt() / mean;
    let error = between + doubt + unseen;
    (error < 1.0).then_some(error)
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

    fn seen(rates: [f64; STREAMS], exponents: [u32; STREAMS]) -> [Seen; STREAMS] {
        std::array::from_fn(|i| Seen {
            hits: (rates[i] / f64::from(exponents[i]).exp2()) as u64,
            seconds: 1.0,
            exponent: exponents[i],
            lately: 0.0,
        })
    }

    fn cost(rates: [f64; STREAMS], exponents: [u32; STREAMS], hit_ns: f64) -> f64 {
        (0..STREAMS).map(|i| rates[i] * hit_ns / f64::from(exponents[i]).exp2()).sum()
    }

    #[test]
    fn few_operations_are_all_looked_at() {
        let rates = [1_000.0, 1_000.0, 2_000.0, 10.0];
        assert_eq!(exponents(&seen(rates, [0; 4]), 400.0, 1e7), [0; 4]);
    }

    #[test]
    fn polls_that_find_nothing_leave_the_work_its_room() {
        let rates = [1_000.0, 1_000.0, 8e6, 1_000.0];
        let chosen = exponents(&seen(rates, [0; 4]), 400.0, 1e7);
        assert_eq!([chosen[0], chosen[1], chosen[3]], [0; 3]);
        assert!(chosen[2] > 6 && cost(rates, chosen, 400.0) <= 1e7, "{chosen:?}");
    }

    #[test]
    fn rare_signalled_requests_are_all_seen_beside_millions_of_others() {
        let chosen = exponents(&seen([2e6, 5e3, 5e6, 5e3], [0; 4]), 400.0, 1e7);
        assert_eq!((chosen[1], chosen[3]), (0, 0), "{chosen:?}");
        assert!(chosen[0] > 3 && chosen[2] > 3);
    }

    #[test]
    fn whatever_the_rates_the_cost_stays_within_what_is_allowed() {
        for posts in [0.0, 10.0, 1e4, 1e6, 3e7] {
            for finds in [0.0, 1e5, 1e7] {
                for empty in [0.0, 1e3, 5e7] {
                    for start in [[0; 4], [7, 7, 3, 1], [20; 4]] {
                        for hit_ns in [200.0, 15_000.0] {
                            let rates = [posts, finds, empty, finds];
                            let chosen = exponents(&seen(rates, start), hit_ns, 1e7);
                            let spent = cost(rates, chosen, hit_ns);
                            assert!(
                                spent <= 1e7 * 1.01,
                                "{rates:?} from {start:?} at {hit_ns}: {chosen:?} cost {spent}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_not_seen_is_not_believed_to_be_nothing() {
        let silent = Seen { hits: 0, seconds: 0.02, exponent: 10, lately: 0.0 };
        assert!(silent.at_most() > 100_000.0);
        let mut seen = [silent; STREAMS];
        for _ in 0..4 {
            let chosen = exponents(&seen, 400.0, 1e7);
            assert!(chosen[0] <= seen[0].exponent);
            seen = chosen.map(|exponent| Seen { hits: 0, seconds: 0.02, exponent, lately: 0.0 });
        }
        assert_eq!(seen.map(|s| s.exponent), [0; STREAMS], "an idle program is looked at in full soon");
    }

    #[test]
    fn a_program_that_becomes_busy_is_looked_at_less_at_once() {
        // Ten thousand posts within the last hundredth of an otherwise idle second.
        let quiet = Seen { seconds: 1.0, ..Seen::default() };
        let busy = Seen { hits: 10_000, lately: 1e6, ..quiet };
        assert!(exponents(&[busy, quiet, quiet, quiet], 400.0, 1e7)[0] >= 5);
    }

    #[test]
    fn exponents_do_not_swing_where_the_cost_is_near_the_bound() {
        let rates = [3e6, 3e6, 0.0, 1e5];
        let mut now = exponents(&seen(rates, [0; 4]), 400.0, 1e7);
        let first = now;
        for _ in 0..5 {
            now = exponents(&seen(rates, now), 400.0, 1e7);
        }
        assert_eq!(now, first);
    }

    #[test]
    fn no_allowance_and_wild_figures_give_the_largest_exponents_and_no_panic() {
        let wild =
            [Seen { hits: u64::MAX, seconds: 0.0, exponent: u32::MAX, lately: f64::INFINITY }; STREAMS];
        assert_eq!(exponents(&wild, f64::MAX, 0.0)[0], LARGEST);
        let (weight, length) = weight(Duration::ZERO, Duration::ZERO, f64::NAN);
        assert!(weight >= 2 && length > Duration::ZERO);
        for few in [&[][..], &[5.0, 5.0], &[0.0, 0.0, 0.0], &[1.0, 1.0, 90.0]] {
            assert_eq!(slices_error(few, 0.0, 0.0), None, "{few:?}");
        }
    }

    #[test]
    fn debts_are_paid_off_and_something_is_always_seen() {
        let allowed = Allowed::default();
        assert_eq!(allowance(&allowed, 1.0, -5e6), 1e7);
        assert!(allowance(&allowed, 1.0, 1e7) < 1e7);
        assert_eq!(allowance(&allowed, 1.0, 1e12), 1e7 / 4.0);
        assert_eq!(allowance(&allowed, 0.0, 0.0), 0.0);
    }

    #[test]
    fn functions_are_watched_always_in_slices_or_not_at_all() {
        let allowed = Allowed::default();
        let after = |share, single_stepped| next(&SliceSeen { share, single_stepped }, &allowed);
        assert_eq!(after(0.001, false), Next::Always);
        assert!(matches!(after(0.5, false), Next::Slices(length) if length == Duration::from_millis(20)));
        assert!(matches!(after(0.99, false), Next::Slices(_)), "emulated ones are slow only in short slices");
        assert!(matches!(after(0.5, true), Next::Refused(slowdown) if slowdown > 1.5));
        assert!(matches!(after(0.2, true), Next::Slices(_)));
    }

    #[test]
    fn a_slice_stands_for_the_time_before_it_and_for_what_hits_took() {
        for (gap, wanted, share) in [(1000, 20, 0.0), (1000, 20, 0.5), (300, 200, 0.1), (5000, 5, 0.9)] {
            let (weight, length) = weight(Duration::from_millis(gap), Duration::from_millis(wanted), share);
            // At one operation per useful ms.
            let useful = length.as_secs_f64() * (1.0 - share);
            let estimated = weight as f64 * useful;
            let truth = gap as f64 / 1e3 + length.as_secs_f64();
            assert!((estimated / truth - 1.0).abs() < 0.01, "{gap} {wanted} {share}: {estimated} {truth}");
            let of_length = weight_of(Duration::from_millis(gap), length, share);
            assert!(of_length.abs_diff(weight) <= 1, "{of_length} {weight}");
        }
    }

    #[test]
    fn the_error_of_slices_holds_how_they_differ_and_how_much_was_corrected() {
        let error = |rates: &[f64], share| slices_error(rates, doubt(share), 0.0).expect("a bound");
        assert!(error(&[100.0; 3], 0.0) < 1e-9);
        assert!(error(&[90.0, 110.0, 100.0], 0.0) > 0.2, "of three slices little is known");
        assert!(error(&[90.0, 110.0].repeat(8), 0.0) < 0.07);
        assert!(error(&[100.0; 3], 0.4) >= 0.4);
        assert_eq!(progress(&[]), None);
        assert_eq!(progress(&[(0.0, 5.0)]), None);
        assert_eq!(progress(&[(10.0, 10.0)]), Some((1.0, 1.0)), "of one pair nothing is known but it");
        assert_eq!(progress(&[(25.0, 100.0); 3]), Some((0.25, 0.0)));
        let (slow, off) = progress(&[(20.0, 100.0), (30.0, 100.0), (25.0, 100.0)]).expect("three pairs");
        assert!((slow - 0.25).abs() < 1e-9 && off > 0.2, "{slow} {off}");
        assert_eq!(progress(&[(200.0, 100.0); 4]).map(|(progress, _)| progress), Some(1.0));
        assert!(students_t(10) > students_t(11) && students_t(1000) < 1.97);
    }
}
