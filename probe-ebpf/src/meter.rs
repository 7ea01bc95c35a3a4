//! What watching the data path costs the process that is watched: hits are counted, and the time the programs take beyond
//! what any hit costs is estimated from one hit in a few. A slice of time may bound what the functions of a provider
//! count.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use probe_common::wire::{Loss, Slice, Spent, Target, hits, part};

use crate::bystanders;
use crate::count;
use crate::maps::{TARGETS, WHOLE_HOST};
use crate::subject::{self, Subject};

/// The slice of time that counts, by [`part`]; zeroes where all does.
#[map]
static SLICES: Array<Slice> = Array::with_max_entries(part::COUNT as u32, 0);

/// What a new entry of the table of processes begins as; never written. Too large for the stack together with the rest.
#[map]
static NEW_TARGET: Array<Target> = Array::with_max_entries(1, 0);

/// Longer, and the thread was not running: what is done here takes microseconds.
const LONGEST_NS: u64 = 50_000;

/// A hit being carried out.
#[derive(Clone, Copy)]
pub struct Meter {
    spent: *mut Spent,
    /// One of [`hits`].
    kind: usize,
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
        let tgid = (pid_tgid >> 32) as u32;
        let Some(target) = TARGETS.get_ptr_mut(&tgid) else {
            bystanders::hit(tgid, kind);
            return None;
        };
        // SAFETY: a live map value; the word is read once.
        (Subject { pid_tgid, start_ns: unsafe { (*target).start_ns } }, target)
    };
    // SAFETY: a live map value.
    let spent = unsafe { &raw mut (*target).spent };
    Some((subject, Meter::begin(spent, kind)))
}

/// With the whole host watched, processes enter the table with their first hit.
#[inline(always)]
fn of_host(subject: Subject) -> Option<*mut Target> {
    let Some(found) = entry(&TARGETS, subject.tgid()) else {
        count::lose(Loss::Uncounted);
        return None;
    };
    // SAFETY: a live map value; others who come here write the same.
    unsafe {
        if (*found).start_ns == 0 {
            (*found).start_ns = subject.start_ns;
        }
    }
    Some(found)
}

/// The entry of a process in a table of processes, a new one where it had none. `None` with the table full.
#[inline(always)]
pub fn entry(table: &HashMap<u32, Target>, tgid: u32) -> Option<*mut Target> {
    if let Some(found) = table.get_ptr_mut(&tgid) {
        return Some(found);
    }
    let _ = table.insert(&tgid, NEW_TARGET.get(0)?, BPF_NOEXIST as u64);
    table.get_ptr_mut(&tgid)
}

impl Meter {
    /// Begins a hit that is paid from `spent`, a live map value.
    #[inline(always)]
    pub fn begin(spent: *mut Spent, kind: usize) -> Self {
        // SAFETY: as promised; the place is within bounds.
        unsafe {
            let hits = (&raw mut (*spent).hits).cast::<u64>().add(kind);
            count::add(hits, 1);
            let is_timed = *hits % hits::TIMED == 0;
            let began_ns = if is_timed { bpf_ktime_get_ns() } else { 0 };
            Self { spent, kind, began_ns }
        }
    }

    /// A call that posts: what it counts for, and the number of the slice of time; `None` outside of one.
    #[inline(always)]
    pub fn post(self) -> Option<(u64, u32)> {
        // How posts go on while polls are watched tells what that costs the program.
        // SAFETY: live map values.
        unsafe {
            if SLICES.get(part::POLLS as u32).is_some_and(|slice| slice.until_ns > 1 && is_now(slice)) {
                count::add(&raw mut (*self.spent).beside, 1);
            }
        }
        let (weight, _, number) = slice(part::POSTS)?;
        self.operations(part::POSTS, weight);
        Some((weight, number))
    }

    /// Notes that a call of a part, or what it found, stands for so many.
    #[inline(always)]
    pub fn operations(self, part: usize, n: u64) {
        // SAFETY: a live map value; the place is within bounds.
        unsafe { count::add((&raw mut (*self.spent).operations).cast::<u64>().add(part), n) };
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
                let of_kind = (&raw mut (*self.spent).program_ns).cast::<u64>().add(self.kind);
                count::add(of_kind, took.wrapping_mul(hits::TIMED));
            }
        }
    }
}

/// What a call of a part of a provider's functions counts for, also where it finds nothing, and the number of the slice
/// of time; `None` outside of one.
#[inline(always)]
pub fn slice(part: usize) -> Option<(u64, u64, u32)> {
    let slice = SLICES.get(part as u32)?;
    if slice.until_ns == 0 {
        return Some((1, 1, 0));
    }
    is_now(slice).then(|| (slice.weight, slice.idle_weight, slice.number as u32))
}

#[inline(always)]
fn is_now(slice: &Slice) -> bool {
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    now >= slice.from_ns && now < slice.until_ns
}
