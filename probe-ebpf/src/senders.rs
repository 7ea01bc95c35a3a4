//! Which queue pairs complete into a completion queue.
//!
//! An extended completion queue shows the number (`wr_id`) and the status of the completion entry it stands at, and
//! nothing else: queue pair and opcode are behind functions of the provider. Where those are not understood
//! ([`crate::recipes`]), whose entry it is is guessed from who sends to the queue: the queue pair whose oldest work
//! request under way has that number.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use probe_common::counters::{ObjectCounters, SENDERS as MOST, Senders, SendersKey, detail};

use crate::bounds::bounded;
use crate::data;
use crate::subject::Subject;
use crate::under_way;

/// By completion queue.
#[map]
static SENDERS: HashMap<SendersKey, Senders> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// What a new entry of [`SENDERS`] begins as; never written.
#[map]
static NO_SENDERS: Array<Senders> = Array::with_max_entries(1, 0);

#[inline(always)]
fn key(subject: Subject, address: u64) -> SendersKey {
    SendersKey { start_ns: subject.start_ns, address, tgid: subject.tgid(), zero: 0 }
}

#[inline(always)]
fn made(subject: Subject, cq: u64) -> Option<*mut Senders> {
    let key = key(subject, cq);
    if let Some(found) = SENDERS.get_ptr_mut(&key) {
        return Some(found);
    }
    // Two threads may come here at once: the second insertion fails and finds the first one's entry.
    let _ = SENDERS.insert(&key, NO_SENDERS.get(0)?, BPF_NOEXIST as u64);
    SENDERS.get_ptr_mut(&key)
}

/// The sends of a queue pair complete into a completion queue.
#[inline(always)]
pub fn sends(subject: Subject, cq: u64, number: u32) {
    if number == 0 {
        return;
    }
    let Some(senders) = made(subject, cq) else { return };
    let mut adding = Number { senders: senders.cast(), number, to: number, found: 0 };
    // SAFETY: the callback gets a pointer to `adding`, which outlives the call.
    unsafe {
        bpf_loop(MOST as u32, put as *mut c_void, (&raw mut adding).cast::<c_void>(), 0);
        if adding.found == 0 {
            (*senders).more = 1;
        }
    }
}

/// Receives complete into a completion queue.
#[inline(always)]
pub fn receives(subject: Subject, cq: u64) {
    if let Some(senders) = made(subject, cq) {
        // SAFETY: a live map value.
        unsafe { (*senders).receives = 1 };
    }
}

/// A queue pair is destroyed.
#[inline(always)]
pub fn ends(subject: Subject, cq: u64, number: u32) {
    if number != 0
        && let Some(senders) = SENDERS.get_ptr_mut(&key(subject, cq))
    {
        let mut taking = Number { senders: senders.cast(), number, to: Senders::GONE, found: 0 };
        // SAFETY: the callback gets a pointer to `taking`, which outlives the call.
        unsafe {
            bpf_loop(MOST as u32, take as *mut c_void, (&raw mut taking).cast::<c_void>(), 0);
        }
    }
}

/// A completion queue is destroyed.
#[inline(always)]
pub fn queue_ends(subject: Subject, cq: u64) {
    let _ = SENDERS.remove(&key(subject, cq));
}

/// Whether receives complete into a completion queue.
#[inline(always)]
pub fn has_receives(subject: Subject, cq: u64) -> bool {
    // SAFETY: the word is read once.
    SENDERS.get_ptr_mut(&key(subject, cq)).is_some_and(|senders| unsafe { (*senders).receives } != 0)
}

/// Whether a queue pair's oldest work request under way has this number.
#[inline(always)]
pub fn is_in_turn(subject: Subject, number: u32, wr_id: u64) -> bool {
    let Some(ring) = under_way::of(subject, number) else { return false };
    // SAFETY: a live map value.
    unsafe {
        let (head, tail) = ((*ring).head, (*ring).tail);
        head != tail && under_way::place(ring, tail).wr_id == wr_id
    }
}

/// A number that is put in, or taken out. [`Senders`] is not named, as in the context of a walk.
struct Number {
    senders: *mut c_void,
    number: u32,
    to: u32,
    found: u64,
}

/// A place in the list.
///
/// # Safety
/// `senders` is a live map value.
#[inline(always)]
unsafe fn place(senders: *mut c_void, index: u32) -> *mut u32 {
    let place = bounded::<{ MOST as u64 - 1 }>(index as u64);
    // SAFETY: as promised, and within bounds.
    unsafe { (&raw mut (*senders.cast::<Senders>()).numbers).cast::<u32>().add(place) }
}

/// Puts it into the first place that is free.
extern "C" fn put(index: u32, adding: *mut Number) -> i64 {
    // SAFETY: what `sends` passed to bpf_loop; others who write to the same place are seen by reading again.
    unsafe {
        let adding = &mut *adding;
        let place = place(adding.senders, index);
        let there = place.read_volatile();
        if there == 0 || there == Senders::GONE {
            place.write_volatile(adding.number);
        }
        adding.found = (place.read_volatile() == adding.number) as u64;
        adding.found as i64
    }
}

extern "C" fn take(index: u32, taking: *mut Number) -> i64 {
    // SAFETY: what `ends` passed to bpf_loop.
    unsafe {
        let taking = &mut *taking;
        let place = place(taking.senders, index);
        let there = place.read_volatile();
        if there == taking.number {
            place.write_volatile(taking.to);
        }
        i64::from(there == 0)
    }
}

/// The number of the queue pair whose completion entry has this number; 0 where that is not known.
///
/// Of several queue pairs whose oldest request has that number, it is the one that has waited longest. Where receives
/// complete into the queue too, a number that no request in turn has is taken for that of a receive.
#[inline(always)]
pub fn whose(subject: Subject, counters: *mut ObjectCounters, cq: u64, wr_id: u64) -> u32 {
    sender_of(counters, subject.pid_tgid, subject.start_ns, cq, wr_id)
}

/// The same, verified by itself (see the crate).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sender_of(
    counters: *mut ObjectCounters,
    pid_tgid: u64,
    start_ns: u64,
    cq: u64,
    wr_id: u64,
) -> u32 {
    if counters.is_null() {
        return 0;
    }
    let subject = Subject { pid_tgid, start_ns };
    let Some(senders) = SENDERS.get_ptr_mut(&key(subject, cq)) else { return 0 };
    let mut sought =
        Sought { senders: senders.cast(), subject, wr_id, number: 0, one: 0, rings: 0, t_ns: u64::MAX };
    // SAFETY: the callback gets a pointer to `sought`, which outlives the call.
    unsafe {
        bpf_loop(MOST as u32, compare as *mut c_void, (&raw mut sought).cast::<c_void>(), 0);
        if sought.rings > 1 || (*senders).receives != 0 {
            data::add_detail(counters, detail::GUESSED, 1);
        }
        if sought.number == 0 && (*senders).receives == 0 {
            if sought.rings == 1 && (*senders).more == 0 {
                // Nobody else's: what it makes out of step is put right there.
                sought.number = sought.one;
            } else if sought.rings != 0 {
                data::add_detail(counters, detail::UNMATCHED, 1);
            }
        }
    }
    sought.number
}

/// The work request of a completion entry that is looked for.
struct Sought {
    senders: *mut c_void,
    subject: Subject,
    wr_id: u64,
    /// Number of the queue pair it is of, and when that request was posted.
    number: u32,
    /// One of the queue pairs that have posted anything, and how many have.
    one: u32,
    rings: u64,
    t_ns: u64,
}

extern "C" fn compare(index: u32, sought: *mut Sought) -> i64 {
    // SAFETY: what `reaped` passed to bpf_loop; places are within bounds.
    unsafe {
        let sought = &mut *sought;
        let number = place(sought.senders, index).read_volatile();
        if number == 0 {
            return 1;
        }
        let Some(ring) = under_way::of(sought.subject, number) else { return 0 };
        sought.rings += 1;
        sought.one = number;
        let (head, tail) = ((*ring).head, (*ring).tail);
        if head == tail {
            return 0;
        }
        let entry = under_way::place(ring, tail);
        if entry.wr_id == sought.wr_id && entry.t_ns < sought.t_ns {
            (sought.number, sought.t_ns) = (number, entry.t_ns);
        }
        0
    }
}
