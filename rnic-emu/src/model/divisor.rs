//! Division by a number that is nearly always a power of two: page sizes, lines of a table.

/// A divisor, with a shift where one does.
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    value: u64,
    shift: Option<u32>,
}

impl Divisor {
    /// A divisor of at least 1.
    pub fn new(value: u64) -> Self {
        let value = value.max(1);
        Self { value, shift: value.is_power_of_two().then(|| value.trailing_zeros()) }
    }

    /// `x` divided by it, rounded down.
    #[inline]
    pub fn divide(self, x: u64) -> u64 {
        match self.shift {
            Some(shift) => x >> shift,
            None => x / self.value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_like_division() {
        for value in [0, 1, 2, 3, 4096, 5000, 1 << 63] {
            for x in [0, 1, 4095, 4096, 1 << 40, u64::MAX] {
                assert_eq!(Divisor::new(value).divide(x), x / value.max(1));
            }
        }
    }
}
