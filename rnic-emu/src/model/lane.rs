//! A serial resource (a pipeline, a link direction) that hands out its time.
//!
//! Requests reach a resource out of order: a payload fetched over PCIe is ready half a microsecond after an inline one
//! that was started later. A single "free from" mark would let the late one block the early one. So the future is kept
//! as a row of short slots with the time already given away in each; a request takes the first time left from its
//! own arrival on. Capacity is exact, order is exact to within one slot.

use super::time::Ps;

/// Slots of 2^16 ps = 65.5 ns.
const SHIFT: u32 = 16;
const WIDTH: Ps = 1 << SHIFT;

/// A serial resource.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// First slot that is remembered.
    first: u64,
    /// Slot after the last that is remembered.
    end: u64,
    /// All slots before this one are full.
    open: u64,
    /// Time given away per slot, in ps, at most `WIDTH`: a ring, slot `s` at `s` modulo its length, a power of two.
    used: Vec<u32>,
    busy: Ps,
}

impl Lane {
    /// Takes `cost` of the resource at the earliest from `at` on, and returns when it is done. `now` is the time of the
    /// event being handled: nothing before it will be asked for again.
    #[inline]
    pub fn reserve(&mut self, now: Ps, at: Ps, cost: Ps) -> Ps {
        self.busy += cost;
        self.open = self.open.max(now >> SHIFT);
        let slot = (at >> SHIFT).max(self.open);
        // Nearly always there is room enough in the first slot.
        if slot < self.end {
            let index = slot as usize & (self.used.len() - 1);
            let used = Ps::from(self.used[index]) + cost;
            if used < WIDTH && cost > 0 {
                self.used[index] = used as u32;
                return ((slot << SHIFT) + used).max(at + cost);
            }
        }
        self.reserve_spread(now, slot, at, cost)
    }

    /// The same where the cost spreads over several slots, or over ones not remembered yet. Kept out of the common case,
    /// which then needs no stack.
    #[inline(never)]
    fn reserve_spread(&mut self, now: Ps, mut slot: u64, at: Ps, cost: Ps) -> Ps {
        if cost == 0 {
            return at;
        }
        self.first = self.first.max(now >> SHIFT);
        // Slots given away ahead of time are passed over once and for all, or a long backlog would be walked by every request.
        while self.open < self.end && self.full(self.open) {
            self.open += 1;
        }
        slot = slot.max(self.open);
        let mut left = cost;
        loop {
            if slot >= self.end {
                self.remember(slot);
            }
            let index = slot as usize & (self.used.len() - 1);
            let used = Ps::from(self.used[index]);
            let take = left.min(WIDTH - used);
            let used = used + take;
            self.used[index] = used as u32;
            left -= take;
            if left == 0 {
                return ((slot << SHIFT) + used).max(at + cost);
            }
            slot += 1;
        }
    }

    fn full(&self, slot: u64) -> bool {
        Ps::from(self.used[slot as usize & (self.used.len() - 1)]) == WIDTH
    }

    /// Up to when all of its time is given away, to within what the last request that had to wait saw.
    pub fn full_until(&self) -> Ps {
        self.open << SHIFT
    }

    /// True when a request at `at` would not have to wait.
    pub fn idle_at(&self, at: Ps) -> bool {
        let slot = at >> SHIFT;
        if slot < self.open {
            return false;
        }
        if slot >= self.end {
            return true;
        }
        (slot << SHIFT) + Ps::from(self.used[slot as usize & (self.used.len() - 1)]) <= at
    }

    /// Time given away since the start.
    pub fn busy(&self) -> Ps {
        self.busy
    }

    /// Makes room up to and including `slot`; what is new is empty.
    #[cold]
    fn remember(&mut self, slot: u64) {
        let from = self.end.max(self.first);
        let needed = (slot + 1 - self.first) as usize;
        if needed > self.used.len() {
            let mut grown = vec![0; needed.next_power_of_two().max(64)];
            let mask = grown.len() - 1;
            for s in self.first..self.end {
                grown[s as usize & mask] = self.used[s as usize & (self.used.len() - 1)];
            }
            self.used = grown;
        }
        // Clearing ahead in one go, as far as the ring allows, keeps this rare.
        let end = (slot + 1).max(self.first + self.used.len() as u64);
        // No more than once round: what lies before the end of the ring, and what goes on at its beginning.
        let (len, begin) = (self.used.len(), from as usize & (self.used.len() - 1));
        let count = ((end - from) as usize).min(len);
        let ahead = count.min(len - begin);
        self.used[begin..begin + ahead].fill(0);
        self.used[..count - ahead].fill(0);
        self.end = end;
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
    fn time_given_away_ahead_counts_as_full_when_it_comes() {
        let mut lane = Lane::default();
        for i in 0..1_000u64 {
            // Asked for a microsecond ahead, one and a half times what there is.
            let now = i * 100_000;
            lane.reserve(now, now + 1_000_000, 150_000);
        }
        let backlog = lane.full_until() - 999 * 100_000;
        assert!(backlog > 49_000_000 && backlog < 52_000_000, "{backlog}");
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
