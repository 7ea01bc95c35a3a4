//! What watching the data path costs the process that is watched: hits are counted, and the time the programs take beyond
//! what any hit costs is estimated from one hit in a few. A slice of time may bound what the functions of a provider
//! count.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use probe_common::wire::{Loss, Slice, Spent, Target, hits};

use crate::count;
use crate::maps::{TARGETS, WHOLE_HOST};
use crate::subject::{self, Subject};

/// The slice of time that counts; zeroes where all does.
#[map]
static SLICE: Array<Slice> = Array::with_max_entries(1, 0);

/// Longer, and the thread was not running: what is done here takes microseconds.
const LONGEST_NS: u64 = 50_000;

/// A hit being carried out.
#[derive(Clone, Copy)]
pub struct Meter {
    spent: *mut Spent,
    /// 0 where this hit is not timed.
    began_ns: u64,
}

/// Begins a hit of a kind of [`hits`]. `None` where the process is not watched.
///
/// A target is taken at its word that it began when the table says, which saves two readings of the kernel's memory at
/// each of millions of calls. A pid that another process gets before the profiler has noticed the end of the first is
/// the price.
#[inline(always)]
pub fn hit(kind: usize) -> Option<(Subject, Meter)> {
    let pid_tgid = bpf_get_current_pid_tgid();
    let (subject, target) = if WHOLE_HOST.load() != 0 {
        let subject = subject::watched()?;
        (subject, of_host(subject)?)
    } else {
        let target = TARGETS.get_ptr_mut(&((pid_tgid >> 32) as u32))?;
        // SAFETY: a live map value; the word is read once.
        (Subject { pid_tgid, start_ns: unsafe { (*target).start_ns } }, target)
    };
    // SAFETY: a live map value; the place is within bounds.
    unsafe {
        let spent = &raw mut (*target).spent;
        let hits = (&raw mut (*spent).hits).cast::<u64>().add(kind);
        count::add(hits, 1);
        let is_timed = *hits % hits::TIMED == 0;
        let began_ns = if is_timed { bpf_ktime_get_ns() } else { 0 };
        Some((subject, Meter { spent, began_ns }))
    }
}

/// With the whole host watched, processes enter the table with their first hit.
#[inline(always)]
fn of_host(subject: Subject) -> Option<*mut Target> {
    if let Some(found) = TARGETS.get_ptr_mut(&subject.tgid()) {
        return Some(found);
    }
    let spent = Spent { hits: [0; hits::COUNT], operations: 0, program_ns: 0 };
    let _ = TARGETS.insert(&subject.tgid(), &Target { start_ns: subject.start_ns, spent }, 0);
    let found = TARGETS.get_ptr_mut(&subject.tgid());
    if found.is_none() {
        count::lose(Loss::Uncounted);
    }
    found
}

impl Meter {
    /// Notes that a function's call stands for so many.
    #[inline(always)]
    pub fn operations(self, n: u64) {
        // SAFETY: a live map value.
        count::add(unsafe { &raw mut (*self.spent).operations }, n);
    }

    /// Ends the hit.
    #[inline(always)]
    pub fn end(self) {
        if self.began_ns == 0 {
            return;
        }
        // SAFETY: the helper has no preconditions; a live map value.
        unsafe {
            let took = bpf_ktime_get_ns().wrapping_sub(self.began_ns);
            if took < LONGEST_NS {
                count::add(&raw mut (*self.spent).program_ns, took.wrapping_mul(hits::TIMED));
            }
        }
    }
}

/// What a call of a provider's function counts for, and the number of the slice of time; `None` outside of one.
#[inline(always)]
pub fn slice() -> Option<(u64, u32)> {
    let slice = SLICE.get(0)?;
    if slice.until_ns == 0 {
        return Some((1, 0));
    }
    // SAFETY: the helper has no preconditions.
    if unsafe { bpf_ktime_get_ns() } >= slice.until_ns {
        return None;
    }
    Some((slice.weight, slice.number as u32))
}
