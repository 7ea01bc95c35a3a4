//! Remembering which ranges were registered before, in bounded memory.

use std::collections::HashMap;

/// Ranges remembered at least; at most twice as many are held.
const KEPT: usize = 1 << 15;

/// Counts how often each of the most recently used ranges was seen.
///
/// Two generations: when the younger is full it becomes the older, and what was in the older and not used since is
/// forgotten. A range that comes back within 32,768 others is always recognised.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecentRanges {
    young: HashMap<(u64, u64), u64>,
    old: HashMap<(u64, u64), u64>,
    forgot: bool,
}

impl RecentRanges {
    /// Notes one more use of a range (address, length in bytes); returns how often it had been seen before.
    pub fn note(&mut self, range: (u64, u64)) -> u64 {
        let before = match self.young.get(&range) {
            Some(times) => *times,
            None => self.old.remove(&range).unwrap_or(0),
        };
        if self.young.len() >= KEPT && !self.young.contains_key(&range) {
            self.forgot |= !self.old.is_empty();
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(range, before + 1);
        before
    }

    /// True when ranges had to be forgotten: a repetition may then have gone unnoticed.
    pub fn forgot(&self) -> bool {
        self.forgot
    }

    /// The ranges used most often, most often first: address, length in bytes, uses.
    pub fn most_used(&self, at_most: usize) -> Vec<(u64, u64, u64)> {
        let mut all: Vec<_> =
            self.young.iter().chain(&self.old).map(|((addr, length), n)| (*addr, *length, *n)).collect();
        all.sort_unstable_by_key(|(addr, length, n)| (std::cmp::Reverse(*n), *addr, *length));
        all.truncate(at_most);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_in_regular_use_is_never_forgotten() {
        let mut ranges = RecentRanges::default();
        for i in 0..200_000_u64 {
            assert_eq!(ranges.note((i + 1, 1)), 0);
            if i % 1000 == 0 {
                assert_eq!(ranges.note((0, 1)), i / 1000);
            }
        }
        assert!(ranges.forgot());
        assert!(ranges.young.len() + ranges.old.len() <= 2 * KEPT + 1);
        assert_eq!(ranges.most_used(1), [(0, 1, 200)]);
    }
}
