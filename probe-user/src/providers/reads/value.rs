//! What a register may hold while code is read: bits, each known, a bit of memory, or unknown; or an address.

use super::machine::Pointer;

/// One bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bit {
    /// Zero or one.
    Known(bool),
    /// Bit `bit` of a byte of memory, by its number among those read.
    Of { byte: u16, bit: u8 },
    /// It depends on something that is not followed.
    Unknown,
}

impl Bit {
    /// Its value, where it is known.
    pub fn known(self) -> Option<bool> {
        if let Self::Known(is_set) = self { Some(is_set) } else { None }
    }
}

/// 64 bits, the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(pub [Bit; 64]);

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are words; a few kilobytes in all")]
pub enum Value {
    /// Bits.
    Word(Word),
    /// So many bytes behind what a pointer points to.
    Address(Pointer, i64),
}

impl Value {
    pub const UNKNOWN: Self = Self::Word(Word::UNKNOWN);

    /// Its bits; those of an address are not known.
    pub fn word(self) -> Word {
        match self {
            Self::Word(word) => word,
            Self::Address(..) => Word::UNKNOWN,
        }
    }
}

impl Word {
    pub const UNKNOWN: Self = Self([Bit::Unknown; 64]);

    pub fn of(number: u64) -> Self {
        Self(std::array::from_fn(|n| Bit::Known(number >> n & 1 != 0)))
    }

    /// Its lowest `bits` bits, with zeroes above.
    pub fn low(self, bits: usize) -> Self {
        Self(std::array::from_fn(|n| if n < bits { self.0[n] } else { Bit::Known(false) }))
    }

    /// Its lowest `bits` bits, with copies of the highest of them above.
    pub fn extended(self, bits: usize) -> Self {
        let sign = self.0.get(bits.saturating_sub(1)).copied().unwrap_or(Bit::Unknown);
        Self(std::array::from_fn(|n| if n < bits { self.0[n] } else { sign }))
    }

    /// These bits in the places `from..from + bits` of this word.
    pub fn with(self, from: usize, bits: usize, other: Self) -> Self {
        let within = |n: usize| n >= from && n < from + bits;
        Self(std::array::from_fn(|n| if within(n) { other.0[n - from] } else { self.0[n] }))
    }

    /// Its lowest `bits` bits as a number, where all of them are known.
    pub fn number(self, bits: usize) -> Option<u64> {
        let mut number = 0;
        for (n, bit) in self.0.iter().take(bits).enumerate() {
            let Bit::Known(is_set) = bit else { return None };
            number |= u64::from(*is_set) << n;
        }
        Some(number)
    }

    /// Moved up by `by`, zeroes below; down where it is negative, `fill` above, `bits` wide.
    pub fn shifted(self, by: i32, bits: usize, fill: Bit) -> Self {
        let moved = |n: usize| {
            let from = i32::try_from(n).unwrap_or(0) - by;
            match usize::try_from(from) {
                Ok(from) if from < bits => self.0[from],
                Ok(_) => fill,
                Err(_) => Bit::Known(false),
            }
        };
        Self(std::array::from_fn(|n| if n < bits { moved(n) } else { Bit::Known(false) }))
    }

    /// Turned to the left by `by` within its lowest `bits` bits.
    pub fn turned(self, by: usize, bits: usize) -> Self {
        let from = |n: usize| (n + bits - by % bits) % bits;
        Self(std::array::from_fn(|n| if n < bits { self.0[from(n)] } else { Bit::Known(false) }))
    }

    /// The lowest `bytes` bytes in the other order.
    pub fn swapped(self, bytes: usize) -> Self {
        let from = |n: usize| (bytes - 1 - n / 8) * 8 + n % 8;
        Self(std::array::from_fn(|n| if n < bytes * 8 { self.0[from(n)] } else { Bit::Known(false) }))
    }

    /// Bit by bit.
    pub fn zip(self, other: Self, of: impl Fn(Bit, Bit) -> Bit) -> Self {
        Self(std::array::from_fn(|n| of(self.0[n], other.0[n])))
    }

    pub fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Bit::Known(false), _) | (_, Bit::Known(false)) => Bit::Known(false),
            (Bit::Known(true), other) | (other, Bit::Known(true)) => other,
            (a, b) if a == b => a,
            _ => Bit::Unknown,
        })
    }

    pub fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Bit::Known(true), _) | (_, Bit::Known(true)) => Bit::Known(true),
            (Bit::Known(false), other) | (other, Bit::Known(false)) => other,
            (a, b) if a == b => a,
            _ => Bit::Unknown,
        })
    }

    pub fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Bit::Known(a), Bit::Known(b)) => Bit::Known(a != b),
            (Bit::Known(false), other) | (other, Bit::Known(false)) => other,
            (a, b) if a == b && a != Bit::Unknown => Bit::Known(false),
            _ => Bit::Unknown,
        })
    }

    /// What is the same in both, as far as it is known.
    pub fn either(self, other: Self) -> Self {
        self.zip(other, |a, b| if a == b { a } else { Bit::Unknown })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Word {
        Word(std::array::from_fn(|n| Bit::Of { byte: (n / 8) as u16, bit: (n % 8) as u8 }))
    }

    #[test]
    fn known_bits_are_carried_through_every_operation_as_the_processor_does() {
        let (a, b) = (0x1234_5678_9abc_def0_u64, 0x0ff0_00ff_f0f0_5555_u64);
        let (x, y) = (Word::of(a), Word::of(b));
        assert_eq!(x.and(y).number(64), Some(a & b));
        assert_eq!(x.or(y).number(64), Some(a | b));
        assert_eq!(x.xor(y).number(64), Some(a ^ b));
        assert_eq!(x.swapped(8).number(64), Some(a.swap_bytes()));
        assert_eq!(x.swapped(4).number(64), Some(u64::from((a as u32).swap_bytes())));
        assert_eq!(x.low(16).number(64), Some(0xdef0));
        assert_eq!(x.extended(8).number(64), Some(a as u8 as i8 as i64 as u64));
        assert_eq!(x.shifted(4, 64, Bit::Known(false)).number(64), Some(a << 4));
        assert_eq!(x.shifted(-7, 32, Bit::Known(false)).number(64), Some(u64::from(a as u32 >> 7)));
        let sign = x.0[31];
        assert_eq!(x.shifted(-7, 32, sign).number(32), Some(u64::from((a as u32 as i32 >> 7) as u32)));
        assert_eq!(x.turned(5, 32).number(64), Some(u64::from((a as u32).rotate_left(5))));
        assert_eq!(x.turned(8, 16).number(64), Some(0xf0de));
        assert_eq!(x.with(8, 8, Word::of(0x77)).number(64), Some(a & !0xff00 | 0x7700));
    }

    #[test]
    fn bits_of_memory_keep_their_names_and_what_mixes_them_is_unknown() {
        let swapped = memory().swapped(4).and(Word::of(0xff_ffff));
        assert_eq!(swapped.0[0], Bit::Of { byte: 3, bit: 0 });
        assert_eq!(swapped.0[23], Bit::Of { byte: 1, bit: 7 });
        assert_eq!(swapped.0[24], Bit::Known(false));
        let mixed = memory().or(memory().shifted(-8, 64, Bit::Known(false)));
        assert_eq!(mixed.0[0], Bit::Unknown);
        assert_eq!(memory().xor(memory()).number(64), Some(0));
        assert_eq!(Word::UNKNOWN.xor(Word::UNKNOWN).0[0], Bit::Unknown);
        assert_eq!(memory().number(1), None);
    }
}
