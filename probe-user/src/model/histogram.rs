//! What a log-linear [`Histogram`] answers: how many, which quantile, what changed.
//!
//! A bucket is at most 1/16 wider than its lower bound, and a quantile is given as the middle of its bucket: at most
//! 1/32 from any value in it.

use crate::sample::Histogram;

/// Linear buckets per power of two.
const STEPS: u32 = 16;

/// The last bucket a 64-bit value can fall into.
const LAST: u16 = bucket_of(u64::MAX);

/// The bucket that `value` falls into.
pub const fn bucket_of(value: u64) -> u16 {
    if value < STEPS as u64 {
        return value as u16;
    }
    let exponent = value.ilog2() - STEPS.ilog2();
    ((exponent + 1) * STEPS) as u16 + ((value >> exponent) as u16 - STEPS as u16)
}

/// Lowest and highest value of bucket `index`. An index beyond what 64 bits can fill (from a damaged file) counts as
/// the last bucket.
pub fn bounds(index: u16) -> (u64, u64) {
    let index = u32::from(index.min(LAST));
    if index < STEPS {
        return (index.into(), index.into());
    }
    let shift = index / STEPS - 1;
    let low = u64::from(STEPS + index % STEPS) << shift;
    (low, low + ((1_u64 << shift) - 1))
}

impl Histogram {
    /// Counts one `value`.
    pub fn record(&mut self, value: u64) {
        let n = self.0.entry(bucket_of(value)).or_default();
        *n = n.saturating_add(1);
    }

    /// Values counted.
    pub fn total(&self) -> u64 {
        self.0.values().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The smallest value that at least the share `q` (0–1) of all values does not exceed, to 1/32; `None` when empty.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let total = self.total();
        let rank = ((total as f64 * q).ceil() as u64).clamp(1, total.max(1));
        let mut below = 0_u64;
        for (index, n) in &self.0 {
            below = below.saturating_add(*n);
            if *n > 0 && below >= rank {
                let (low, high) = bounds(*index);
                return Some(low + (high - low) / 2);
            }
        }
        None
    }

    /// Bounds of the highest bucket in use: the largest value lies between them. `None` when empty.
    pub fn highest(&self) -> Option<(u64, u64)> {
        self.0.iter().rev().find(|(_, n)| **n > 0).map(|(index, _)| bounds(*index))
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (index, n) in &other.0 {
            let mine = self.0.entry(*index).or_default();
            *mine = mine.saturating_add(*n);
        }
    }

    /// What this cumulative histogram counted since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let changed = self.0.iter().filter_map(|(index, n)| {
            let more = n.saturating_sub(earlier.0.get(index).copied().unwrap_or(0));
            (more > 0).then_some((*index, more))
        });
        Self(changed.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_the_bounds_of_its_bucket_and_buckets_leave_no_gap() {
        let mut next = 0;
        for index in 0..=LAST {
            let (low, high) = bounds(index);
            assert_eq!(low, next, "bucket {index}");
            assert_eq!((bucket_of(low), bucket_of(high)), (index, index));
            assert!(high - low <= low / 16, "bucket {index} is too wide");
            next = high.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last bucket ends with the largest value");
        assert_eq!(bounds(u16::MAX), bounds(LAST));
    }

    #[test]
    fn quantiles_are_nearest_ranks_to_one_in_thirty_two() {
        let mut h = Histogram::default();
        assert_eq!(h.quantile(0.5), None);
        assert_eq!(h.highest(), None);
        for value in 1..=1000 {
            h.record(value * 1000);
        }
        for (q, exact) in [(0.0, 1000.0), (0.5, 500_000.0), (0.9, 900_000.0), (0.99, 990_000.0), (1.0, 1e6)] {
            let found = h.quantile(q).unwrap() as f64;
            assert!((found - exact).abs() <= exact / 32.0, "{q}: {found} is not {exact}");
        }
        let (low, high) = h.highest().unwrap();
        assert!(low <= 1_000_000 && 1_000_000 <= high);
    }

    #[test]
    fn a_difference_holds_what_came_since_and_survives_counters_that_went_back() {
        let earlier = Histogram([(3, 5), (7, 1)].into());
        let later = Histogram([(3, 9), (7, 0), (8, 2)].into());
        assert_eq!(later.since(&earlier), Histogram([(3, 4), (8, 2)].into()));
    }

    #[test]
    fn counts_of_a_hostile_file_do_not_overflow() {
        let mut h = Histogram([(1, u64::MAX), (2, u64::MAX)].into());
        h.merge(&h.clone());
        assert_eq!(h.total(), u64::MAX);
        assert_eq!(h.quantile(0.99), Some(1));
        let empty_bucket = Histogram([(9, 0)].into());
        assert_eq!((empty_bucket.quantile(0.5), empty_bucket.highest()), (None, None));
    }
}
