//! Counters of the data path, by object, and what a thread keeps between the entry and the return of a call.

use core::mem::transmute;

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use probe_common::counters::{
    ARMED, AT_PLACE, COUNTERS, Granted, LatencyKey, MadeKey, ObjectCounters, ObjectKey, SIZES, detail, kind,
    qp, source,
};
use probe_common::failures::Failed;
use probe_common::histogram;
use probe_common::verbs::{SendWr, Sge, Wc};
use probe_common::wire::Loss;

use crate::bounds::bounded;
use crate::count;
use crate::failures::{Completion, Kind, Refusal};
use crate::gap;
use crate::hot;
use crate::poll::Reading;
use crate::post::Receives;
use crate::senders;
use crate::subject::Subject;
use crate::under_way;
use crate::user::{half, word};
use crate::walk::Walk;

/// Counters by process and object. Not allocated in advance: most recordings have few objects.
#[map]
static DATA_PATH: HashMap<ObjectKey, ObjectCounters> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// What new counters begin as; never written. Too large for the stack together with the rest.
#[map]
static NO_COUNTS: Array<ObjectCounters> = Array::with_max_entries(1, 0);

/// What queue pairs were made with.
#[map]
static MADE: HashMap<MadeKey, Granted> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// Latencies by process and class.
#[map]
static LATENCIES: HashMap<LatencyKey, u64> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// Non-zero: queue pairs that are made are noted, for the data path is watched.
#[unsafe(no_mangle)]
pub static NOTE_MADE: Global<u32> = Global::new(0);

/// By thread.
#[map]
static THREADS: HashMap<u64, Thread> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// What a new entry of [`THREADS`] begins as; never written.
#[map]
static NEW_THREAD: Array<Thread> = Array::with_max_entries(1, 0);

/// Work requests read at once.
pub const AT_ONCE: usize = 16;
/// Completion entries read at once.
pub const ENTRIES_AT_ONCE: usize = 16;

/// A call whose return is awaited; the object is 0 when there is none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Awaited {
    pub object: u64,
    pub first: u64,
    pub second: u64,
    /// One of [`kind`].
    pub kind: u64,
    /// What the call counts for.
    pub weight: u64,
}

/// What was read of the program: a thread either posts or polls.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Copied {
    pub wrs: [SendWr; AT_ONCE],
    pub entries: [Wc; ENTRIES_AT_ONCE],
}

/// A thread's own memory: the stack of a program is too small for a batch of work requests, and memory per CPU would be
/// shared with a program that preempts this one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Thread {
    pub copied: Copied,
    pub sges: [Sge; AT_ONCE],
    /// List of one work request.
    pub list: [Sge; 4],
    pub post: Awaited,
    pub poll: Awaited,
    /// When it last found completion entries, where it has no place that tells: see [`crate::gap`].
    pub reaped_ns: u64,
    pub walk: Walk,
    pub receives: Receives,
    pub reading: Reading,
    /// The request of its that failed first, on its way into the table.
    pub failed: Failed,
    pub sought: under_way::Sought,
    pub refusal: Refusal,
    /// A completion entry with an error, on its way to be counted.
    pub completion: (Kind, Completion),
}

/// The key of an object that lives.
///
/// Keys are written word by word, for so tables read them: a processor waits where it reads in one what was written in
/// several.
#[inline(always)]
fn object_key(subject: Subject, object_kind: u32, address: u64, by: u16) -> ObjectKey {
    let last = subject.tgid() as u64 | (object_kind as u64 & 0xffff) << 32 | (by as u64) << 48;
    // SAFETY: as long as the words, without padding; this target is little-endian.
    unsafe { transmute([subject.start_ns, address, 0, last]) }
}

/// The counters of an object; made at first use, and `None` (counted) when the table is full.
#[inline(always)]
pub fn counters(subject: Subject, object_kind: u32, address: u64, by: u16) -> Option<*mut ObjectCounters> {
    let key = object_key(subject, object_kind, address, by);
    if let Some(found) = DATA_PATH.get_ptr_mut(&key) {
        return Some(found);
    }
    if let Some(none) = NO_COUNTS.get(0) {
        // Two threads may come here at once: the second insertion fails and finds the first one's entry.
        let _ = DATA_PATH.insert(&key, none, BPF_NOEXIST as u64);
    }
    let found = DATA_PATH.get_ptr_mut(&key);
    match found {
        Some(found) => identify(subject, found, object_kind, address),
        None => count::lose(Loss::Uncounted),
    }
    found
}

/// Notes who an object is. `struct ibv_qp`: send_cq 24, recv_cq 32, srq 40, qp_num 52, qp_type 60; `ibv_cq` and
/// `ibv_srq`: handle 24; the context is at 0 in all.
#[inline(always)]
fn identify(subject: Subject, counters: *mut ObjectCounters, object_kind: u32, address: u64) {
    let at = |field: u64| address.wrapping_add(field);
    // SAFETY: a live map value; others who make the same object write the same.
    unsafe {
        (*counters).context = word(address).unwrap_or(0);
        if object_kind == kind::QP {
            (*counters).queues =
                [word(at(24)).unwrap_or(0), word(at(32)).unwrap_or(0), word(at(40)).unwrap_or(0)];
            (*counters).number = half(at(52)).unwrap_or(0);
            (*counters).qp_type = half(at(60)).unwrap_or(0);
            let [send_cq, receive_cq, srq] = (*counters).queues;
            senders::sends(subject, send_cq, (*counters).number);
            if srq != 0 {
                senders::receives(subject, receive_cq);
            }
            if let Some(granted) = MADE.get(&made(subject, address)) {
                (*counters).granted = *granted;
            }
        } else {
            (*counters).number = half(at(24)).unwrap_or(0);
        }
    }
}

#[inline(always)]
fn made(subject: Subject, address: u64) -> MadeKey {
    MadeKey { start_ns: subject.start_ns, address, tgid: subject.tgid(), zero: 0 }
}

/// A queue pair was made, with these attributes.
#[inline(always)]
pub fn qp_made(subject: Subject, address: u64, granted: Granted) {
    if NOTE_MADE.load() != 0 {
        let _ = MADE.insert(&made(subject, address), &granted, 0);
    }
}

/// Adds a latency to the histogram of its class.
#[inline(always)]
pub fn latency(subject: Subject, class: u16, ns: u64) {
    let bucket = histogram::bucket(ns);
    let last = subject.tgid() as u64 | (class as u64) << 32 | (bucket as u64) << 48;
    // SAFETY: see `object_key`.
    let key: LatencyKey = unsafe { transmute([subject.start_ns, last]) };
    add_at(&LATENCIES, &key, 1);
}

/// Adds to an entry of a table, which is made at first use.
#[inline(always)]
fn add_at<K>(table: &HashMap<K, u64>, key: &K, n: u64) {
    if let Some(found) = table.get_ptr_mut(key) {
        return count::add(found, n);
    }
    // Two threads may come here at once: the second insertion fails and finds the first one's entry.
    let _ = table.insert(key, &0, BPF_NOEXIST as u64);
    match table.get_ptr_mut(key) {
        Some(found) => count::add(found, n),
        None => count::lose(Loss::Uncounted),
    }
}

/// An object is about to be destroyed: its counters step aside, so that the next object at its address has its own.
#[inline(always)]
pub fn object_ends(subject: Subject, object_kind: u32, address: u64) {
    let mut by = source::TAP;
    while by <= source::FUNCTION {
        let mut key = object_key(subject, object_kind, address, by);
        if let Some(found) = DATA_PATH.get_ptr_mut(&key) {
            let living = key;
            if object_kind == kind::QP {
                // SAFETY: a live map value.
                let (number, send_cq) = unsafe { ((*found).number, (*found).queues[0]) };
                senders::ends(subject, send_cq, number);
                under_way::ends(subject, number, found);
            }
            // SAFETY: the helper has no preconditions; live map values.
            let moved = unsafe {
                let now = bpf_ktime_get_ns();
                if let Some(place) = hot::give_up(found) {
                    // Kept first: who finds the entry among those that have ended looks for it there.
                    key.ended_ns = now | AT_PLACE;
                    if DATA_PATH.insert(&key, &(*place).counters, 0).is_err() {
                        count::lose(Loss::Uncounted);
                    }
                    hot::free(place);
                }
                key.ended_ns = now & !AT_PLACE;
                DATA_PATH.insert(&key, &*found, 0)
            };
            if moved.is_ok() {
                let _ = DATA_PATH.remove(&living);
            }
        }
        by += 1;
    }
    if object_kind == kind::QP {
        let _ = MADE.remove(&made(subject, address));
    } else if object_kind == kind::CQ {
        senders::queue_ends(subject, address);
    }
}

/// A completion queue was armed, or polled.
#[inline(always)]
pub fn armed(counters: *mut ObjectCounters, is: bool) {
    // SAFETY: a live map value.
    unsafe { (*counters).last[ARMED] = is as u64 };
}

/// A program was woken by an event of a completion queue.
#[inline(always)]
pub fn event_came(subject: Subject, address: u64) {
    let mut by = source::TAP;
    while by <= source::FUNCTION {
        if let Some(counters) = DATA_PATH.get_ptr_mut(&object_key(subject, kind::CQ, address, by)) {
            // SAFETY: a live map value.
            if unsafe { (*counters).last[ARMED] } != 0 {
                armed(counters, false);
                add_detail(counters, detail::BLIND_EVENTS, 1);
            }
        }
        by += 1;
    }
}

/// Adds to a counter.
#[inline(always)]
pub fn add(counters: *mut ObjectCounters, place: usize, n: u64) {
    if n != 0 && place < COUNTERS {
        // SAFETY: within the map value.
        count::add(unsafe { (&raw mut (*counters).counters).cast::<u64>().add(place) }, n);
    }
}

/// Sums over sends.
pub struct Sends {
    pub signalled: u64,
    pub inline: u64,
    pub bytes: u64,
    /// Entries of their lists beyond one for each ([`ObjectCounters::counts`]).
    pub more_sges: u64,
}

/// Adds sums over sends so many times; -1 takes them back.
#[inline(always)]
pub fn add_sends(counters: *mut ObjectCounters, sums: Sends, sign: u64) {
    add(counters, qp::SIGNALLED, sums.signalled.wrapping_mul(sign));
    add(counters, qp::INLINE, sums.inline.wrapping_mul(sign));
    add(counters, qp::BYTES, sums.bytes.wrapping_mul(sign));
    add(counters, qp::SGES, sums.more_sges.wrapping_mul(sign));
}

/// Adds to a [`detail`].
#[inline(always)]
pub fn add_detail(counters: *mut ObjectCounters, place: usize, n: u64) {
    if n != 0 && place < detail::COUNT {
        // SAFETY: within the map value.
        count::add(unsafe { (&raw mut (*counters).details).cast::<u64>().add(place) }, n);
    }
}

/// Adds to a [`detail`] that is approximate anyhow where several threads post at once: then one of two may be lost, and
/// no atomic addition is needed.
#[inline(always)]
pub fn add_loosely(counters: *mut ObjectCounters, place: usize, n: u64) {
    if n != 0 && place < detail::COUNT {
        // SAFETY: within the map value.
        unsafe {
            let word = (&raw mut (*counters).details).cast::<u64>().add(place);
            *word = (*word).wrapping_add(n);
        }
    }
}

/// Notes that a call stands for `weight`, itself included.
#[inline(always)]
pub fn stands_for(counters: *mut ObjectCounters, weight: u64) {
    add_detail(counters, detail::UNSEEN_CALLS, weight.wrapping_sub(1));
}

/// Notes that a call with `n` work requests or completion entries was drawn by chance to stand for `weight`.
#[inline(always)]
pub fn drawn(counters: *mut ObjectCounters, weight: u64, n: u64) {
    if weight > 1 {
        stands_for(counters, weight);
        let variance = weight.wrapping_mul(weight - 1);
        add_detail(counters, detail::CALL_VARIANCE, variance);
        add_detail(counters, detail::VARIANCE, variance.wrapping_mul(n).wrapping_mul(n));
    }
}

/// A call in a slice of time: in another slice than the one before, nothing is known of what went before.
#[inline(always)]
pub fn in_slice(counters: *mut ObjectCounters, number: u32) {
    // SAFETY: a live map value.
    unsafe {
        if (*counters).slice != number {
            (*counters).slice = number;
            (*counters).counters[qp::UNSIGNALLED_RUN] = 0;
            (*counters).last = [0; 4];
        }
    }
}

/// Adds work requests of an opcode: they are in no other count of all ([`ObjectCounters::counts`]).
#[inline(always)]
pub fn add_opcode(counters: *mut ObjectCounters, opcode: u64, n: u64) {
    let place = bounded::<15>(opcode);
    // SAFETY: within the map value.
    count::add(unsafe { (&raw mut (*counters).counters).cast::<u64>().add(qp::OPCODES).add(place) }, n);
}

/// Adds to the work requests of a size.
#[inline(always)]
pub fn add_size(counters: *mut ObjectCounters, bucket: usize, n: u64) {
    if n != 0 && bucket < SIZES {
        // SAFETY: within the map value.
        count::add(unsafe { (&raw mut (*counters).sizes).cast::<u64>().add(bucket) }, n);
    }
}

/// Notes which thread posts or polls. Not atomic: of two that post at the same moment one may go unnoticed until its next post.
#[inline(always)]
pub fn note_thread(counters: *mut ObjectCounters, subject: Subject) {
    // SAFETY: a live map value.
    unsafe {
        if (*counters).last_tid != subject.tid() {
            (*counters).details[detail::THREAD_CHANGES] += ((*counters).last_tid != 0) as u64;
            (*counters).last_tid = subject.tid();
            (*counters).details[detail::THREADS] |= 1 << (subject.tid() & 63);
        }
    }
}

/// The current thread's memory; `None` when there is none for it.
#[inline(always)]
pub fn thread(subject: Subject, make: bool) -> Option<*mut Thread> {
    let found = THREADS.get_ptr_mut(&subject.pid_tgid);
    if found.is_some() || !make {
        return found;
    }
    if let Some(new) = NEW_THREAD.get(0) {
        let _ = THREADS.insert(&subject.pid_tgid, new, BPF_NOEXIST as u64);
    }
    THREADS.get_ptr_mut(&subject.pid_tgid)
}

/// A thread ends.
#[inline(always)]
pub fn thread_ends(pid_tgid: u64) {
    let _ = THREADS.remove(&pid_tgid);
    gap::thread_ends(pid_tgid);
}
