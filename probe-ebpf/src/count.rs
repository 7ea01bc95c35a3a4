//! Counters and histograms: exact, whatever runs at the same time.

use core::arch::asm;

use aya_ebpf::bindings::BPF_NOEXIST;
use probe_common::histogram;
use probe_common::wire::{BucketKey, CallCounters, CallKey, Loss};

use crate::maps::{BUCKETS, CALLS, LOST};
use crate::subject::Subject;

/// Adds to a word that other threads add to.
#[inline(always)]
pub fn add(word: *mut u64, n: u64) {
    // Rust has no compare-and-swap for this target and so no `fetch_add` either; the instruction there is.
    // SAFETY: the word lies in a map value, aligned.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) word, in(reg) n) };
}

/// Counts a loss on this CPU.
#[inline(always)]
pub fn lose(loss: Loss) {
    if let Some(word) = LOST.get_ptr_mut(loss as u32) {
        // Atomic although per CPU: a uprobe program can be preempted by another on the same CPU.
        add(word, 1);
    }
}

/// The counters of a call in the subject's process; made at first use, and `None` (counted) when the table is full.
#[inline(always)]
pub fn counters(subject: Subject, call: u8) -> Option<*mut CallCounters> {
    let key = CallKey { start_ns: subject.start_ns, tgid: subject.tgid(), call, zero: [0; 3] };
    if let Some(found) = CALLS.get_ptr_mut(&key) {
        return Some(found);
    }
    let new = CallCounters { entered: 0, returned: 0, failed: 0, bytes: 0, total_ns: 0 };
    // Two threads may come here at once: the second insertion fails and finds the first one's entry.
    let _ = CALLS.insert(&key, &new, BPF_NOEXIST as u64);
    let found = CALLS.get_ptr_mut(&key);
    if found.is_none() {
        lose(Loss::Uncounted);
    }
    found
}

/// Adds a latency to the histogram of a call.
#[inline(always)]
pub fn latency(subject: Subject, call: u8, ns: u64) {
    let key = BucketKey {
        start_ns: subject.start_ns,
        tgid: subject.tgid(),
        call,
        zero: 0,
        bucket: histogram::bucket(ns),
    };
    if let Some(found) = BUCKETS.get_ptr_mut(&key) {
        add(found, 1);
        return;
    }
    let _ = BUCKETS.insert(&key, &0, BPF_NOEXIST as u64);
    match BUCKETS.get_ptr_mut(&key) {
        Some(found) => add(found, 1),
        None => lose(Loss::Uncounted),
    }
}
