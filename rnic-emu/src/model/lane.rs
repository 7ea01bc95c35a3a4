//! A serial resource (a pipeline, a link direction) that hands out its time.
//!
//! Requests reach a resource out of order: a payload fetched over PCIe is ready half a microsecond after an inline one
//! that was started later. A single "free from" mark would let the late one block the early one. So the future is kept
//! as a row of short slots with the time already given away in each; a request takes the first time left from its
//! own arrival on. Capacity is exact, order is exact to within one slot.

use std::collections::VecDeque;

use super::time::Ps;

/// Slots of 2^16 ps = 65.5 ns.
const SHIFT: u32 = 16;
const WIDTH: Ps = 1 << SHIFT;

/// A serial resource.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Absolute number of the slot at the front of `used`.
    first: u64,
    /// All slots before this one are full.
    open: u64,
    /// Time given away per slot, in ps, at most `WIDTH`.
    used: VecDeque<u32>,
    busy: Ps,
}

impl Lane {
    /// Takes `cost` of the resource at the earliest from `at` on, and returns when it is done. `now` is the time of the
    /// event being handled: nothing before it will be asked for again.
    pub fn reserve(&mut self, now: Ps, at: Ps, cost: Ps) -> Ps {
        if cost == 0 {
            return at;
        }
        self.busy += cost;
        self.forget_before(now >> SHIFT);
        let mut slot = (at >> SHIFT).max(self.open);
        let mut left = cost;
        loop {
            let index = (slot - self.first) as usize;
            if index >= self.used.len() {
                self.used.resize(index + 1, 0);
            }
            let used = &mut self.used[index];
            let take = left.min(WIDTH - Ps::from(*used));
            *used += take as u32;
            left -= take;
            if Ps::from(*used) == WIDTH && slot == self.open {
                self.open += 1;
            }
            if left == 0 {
                return ((slot << SHIFT) + Ps::from(*used)).max(at + cost);
            }
            slot += 1;
        }
    }

    /// Up to when all of its time is given away.
    pub fn full_until(&self) -> Ps {
        self.open << SHIFT
    }

    /// True when a request at `at` would not have to wait.
    pub fn idle_at(&self, at: Ps) -> bool {
        let slot = at >> SHIFT;
        if slot < self.open {
            return false;
        }
        match slot.checked_sub(self.first).and_then(|i| self.used.get(i as usize)) {
            Some(&used) => (slot << SHIFT) + Ps::from(used) <= at,
            None => true,
        }
    }

    /// Time given away since the start.
    pub fn busy(&self) -> Ps {
        self.busy
    }

    fn forget_before(&mut self, slot: u64) {
        if slot <= self.first {
            return;
        }
        let gone = slot - self.first;
        if gone >= self.used.len() as u64 {
            self.used.clear();
        } else {
            self.used.drain(..gone as usize);
        }
        self.first = slot;
        self.open = self.open.max(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saturated_lane_serves_back_to_back() {
        let mut lane = Lane::default();
        let mut last = 0;
        for i in 1..=10_000u64 {
            last = lane.reserve(0, 0, 8_480);
            assert!(last <= i * 8_480 + WIDTH && last + WIDTH >= i * 8_480);
        }
        assert_eq!(last, 84_800_000);
    }

    #[test]
    fn a_late_reservation_does_not_block_an_early_one() {
        let mut lane = Lane::default();
        assert_eq!(lane.reserve(0, 1_000_000, 10_000), 1_010_000);
        assert_eq!(lane.reserve(0, 0, 10_000), 10_000);
    }

    #[test]
    fn an_idle_lane_adds_nothing_but_the_cost() {
        let mut lane = Lane::default();
        for i in 0..1_000u64 {
            let at = i * 100_000 + 64_000;
            assert_eq!(lane.reserve(at, at, 5_000), at + 5_000);
        }
    }

    #[test]
    fn a_cost_longer_than_a_slot_spreads_over_several() {
        let mut lane = Lane::default();
        assert_eq!(lane.reserve(0, 0, 1_000_000), 1_000_000);
        assert_eq!(lane.reserve(0, 0, 1), 1_000_001);
        assert!(!lane.idle_at(500_000));
        assert!(lane.idle_at(2_000_000));
    }
}
