//! Medians and their confidence intervals, without assuming a distribution.

use serde::{Deserialize, Serialize};

/// A median with the bounds of its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Median of the observations.
    pub median: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// Median; `None` for no observations. Values that are not finite are left out.
pub fn median(values: &[f64]) -> Option<f64> {
    middle(&sorted(values))
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len().is_multiple_of(2) {
        Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0)
    } else {
        Some(upper)
    }
}

/// Median with a confidence interval of at least 95 % from order statistics: the true median lies outside the k-th
/// smallest and k-th largest of n observations with probability 2·P(Binomial(n, ½) < k). With fewer than six observations
/// no interval reaches 95 %; the extremes are given then.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let sorted = sorted(values);
    let median = middle(&sorted)?;
    let rank = rank_for_95(sorted.len()).max(1);
    Some(Interval { median, low: sorted[rank - 1], high: sorted[sorted.len() - rank] })
}

/// Largest k with P(Binomial(n, ½) < k) ≤ 2.5 %; 0 when there is none.
fn rank_for_95(n: usize) -> usize {
    // ½ⁿ underflows past a thousand observations; a thousand is far more than any comparison makes.
    let n = n.min(1000);
    let mut term = 0.5f64.powi(n as i32);
    let mut below = 0.0;
    for k in 0..=n {
        below += term;
        if below > 0.025 {
            return k;
        }
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_match_the_published_table() {
        // Conover, Practical Nonparametric Statistics: 95 % ranks for the median.
        assert_eq!([5, 6, 8, 9, 11, 12, 15, 20].map(rank_for_95), [0, 1, 1, 2, 2, 3, 4, 6]);
    }

    #[test]
    fn an_interval_contains_its_median_and_ignores_one_outlier_among_nine() {
        let values = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 900.0];
        let interval = median_interval(&values).unwrap();
        assert_eq!(interval, Interval { median: 1.4, low: 1.1, high: 1.7 });
    }

    #[test]
    fn few_observations_give_their_extremes() {
        assert_eq!(median_interval(&[2.0, 1.0, 3.0]), Some(Interval { median: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(median_interval(&[4.0]), Some(Interval { median: 4.0, low: 4.0, high: 4.0 }));
    }

    #[test]
    fn nothing_and_nonsense_have_no_median() {
        assert_eq!(median(&[]), None);
        assert_eq!(median_interval(&[f64::NAN, f64::INFINITY]), None);
        assert_eq!(median(&[1.0, f64::NAN, 3.0]), Some(2.0));
    }
}
