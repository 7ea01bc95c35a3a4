//! How far a mean of what slices show may be off: pure.
//!
//! Slices stand for unequal times, and so their mean is known no better than that of fewer, equal ones: of
//! `(Σ weight)² / Σ weight²`. Slices that follow one another may be alike as well, and tell less that is new the longer they
//! are: their number is divided by one and twice the sum of their correlations, as long as these are positive (an
//! initial sequence, as Geyer has it). By how much slices differ is known of few of them only roughly, for which Student's
//! distribution stands.

use std::fmt;

/// With fewer slices, nothing is said of how much they differ.
pub const FEWEST: usize = 3;

/// Why there is no bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unbounded {
    /// Hardly anything was seen.
    Few,
    /// Hits took this share of the time in slices, 0–1: nobody knows how much more is done without them.
    Slowed(f64),
    /// The bound would be as large as the figure.
    Wide,
    /// Several processes share the slices.
    Shared,
}

impl fmt::Display for Unbounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Few => write!(f, "too few slices have shown something so far"),
            Self::Slowed(share) => write!(
                f,
                "probes take {:.0} % of the program's time in a slice, and how much more it does without them is not known: \
                 count it at sites of the tap, or with --data-path full",
                share.clamp(0.0, 1.0) * 100.0
            ),
            Self::Wide => write!(f, "slices differ too much, or stand for too much of the time"),
            Self::Shared => write!(f, "several processes share the slices"),
        }
    }
}

/// How far a mean may be off (95 %), as a part of it. `residues` are what slices, in their order, differ by from one
/// another, about their own mean; by weight they are `worth` so many.
///
/// # Errors
/// Why that cannot be said.
pub fn error_of_mean(residues: &[f64], worth: f64, mean: f64) -> Result<f64, Unbounded> {
    if residues.len() < FEWEST || mean.is_nan() || mean <= 0.0 {
        return Err(Unbounded::Few);
    }
    let number = residues.len() as f64;
    let squares: f64 = residues.iter().map(|residue| residue * residue).sum();
    // Two at least: of one nothing is known, and long runs of slices that are alike are seldom as alike as they seem.
    let independent = (number / (1.0 + 2.0 * likeness(residues, squares))).max(2.0);
    let variance = squares / number * independent / (independent - 1.0);
    let error = students_t(independent - 1.0) * (variance / worth * number / independent).sqrt() / mean;
    if error.is_finite() { Ok(error) } else { Err(Unbounded::Few) }
}

/// Sum of the correlations of slices with those after them, as long as they are positive.
fn likeness(residues: &[f64], squares: f64) -> f64 {
    // Correlations about a mean of their own are found too low by this.
    let missing = 1.0 / residues.len() as f64;
    let correlation = |lag: usize| {
        let later = residues.get(lag..).unwrap_or_default();
        residues.iter().zip(later).map(|(one, other)| one * other).sum::<f64>() / squares + missing
    };
    (1..=residues.len() / 2).map(correlation).take_while(|alike| *alike > 0.0).sum()
}

/// How many standard errors hold a mean with 95 % confidence (Student's distribution, two-sided).
fn students_t(degrees_of_freedom: f64) -> f64 {
    const SMALL: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    let place = (degrees_of_freedom - 1.0).max(0.0);
    match SMALL.get(place as usize..) {
        Some([this, next, ..]) => this + (next - this) * place.fract(),
        _ => 1.96 + 2.6 / degrees_of_freedom,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers by chance, the same ones each time (xorshift).
    struct Chance(u64);

    impl Chance {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// Of mean 0 and variance 1, nearly normal.
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
        }
    }

    /// Of many series of so many slices, each correlated so much with the one before and standing for unequal times, the
    /// share whose bound holds the true mean, and the median bound.
    fn coverage(correlation: f64, number: usize) -> (f64, f64) {
        const SERIES: usize = 2000;
        const MEAN: f64 = 20.0;
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ number as u64);
        let mut held = 0;
        let mut bounds = Vec::new();
        for _ in 0..SERIES {
            let mut state = chance.normal();
            let slices: Vec<(f64, f64)> = (0..number)
                .map(|_| {
                    state = correlation * state + (1.0 - correlation * correlation).sqrt() * chance.normal();
                    (0.2 - chance.uniform().max(1e-9).ln(), MEAN + state)
                })
                .collect();
            let weight: f64 = slices.iter().map(|(weight, _)| weight).sum();
            let worth = weight * weight / slices.iter().map(|(weight, _)| weight * weight).sum::<f64>();
            let weighted = slices.iter().map(|(weight, value)| weight * value).sum::<f64>() / weight;
            let plain = slices.iter().map(|(_, value)| value).sum::<f64>() / number as f64;
            let residues: Vec<f64> = slices.iter().map(|(_, value)| value - plain).collect();
            let bound = error_of_mean(&residues, worth, weighted).expect("a bound") * weighted;
            held += usize::from((weighted - MEAN).abs() <= bound);
            bounds.push(bound);
        }
        bounds.sort_by(f64::total_cmp);
        (held as f64 / SERIES as f64, bounds[SERIES / 2])
    }

    #[test]
    fn the_bound_holds_the_mean_of_unequal_and_correlated_slices_as_often_as_it_says() {
        for (correlation, numbers) in [
            (0.0, &[3, 4, 5, 8, 12, 20, 50, 200][..]),
            (-0.3, &[3, 5, 8, 12, 20, 50]),
            (0.3, &[3, 5, 8, 12, 20, 50, 200]),
            (0.6, &[30, 50, 200]),
            (0.8, &[100, 250]),
        ] {
            for number in numbers {
                let (held, _) = coverage(correlation, *number);
                assert!((0.93..=0.995).contains(&held), "{correlation}, {number} slices: {held}");
            }
        }
    }

    #[test]
    fn slices_that_are_independent_are_not_taken_to_be_alike() {
        for number in [12, 20, 50, 200] {
            let (_, bound) = coverage(0.0, number);
            // Of slices for unequal times (an exponential and a fifth) two thirds count.
            let least = 1.96 / (number as f64 * 0.67).sqrt();
            assert!((least..1.5 * least).contains(&bound), "{number}: {bound}, {least}");
        }
    }

    #[test]
    fn few_slices_none_at_all_and_wild_ones_have_no_bound_and_no_panic() {
        assert_eq!(error_of_mean(&[], 0.0, f64::NAN), Err(Unbounded::Few));
        assert_eq!(error_of_mean(&[1.0, -1.0], 2.0, 5.0), Err(Unbounded::Few));
        assert_eq!(error_of_mean(&[0.0; 3], 3.0, 0.0), Err(Unbounded::Few));
        assert_eq!(error_of_mean(&[0.0; 3], 3.0, 5.0), Ok(0.0));
        assert_eq!(error_of_mean(&[f64::MAX; 5], 5.0, 1.0), Err(Unbounded::Few));
        assert_eq!(error_of_mean(&[f64::NAN; 5], f64::NAN, 1.0), Err(Unbounded::Few));
        assert!(students_t(1.5) < students_t(1.0) && students_t(10.0) > students_t(11.0));
        assert!(students_t(0.0) >= 12.7 && students_t(1000.0) < 1.97);
    }
}
