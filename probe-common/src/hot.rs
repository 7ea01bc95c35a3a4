//! Places of queues that are posted to again and again: found without a table that has to be searched.
//!
//! An object has its entry in a table ([`ObjectKey`](crate::counters::ObjectKey)), which is searched at its first
//! operation and says where it has a place besides: one of [`PLACES`], which follows from its address. Later operations
//! go there at once. What an object has come to is the sum of both ([`ObjectCounters::sum`]).
//! Whoever finds its place taken goes on using its entry.

use crate::counters::ObjectCounters;
use crate::wire::Target;

/// Places of objects: 5 MiB with what they hold.
pub const PLACES: usize = 4096;
/// Places of processes.
pub const ACCOUNTS: usize = 1024;

/// In place of an owner: somebody is about to take the place, or to leave it.
pub const BUSY: u64 = 1;

/// The place of an object. All zeroes where nobody has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Place {
    /// [`owner`] of the object it belongs to; 0 for nobody, or [`BUSY`].
    pub owner: u64,
    /// Address of the object.
    pub address: u64,
    /// Start time of the process.
    pub start_ns: u64,
    /// Not 0 where the site's probe is to look at work requests.
    pub walks: u64,
    /// What was counted here.
    pub counters: ObjectCounters,
}

/// The place of a process, by its pid: what its hits at places of objects have cost it, on top of what its
/// [`Target`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Account {
    /// Thread-group id; 0 for nobody, or [`u64::MAX`] where somebody is about to take it.
    pub tgid: u64,
    /// As its entry among the watched processes, which is not written meanwhile.
    pub target: Target,
}

/// In place of a thread-group id: see [`Account::tgid`].
pub const OPENING: u64 = u64::MAX;

/// Who owns a place, as far as it fits a word: the last one of an [`ObjectKey`](crate::counters::ObjectKey).
#[inline(always)]
pub const fn owner(tgid: u32, kind: u32, source: u16) -> u64 {
    tgid as u64 | (kind as u64 & 0xffff) << 32 | (source as u64) << 48
}

/// The place of an object.
#[inline(always)]
pub const fn place_of(owner: u64, address: u64) -> u32 {
    // The high bits of the product depend on all bits of both; objects come from malloc, their low bits are alike.
    let mixed = (owner ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - PLACES.trailing_zeros())) as u32
}

/// The place of a process. Those that are made one after the other have different ones.
#[inline(always)]
pub const fn account_of(tgid: u32) -> u32 {
    tgid & (ACCOUNTS as u32 - 1)
}

const _: () = assert!(PLACES.is_power_of_two() && ACCOUNTS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{kind, source};

    #[test]
    fn objects_that_lie_side_by_side_rarely_share_a_place() {
        for step in [0x20, 0x130, 0x1000, 0x1010, 0x21000] {
            let mut taken = [false; PLACES];
            let mut shared = 0;
            for n in 0..256 {
                let place = place_of(owner(4711, kind::QP, source::TAP), 0x7f12_3400_0010 + n * step);
                shared += usize::from(core::mem::replace(&mut taken[place as usize], true));
            }
            // By chance it would be 8 of them.
            assert!(shared <= 16, "{shared} with {step:#x} between them");
        }
    }

    #[test]
    fn no_owner_is_taken_for_nobody_or_for_one_that_comes_or_goes() {
        for tgid in [0, 1, u32::MAX] {
            assert!(owner(tgid, kind::QP, source::TAP) > BUSY);
        }
        assert_eq!((account_of(1), account_of(1025)), (1, 1));
    }
}
