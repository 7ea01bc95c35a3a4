//! Latencies counted in bins of constant relative width, 1.6 % wide.

use crate::model::time::Ps;

/// Bins per factor of two.
const FINE: u64 = 64;
const FINE_BITS: u32 = 6;

/// Counts per latency.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    bins: Vec<u64>,
    count: u64,
    sum: u128,
    max: Ps,
}

impl Histogram {
    /// Counts one latency.
    pub fn add(&mut self, latency: Ps) {
        let bin = bin_of(latency);
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += 1;
        self.count += 1;
        self.sum += u128::from(latency);
        self.max = self.max.max(latency);
    }

    /// Mean, exact; 0 without any.
    pub fn mean(&self) -> Ps {
        (self.sum / u128::from(self.count.max(1))) as Ps
    }

    /// Greatest, exact.
    pub fn max(&self) -> Ps {
        self.max
    }

    /// The latency that `share` of them do not exceed, to within a bin.
    pub fn quantile(&self, share: f64) -> Ps {
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bin, &count) in self.bins.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_of(bin).min(self.max);
            }
        }
        self.max
    }
}

fn bin_of(value: u64) -> usize {
    if value < FINE {
        return value as usize;
    }
    let octave = value.ilog2() - FINE_BITS;
    (u64::from(octave + 1) * FINE + ((value >> octave) - FINE)) as usize
}

fn middle_of(bin: usize) -> u64 {
    let (octave, place) = (bin as u64 / FINE, bin as u64 % FINE);
    if octave == 0 {
        return place;
    }
    let width = 1u64 << (octave - 1);
    (FINE + place) * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_bin_of_the_truth() {
        let mut histogram = Histogram::default();
        (1..=100_000u64).for_each(|i| histogram.add(i * 1000));
        for (share, truth) in [(0.5, 50e6), (0.99, 99e6), (1.0, 100e6)] {
            let got = histogram.quantile(share) as f64;
            assert!((got / truth - 1.0).abs() < 0.016, "{share}: {got}");
        }
        assert_eq!(histogram.max(), 100_000_000);
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }

    #[test]
    fn bins_follow_each_other_without_gaps() {
        for value in 0..100_000u64 {
            let (here, next) = (bin_of(value), bin_of(value + 1));
            assert!(next == here || next == here + 1, "{value}");
        }
    }
}
