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

    /// True where so many hits in so many seconds are far more than before.
    pub fn is_passed_by(&self, hits: u64, seconds: f64) -> bool {
        /// Fewer are nothing to hurry for.
        const FEW: f64 = 100.0;
        let before = self.hits as f64 / self.seconds.max(1e-9) * seconds;
        hits as f64 > 2.0 * before + FEW
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
    const PERIOD: f64 = 0.5;
    let (shortest, longest) = (0.002, 0.2);
    if seen.single_stepped && slowdown(seen.share) > allowed.max_slowdown {
        return Next::Refused(slowdown(seen.share));
    }
    if seen.share <= allowed.overhead * ROOM {
        return Next::Always;
    }
    let length = (allowed.overhead / seen.share.max(1e-6) * PERIOD).clamp(shortest, longest);
    Next::Slices(Duration::from_secs_f64(length))
}

/// What each call in a slice stands for: what has happened in the `gap` before, and in its own `length`, `correction` times
/// as much as in a slice. Where it is known what the tables lack by its end, and how many calls are to be expected in it,
/// that is made up for: what slices before were wrong about is not carried on.
pub fn weight(gap: Duration, length: Duration, correction: f64, lacking: Option<(f64, f64)>) -> u64 {
    /// So many times as much, or as little, as the time alone says.
    const MOST: f64 = 4.0;
    let (gap, length) = (gap.as_secs_f64(), length.as_secs_f64().max(1e-6));
    let by_time = (gap + length) / length * correction;
    let by_lack = lacking.map_or(by_time, |(lacking, expected)| lacking / expected);
    if !by_time.is_finite() {
        return 1;
    }
    let weight = if by_lack.is_finite() { by_lack.clamp(by_time / MOST, by_time * MOST) } else { by_time };
    (weight.round() as u64).max(1)
}

/// What each call in a slice of this length stands for, where hits take `share` of the time in it.
pub fn weight_of(since_last: Duration, length: Duration, share: f64) -> u64 {
    let useful = length.as_secs_f64() * (1.0 - share.clamp(0.0, 0.95));
    (((since_last + length).as_secs_f64() / useful.max(1e-6)).round() as u64).max(1)
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
    fn many_more_hits_than_before_are_no_calm() {
        let steady = Seen { hits: 10_000, seconds: 1.0, ..Seen::default() };
        assert!(!steady.is_passed_by(200, 0.02) && steady.is_passed_by(1000, 0.02));
        assert!(!Seen::default().is_passed_by(50, 0.02) && Seen::default().is_passed_by(500, 0.02));
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
        let second = Duration::from_secs(1);
        for lacking in [Some((f64::NAN, 0.0)), Some((1.0, 0.0)), Some((-5.0, 1.0)), None] {
            assert!(weight(Duration::ZERO, Duration::ZERO, f64::NAN, lacking) >= 1);
            assert!((2..5000).contains(&weight(second, second / 100, 1.0, lacking)), "{lacking:?}");
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
        assert!(matches!(after(0.5, false), Next::Slices(length) if length == Duration::from_millis(10)));
        assert!(matches!(after(0.99, false), Next::Slices(_)), "emulated ones are slow only in short slices");
        assert!(matches!(after(0.5, true), Next::Refused(slowdown) if slowdown > 1.5));
        assert!(matches!(after(0.2, true), Next::Slices(_)));
    }

    #[test]
    fn a_slice_stands_for_the_time_before_it_and_makes_up_for_what_was_wrong_before() {
        let (gap, length) = (Duration::from_millis(990), Duration::from_millis(10));
        assert_eq!(weight(gap, length, 1.0, None), 100);
        assert_eq!(weight(gap, length, 1.25, None), 125);
        // A tenth too much was told so far: of a thousand operations in all nine hundred are lacking.
        assert_eq!(weight(gap, length, 1.0, Some((900.0, 10.0))), 90);
        assert_eq!(weight(gap, length, 1.0, Some((1e9, 10.0))), 400, "but no more than four times as much");
        assert_eq!(weight(gap, length, 1.0, Some((-1e9, 10.0))), 25);
        assert_eq!(weight_of(gap, length, 0.5), 200);
    }
}
