//! The log-linear buckets of latency histograms: 16 per octave, so a value is off by at most 1/16.

/// Buckets there are: values up to `u64::MAX` fall in one of them.
pub const BUCKETS: u16 = 16 * 61;

/// The bucket a value falls in.
#[inline(always)]
pub const fn bucket(value: u64) -> u16 {
    if value < 16 {
        return value as u16;
    }
    // The position of the highest bit says the octave, the four bits below it the place within.
    let octave = 63 - value.leading_zeros();
    let shift = octave - 4;
    (((shift + 1) << 4) + ((value >> shift) as u32 & 15)) as u16
}

/// The smallest value of a bucket; saturates for indices past the last bucket.
pub const fn lower_bound(bucket: u16) -> u64 {
    if bucket < 16 {
        return bucket as u64;
    }
    if bucket >= BUCKETS {
        return u64::MAX;
    }
    (16 + (bucket as u64 % 16)) << (bucket / 16 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_lower_bound_and_is_at_most_a_sixteenth_wide() {
        for index in 0..BUCKETS {
            let low = lower_bound(index);
            assert_eq!(bucket(low), index, "lower bound of {index}");
            if low > 0 {
                assert_eq!(bucket(low - 1), index - 1, "below {index}");
            }
            if index + 1 < BUCKETS {
                let width = lower_bound(index + 1) - low;
                assert!(width == 1 || width * 16 <= low, "bucket {index} is {width} wide at {low}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(lower_bound(u16::MAX), u64::MAX);
    }
}
