//! What the addresses of work requests tell: alignment, and how each follows the one before.
//!
//! All of it is arithmetic without a branch: in a loop over many requests each branch would double the verifier's work.

use crate::bounds::highest_bit;

/// Where a kind of memory was used last.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Steps {
    pub at: u64,
    pub behind: u64,
}

impl Steps {
    /// A step to a buffer. Returns 1 if it leads to the same place, and 1 if it goes on where the last one ended.
    #[inline(always)]
    pub fn to(&mut self, at: u64, length: u64) -> (u64, u64) {
        let same = is_zero((at ^ self.at) << 1 >> 1);
        let sequential = is_zero((at ^ self.behind) << 1 >> 1);
        self.at = at;
        self.behind = at.wrapping_add(length);
        (same, sequential)
    }
}

/// What addresses tell of several work requests, a byte each: sums of as many as are read at once fit.
#[derive(Clone, Copy)]
pub struct Told(pub u64);

impl Told {
    pub const LOCAL_SAME: u32 = 0;
    pub const LOCAL_SEQUENTIAL: u32 = 8;
    pub const REMOTE_SAME: u32 = 16;
    pub const REMOTE_SEQUENTIAL: u32 = 24;
    pub const MERGEABLE: u32 = 32;
    pub const UNALIGNED_64: u32 = 40;
    pub const UNALIGNED_4096: u32 = 48;
    /// What is told of local memory and of remote memory, alignment left out.
    pub const LOCAL: u64 = 0xffff;
    pub const REMOTE: u64 = 0xff_ffff << 16;

    /// Of one work request: the bits of all its addresses, and whether its local and remote steps lead to the same place
    /// or go on.
    #[inline(always)]
    pub fn of(
        low: u64,
        (same, sequential): (u64, u64),
        (remote_same, remote_sequential): (u64, u64),
    ) -> Self {
        let unaligned_64 = ((low & 63) + 63) >> 6;
        let unaligned_4096 = ((low & 4095) + 4095) >> 12;
        Self(
            same << Self::LOCAL_SAME
                | sequential << Self::LOCAL_SEQUENTIAL
                | remote_same << Self::REMOTE_SAME
                | remote_sequential << Self::REMOTE_SEQUENTIAL
                | (sequential & remote_sequential) << Self::MERGEABLE
                | unaligned_64 << Self::UNALIGNED_64
                | unaligned_4096 << Self::UNALIGNED_4096,
        )
    }

    #[inline(always)]
    pub fn get(self, which: u32) -> u64 {
        self.0 >> which & 0xff
    }
}

/// 1 where a word is 0, else 0. Without a branch: in a loop over many requests each would double the verifier's work.
#[inline(always)]
pub fn is_zero(word: u64) -> u64 {
    // The highest bit tells; words here are addresses, lengths and differences of addresses, and have it clear.
    highest_bit(word.wrapping_sub(1))
}

/// Place of the highest bit, plus one.
#[inline(always)]
fn bits(word: u64) -> u64 {
    64 - word.leading_zeros() as u64
}

/// The class of a size; see [`probe_common::counters::SIZES`].
#[inline(always)]
pub fn size_class(bytes: u64) -> u64 {
    bits(bytes.wrapping_sub(1).wrapping_add(is_zero(bytes)))
}
