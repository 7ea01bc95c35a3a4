//! A spin lock between modelled threads.

use std::collections::VecDeque;

use crate::model::time::Ps;

/// What a lock costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockCost {
    /// Taking it when nobody else wants it.
    pub take: Ps,
    /// Its line moving to another core.
    pub handoff: Ps,
    /// What each thread that waits adds to handing it over.
    pub waiter: Ps,
    /// Waiters beyond this many make it no slower.
    pub waiters: f64,
}

/// One lock, as the drivers use them: test and set, in no order.
#[derive(Clone, Debug, Default)]
pub(super) struct Lock {
    free_at: Ps,
    last: u32,
    /// When each of those ahead will have released it.
    releases: VecDeque<Ps>,
}

/// What is done under a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// By which thread.
    pub thread: u32,
    /// For how long.
    pub work: Ps,
    /// What moves from core to core with the lock: the data it guards.
    pub moves: Ps,
}

impl Lock {
    /// Waits for the lock from `at` on, holds it, and returns when it is released.
    ///
    /// Whoever releases a lock that others wait for stands a chance with them to take it again, at no cost, since its lines are
    /// still where they were: with `n` others it is n times in n + 1 that they move. All who wait read the line again at every
    /// release, one after the other, before one of them has it (Boyd-Wickizer et al., Linux Symposium 2012).
    pub fn hold(&mut self, at: Ps, held: Held, cost: &LockCost) -> Ps {
        while self.releases.front().is_some_and(|&r| r <= at) {
            self.releases.pop_front();
        }
        let ahead = self.releases.len() as f64;
        let moved = match self.releases.len() {
            0 if self.last == held.thread => 0.0,
            0 => 1.0,
            _ => ahead / (ahead + 1.0),
        };
        let handed =
            moved * (cost.handoff + held.moves) as f64 + ahead.min(cost.waiters) * cost.waiter as f64;
        self.free_at = self.free_at.max(at) + cost.take + handed as Ps + held.work;
        self.last = held.thread;
        self.releases.push_back(self.free_at);
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_costs_more_the_more_threads_wait() {
        let cost = LockCost { take: 10, handoff: 100, waiter: 10, waiters: 4.0 };
        let per_hold = |threads: u64| {
            let mut lock = Lock::default();
            let mut at = vec![0; threads as usize];
            for _ in 0..100 {
                for (thread, t) in at.iter_mut().enumerate() {
                    let held = Held { thread: thread as u32, work: 50, moves: 0 };
                    *t = lock.hold(*t, held, &cost);
                }
            }
            lock.free_at / (100 * threads)
        };
        assert_eq!(per_hold(1), 60);
        assert!((140..=147).contains(&per_hold(3)), "{}", per_hold(3));
        assert!((195..=200).contains(&per_hold(64)), "{}", per_hold(64));
    }

    #[test]
    fn lines_move_only_when_another_thread_held_the_lock_last() {
        let cost = LockCost { take: 10, handoff: 100, waiter: 10, waiters: 4.0 };
        let mut lock = Lock::default();
        let mut at = |at, thread| lock.hold(at, Held { thread, work: 50, moves: 30 }, &cost) - at;
        assert_eq!([at(1_000, 0), at(2_000, 1), at(3_000, 1)], [60, 190, 60]);
    }
}
