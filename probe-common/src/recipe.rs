//! Where a provider keeps what `ibv_wc_read_qp_num` and `ibv_wc_read_opcode` tell of the completion entry that an
//! extended completion queue stands at: those are functions of the provider, which a BPF program cannot call. User space
//! reads their code and leaves, for each provider's file, what they read; the programs read the same.

/// Recipes there may be: one for each provider's file that tells something else than the others. Place 0 tells nothing.
pub const RECIPES: usize = 64;

/// Pointers that are followed from a completion queue.
pub const MOST_HOPS: usize = 2;

/// A place in memory, from the address of the `ibv_cq_ex` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C)]
pub struct Path {
    /// Pointers that are followed, at most [`MOST_HOPS`].
    pub hops: u64,
    /// Where each lies, in bytes from what the one before points to.
    pub to: [i64; MOST_HOPS],
    /// From there to the place, in bytes.
    pub last: i64,
}

/// What `read_qp_num` and `read_opcode` read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C)]
pub struct Recipe {
    /// The four bytes that hold the QP number.
    pub number: Path,
    /// Their bits that are the number, when they are in order and shifted down; 0 where the number is not understood.
    pub mask: u32,
    /// Bits they are shifted down by.
    pub shift: u32,
    /// Not 0 where the bytes are in the order of the network.
    pub swapped: u64,
    /// Which of its queues the completion entry is of.
    pub side: Split,
    /// Values of that byte for which another one tells.
    pub more: Set,
    /// That other one.
    pub then: Split,
}

/// A byte that tells sends from receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C)]
pub struct Split {
    /// Where it is.
    pub at: Path,
    /// Its values that are sends.
    pub sends: Set,
    /// Its values that are receives. One in neither tells nothing.
    pub receives: Set,
}

/// Some of the values of a byte: value n is bit n modulo 64 of word n / 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Set(pub [u64; 4]);

/// Which work request a completion entry is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Of a send queue.
    Send,
    /// Of a receive queue.
    Receive,
}

impl Recipe {
    /// The QP number, out of the four bytes as a little-endian number; `None` where that is not understood.
    #[inline(always)]
    pub fn number_of(&self, bytes: u32) -> Option<u32> {
        let ordered = if self.swapped != 0 { bytes.swap_bytes() } else { bytes };
        (self.mask != 0).then_some(ordered >> (self.shift & 31) & self.mask)
    }
}

impl Split {
    /// The side that a value of the byte tells; `None` where it tells none.
    #[inline(always)]
    pub fn of(&self, byte: u8) -> Option<Side> {
        if self.receives.has(byte) {
            Some(Side::Receive)
        } else if self.sends.has(byte) {
            Some(Side::Send)
        } else {
            None
        }
    }

    /// Whether any value tells a side.
    #[inline(always)]
    pub fn tells(&self) -> bool {
        !self.sends.is_empty() || !self.receives.is_empty()
    }
}

impl Set {
    /// Whether a value is one of them.
    #[inline(always)]
    pub fn has(&self, value: u8) -> bool {
        self.0[(value >> 6) as usize & 3] >> (value & 63) & 1 != 0
    }

    /// Adds a value.
    pub fn put(&mut self, value: u8) {
        self.0[(value >> 6) as usize & 3] |= 1 << (value & 63);
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// True where there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        let [a, b, c, d] = self.0;
        a | b | c | d == 0
    }
}

// Without gaps: it is copied byte by byte.
const _: () =
    assert!(size_of::<Path>() == (2 + MOST_HOPS) * 8 && size_of::<Recipe>() == 32 + 16 + 2 * 96 + 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_put_in_order_shifted_and_masked() {
        // An entry of mlx5: opcode 0x0a, QP number 0x000123, in the order of the network.
        let mlx5 = Recipe { mask: 0xff_ffff, swapped: 1, ..Recipe::default() };
        assert_eq!(mlx5.number_of(u32::from_le_bytes([0x0a, 0, 1, 0x23])), Some(0x123));
        let shifted = Recipe { mask: 0xffff, shift: 16, ..Recipe::default() };
        assert_eq!(shifted.number_of(0x1234_5678), Some(0x1234));
        assert_eq!(Recipe::default().number_of(7), None);
        assert_eq!(Recipe { mask: 1, shift: u32::MAX, ..Recipe::default() }.number_of(1 << 31), Some(1));
    }

    #[test]
    fn a_byte_tells_a_side_or_none() {
        let mut split = Split::default();
        assert!(!split.tells());
        split.sends.put(13);
        [128, 255].into_iter().for_each(|value| split.receives.put(value));
        let sides = [13, 128, 255, 14].map(|byte| split.of(byte));
        assert_eq!(sides, [Some(Side::Send), Some(Side::Receive), Some(Side::Receive), None]);
        assert!(split.tells() && split.receives.len() == 2);
    }
}
