//! Ground truth: what this process itself asked of the verbs, counted at the very call sites in [`crate::verbs`].
//!
//! A profiler watching from outside must come to the same numbers, to the last one. Counting is per object (one
//! writer, so a plain load and store), and summed when someone asks.

use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident),+ $(,)?) => {
        /// Counts of verbs calls and what they carried; keys are stable in JSON output.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Truth { $($(#[$doc])* pub $field: u64),+ }

        /// The live counters of one verbs object. Written by the thread that owns the object, read by anyone.
        #[derive(Debug, Default)]
        pub struct Tally { $($(#[$doc])* pub $field: Count),+ }

        impl Tally {
            fn read(&self) -> Truth { Truth { $($field: self.$field.get()),+ } }
        }
        impl Truth {
            /// Names and values in a fixed order, for tables and for the comparison with a profiler.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),+]
            }
        }
        impl AddAssign for Truth {
            fn add_assign(&mut self, other: Truth) { $(self.$field += other.$field;)+ }
        }
        impl Sub for Truth {
            type Output = Truth;
            fn sub(self, earlier: Truth) -> Truth {
                Truth { $($field: self.$field.saturating_sub(earlier.$field)),+ }
            }
        }
    };
}

counters! {
    /// Successful memory registrations.
    registrations,
    /// Registrations the device or kernel refused.
    registrations_failed,
    /// Bytes covered by successful registrations.
    registered_bytes,
    /// Deregistrations.
    deregistrations,
    /// Queue pairs created.
    qps_created,
    /// Queue pairs destroyed.
    qps_destroyed,
    /// Completion queues created.
    cqs_created,
    /// Completion queues destroyed.
    cqs_destroyed,
    /// Completion channels created.
    channels_created,
    /// Calls of `ibv_post_send`, refused ones included.
    post_calls,
    /// Calls of `ibv_post_send` that returned an error.
    post_failed,
    /// Send work requests accepted (only those before `bad_wr` when a call failed).
    wrs,
    /// Of those, the ones asking for a completion.
    signaled,
    /// Of those, the ones sent inline.
    inline,
    /// Sum of SGE lengths over accepted send work requests, reads and atomics included.
    bytes,
    /// Receive work requests accepted.
    recv_posted,
    /// Calls of `ibv_poll_cq`.
    polls,
    /// Calls of `ibv_poll_cq` that returned nothing.
    empty_polls,
    /// Completions reaped.
    cqes,
    /// Of those, the ones with an error status.
    cqe_errors,
    /// Calls of `ibv_req_notify_cq`.
    notify_requests,
    /// Completion events taken off a channel.
    events,
}

impl Add for Truth {
    type Output = Truth;
    fn add(mut self, other: Truth) -> Truth {
        self += other;
        self
    }
}

/// One counter with a single writer.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n`. A load and a store instead of a locked add: the owning object is not `Sync`, so there is one writer,
    /// and a locked add on every post would be a visible share of what is being measured.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Ledger {
    live: Vec<Arc<Tally>>,
    retired: Truth,
}

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger { live: Vec::new(), retired: Truth::ZERO });

impl Truth {
    /// No calls at all.
    pub const ZERO: Truth = Truth {
        registrations: 0,
        registrations_failed: 0,
        registered_bytes: 0,
        deregistrations: 0,
        qps_created: 0,
        qps_destroyed: 0,
        cqs_created: 0,
        cqs_destroyed: 0,
        channels_created: 0,
        post_calls: 0,
        post_failed: 0,
        wrs: 0,
        signaled: 0,
        inline: 0,
        bytes: 0,
        recv_posted: 0,
        polls: 0,
        empty_polls: 0,
        cqes: 0,
        cqe_errors: 0,
        notify_requests: 0,
        events: 0,
    };
}

/// A tally registered with the process's ledger; its counts outlive it there.
#[derive(Debug)]
pub struct Entry(Arc<Tally>);

impl Entry {
    /// Opens a tally for one verbs object.
    pub fn open() -> Entry {
        let tally = Arc::new(Tally::default());
        LEDGER.lock().unwrap_or_else(PoisonError::into_inner).live.push(Arc::clone(&tally));
        Entry(tally)
    }
}

impl std::ops::Deref for Entry {
    type Target = Tally;
    fn deref(&self) -> &Tally {
        &self.0
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut ledger = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = ledger.live.iter().position(|tally| Arc::ptr_eq(tally, &self.0)) {
            ledger.live.swap_remove(at);
        }
        ledger.retired += self.0.read();
    }
}

/// Counts one call made outside any object's lifetime (creation, destruction, registration).
pub fn record(change: impl FnOnce(&mut Truth)) {
    change(&mut LEDGER.lock().unwrap_or_else(PoisonError::into_inner).retired);
}

/// Everything this process has asked of the verbs so far.
pub fn total() -> Truth {
    let ledger = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
    ledger.live.iter().fold(ledger.retired, |sum, tally| sum + tally.read())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_outlive_the_object_that_made_them() {
        let before = total();
        let entry = Entry::open();
        entry.wrs.add(7);
        assert_eq!((total() - before).wrs, 7);
        drop(entry);
        assert_eq!((total() - before).wrs, 7);
    }

    #[test]
    fn every_counter_is_listed_once_by_its_json_key() {
        let json = serde_json::to_value(Truth::ZERO).unwrap();
        let keys: Vec<_> = Truth::ZERO.entries().iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(json.as_object().unwrap().len(), keys.len());
        assert!(keys.iter().all(|key| json.get(key).is_some()));
    }
}
