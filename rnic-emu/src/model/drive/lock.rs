//! A spin lock between modelled threads.

use std::collections::VecDeque;

use crate::model::time::Ps;

/// What a lock costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockCost {
    /// Taking it when nobody else wants it.
    pub take: Ps,
    /// Handing it over when one thread waits. All who wait read the line with the lock when it is released, but the first to
    /// see it free takes it before the last has looked: published figures grow about as the square root of the waiters.
    pub handoff: Ps,
    /// Waiters beyond this many make it no slower.
    pub waiters: f64,
}

/// One lock: first come, first served.
#[derive(Clone, Debug, Default)]
pub(super) struct Lock {
    free_at: Ps,
    /// When each of those ahead will have released it.
    releases: VecDeque<Ps>,
}

impl Lock {
    /// Waits for the lock from `at` on, holds it for `work`, and returns when it is released.
    pub fn hold(&mut self, at: Ps, work: Ps, cost: &LockCost) -> Ps {
        while self.releases.front().is_some_and(|&r| r <= at) {
            self.releases.pop_front();
        }
        let ahead = (self.releases.len() as f64).min(cost.waiters);
        let handed = (cost.handoff as f64 * ahead.sqrt()) as Ps;
        self.free_at = self.free_at.max(at) + cost.take + handed + work;
        self.releases.push_back(self.free_at);
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_costs_more_the_more_threads_wait() {
        let cost = LockCost { take: 10, handoff: 100, waiters: 4.0 };
        let per_hold = |threads: u64| {
            let mut lock = Lock::default();
            let mut at = vec![0; threads as usize];
            for _ in 0..100 {
                at.iter_mut().for_each(|t| *t = lock.hold(*t, 50, &cost));
            }
            lock.free_at / (100 * threads)
        };
        assert_eq!(per_hold(1), 60);
        assert!((190..=202).contains(&per_hold(3)), "{}", per_hold(3));
        assert!(per_hold(64) <= 260);
    }
}
