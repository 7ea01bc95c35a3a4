//! Queue pairs with something due later: RNR waits, ACK timeouts, paced requests, and errors to clean up after.
//!
//! At most one live entry per QP: an entry counts only while it says the same as the QP's own `timer` word, so an
//! earlier time simply supersedes a later one.

use super::requester;
use crate::device::process::Process;
use crate::object::qp::Qp;
use crate::object::qp_table::index_of;
use crate::sys::lock::Lock;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Due immediately: an error left a queue to be flushed by whoever holds no lock.
pub const NOW: u64 = 1;

/// Timers of the process.
pub struct Timers {
    heap: Lock<BinaryHeap<Reverse<(u64, u16)>>>,
    next: AtomicU64,
}

impl Timers {
    /// None set.
    pub fn new() -> Self {
        Self { heap: Lock::new(BinaryHeap::with_capacity(256)), next: AtomicU64::new(u64::MAX) }
    }

    /// When the next timer is due; `u64::MAX` for never.
    #[inline]
    pub fn next_due(&self) -> u64 {
        self.next.load(SeqCst)
    }

    /// Has `qp` looked at no later than `at` (monotonic nanoseconds).
    pub fn set(&self, process: &Process, qp: &Qp, at: u64) {
        if qp.timer.fetch_min(at, AcqRel) <= at {
            return;
        }
        let mut heap = self.heap.lock();
        heap.push(Reverse((at, index_of(qp.number()) as u16)));
        let earliest = at < self.next.load(Relaxed);
        if earliest {
            self.next.store(at, SeqCst);
        }
        drop(heap);
        if earliest && at != NOW {
            process.wire.due_earlier(at);
        }
    }

    /// Looks at every QP that is due at `now`. True if there was one.
    pub fn run_due(&self, process: &'static Process, now: u64) -> bool {
        let mut did = false;
        while self.next_due() <= now {
            let Some(qp) = self.pop(process, now) else { continue };
            did = true;
            requester::on_timer(qp);
        }
        did
    }

    /// Looks at QPs that are due, where the caller has no clock at hand. Cheap when none is set.
    #[inline]
    pub fn run(&self, process: &'static Process) {
        let next = self.next_due();
        if next != u64::MAX {
            let now = if next == NOW { NOW } else { crate::sys::clock::now_ns() };
            self.run_due(process, now);
        }
    }

    /// Only what an error left to be done at once: for posts, which do not look at the clock.
    #[inline]
    pub fn run_urgent(&self, process: &'static Process) {
        if self.next_due() == NOW {
            self.run_due(process, NOW);
        }
    }

    fn pop(&self, process: &'static Process, now: u64) -> Option<&'static Qp> {
        let mut heap = self.heap.lock();
        let due = heap.peek().is_some_and(|Reverse((at, _))| *at <= now);
        let entry = if due { heap.pop() } else { None };
        let next = heap.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        self.next.store(next, SeqCst);
        drop(heap);
        let Reverse((at, index)) = entry?;
        let qp = process.qps.at(usize::from(index))?;
        qp.timer.compare_exchange(at, u64::MAX, AcqRel, Relaxed).ok().map(|_| qp)
    }
}
