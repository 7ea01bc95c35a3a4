//! Times coded in QP attributes (InfiniBand specification, volume 1, 9.7.5.2.8 and 11.2.5).

/// The ACK timeout of code `code`, in nanoseconds: 4.096 µs × 2^code. `None` for 0, which waits for ever.
pub fn ack_timeout_ns(code: u8) -> Option<u64> {
    (code != 0).then(|| 4096u64 << code.min(31))
}

/// The RNR timer of code `code`, in nanoseconds: how long a requester waits before it tries again.
pub fn rnr_timer_ns(code: u8) -> u64 {
    const UNITS_OF_10_US: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536,
        2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    UNITS_OF_10_US[usize::from(code & 31)] * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_the_specification_says() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(1), 10_000);
        assert_eq!(rnr_timer_ns(12), 640_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
    }
}
