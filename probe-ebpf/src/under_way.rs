//! The signalled work requests of each queue pair that are under way, in the order of their posts: what tells the
//! latency of each when its completion entry is reaped.

use core::ffi::c_void;
use core::mem::transmute;

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use probe_common::counters::{ObjectCounters, RING, Ring, RingKey, UnderWay, detail, qp};

use crate::bounds::bounded;
use crate::data;
use crate::subject::Subject;

/// Work requests under way, by queue pair.
#[map]
static RINGS: HashMap<RingKey, Ring> = HashMap::with_max_entries(4_096, BPF_F_NO_PREALLOC);

/// What a new entry of [`RINGS`] begins as; never written.
#[map]
static NEW_RING: Array<Ring> = Array::with_max_entries(1, 0);

/// Where work requests are noted that are not remembered; never read.
#[map]
static NO_RING: Array<Ring> = Array::with_max_entries(1, 0);

/// The key of a queue pair's work requests under way, written word by word; see [`data::counters`].
#[inline(always)]
fn key(subject: Subject, number: u32) -> RingKey {
    // SAFETY: as long as the words, without padding; this target is little-endian.
    unsafe { transmute([subject.start_ns, subject.tgid() as u64 | (number as u64) << 32]) }
}

/// The work requests under way of a queue pair by its number, where there are any.
#[inline(always)]
pub fn of(subject: Subject, number: u32) -> Option<*mut Ring> {
    RINGS.get_ptr_mut(&key(subject, number))
}

/// The same of a queue pair whose posts are seen by `by`: `None` where nobody has noted any yet, or somebody else does.
#[inline(always)]
pub fn known(subject: Subject, counters: *const ObjectCounters, by: u16) -> Option<*mut Ring> {
    // SAFETY: live map values.
    unsafe {
        let ring = of(subject, (*counters).number)?;
        ((*ring).by == by as u64).then_some(ring)
    }
}

/// The work requests under way of a queue pair that posts, where every one is seen.
#[inline(always)]
pub fn ring(
    subject: Subject,
    counters: *mut ObjectCounters,
    by: u16,
    weight: u64,
    signalled: bool,
) -> Option<*mut Ring> {
    // SAFETY: a live map value.
    let number = unsafe { (*counters).number };
    let key = key(subject, number);
    if weight != 1 && !signalled {
        // It has no completion entry of its own.
        return NO_RING.get_ptr_mut(0);
    }
    let found = RINGS.get_ptr_mut(&key);
    if weight != 1 {
        // Where not every one is seen, none can be matched with its completion entry; what is remembered gets stale.
        if let Some(stale) = found {
            // SAFETY: a live map value.
            unsafe {
                if (*stale).by == by as u64 {
                    forget(stale);
                }
            }
        }
        return NO_RING.get_ptr_mut(0);
    }
    if let Some(ring) = found {
        // SAFETY: a live map value.
        let known = unsafe { (*ring).by };
        if known == by as u64 {
            return found;
        }
        if known < by as u64 {
            // Noted already, nearer to the program.
            return NO_RING.get_ptr_mut(0);
        }
        // SAFETY: as above. What was noted farther away is noted here from now on.
        unsafe {
            (*ring).by = by as u64;
            forget(ring);
        }
        return found;
    }
    if number != 0
        && let Some(new) = NEW_RING.get(0)
    {
        let _ = RINGS.insert(&key, new, BPF_NOEXIST as u64);
        if let Some(ring) = RINGS.get_ptr_mut(&key) {
            // SAFETY: live map values.
            unsafe {
                // A batch of the extended API counts as a call only when it is completed.
                let is_first = (*counters).counters[qp::POST_CALLS] <= 1;
                (*ring).in_step = ((*counters).granted.known != 0 && is_first) as u64;
                (*ring).by = by as u64;
            }
            return Some(ring);
        }
    }
    // With the table full, latencies of this queue pair are not told; its counts are.
    NO_RING.get_ptr_mut(0)
}

/// A queue pair is destroyed: its counters keep how many completion entries had no work request.
#[inline(always)]
pub fn ends(subject: Subject, number: u32, counters: *mut ObjectCounters) {
    let key = key(subject, number);
    if let Some(ring) = RINGS.get_ptr_mut(&key) {
        // SAFETY: live map values.
        unsafe { (*counters).details[detail::UNMATCHED] = (*ring).unmatched };
        let _ = RINGS.remove(&key);
    }
}

/// A place in a ring, by its number.
///
/// # Safety
/// `ring` is a live map value.
#[inline(always)]
pub unsafe fn place(ring: *mut Ring, number: u64) -> &'static mut UnderWay {
    // SAFETY: as promised, and within bounds.
    unsafe { &mut *(&raw mut (*ring).entries).cast::<UnderWay>().add(bounded::<{ RING as u64 - 1 }>(number)) }
}

/// What is remembered is under way no longer, or not known to be.
///
/// # Safety
/// `ring` is a live map value.
#[inline(always)]
pub unsafe fn forget(ring: *mut Ring) {
    // SAFETY: as promised.
    unsafe {
        (*ring).tail = (*ring).head;
        (*ring).in_step = 0;
    }
}

/// Notes a signalled work request that is posted.
///
/// # Safety
/// `ring` is a live map value.
#[inline(always)]
pub unsafe fn note(ring: *mut Ring, wr_id: u64, class: u64, now: u64) {
    // SAFETY: as promised.
    unsafe {
        let (head, posted) = ((*ring).head, (*ring).posted.wrapping_add(1));
        let entry = place(ring, head);
        entry.t_ns = now;
        entry.wr_id = wr_id;
        entry.posted = posted;
        entry.class = class;
        (*ring).posted = posted;
        (*ring).head = head.wrapping_add(1);
    }
}

/// Of what a call that failed was to post, so many signalled ones, and so many in all, were not posted. They are noted a
/// second time by now: they were walked again.
#[inline(always)]
pub fn take_back(ring: *mut Ring, signalled: u64, all: u64) {
    // SAFETY: a live map value.
    unsafe {
        (*ring).head = (*ring).head.wrapping_sub(signalled.wrapping_mul(2));
        (*ring).posted = (*ring).posted.wrapping_sub(all.wrapping_mul(2));
    }
}

/// Notes the signalled work request that a queue pair is building, behind the head: it is not posted yet.
#[inline(always)]
pub fn note_built(ring: *mut Ring, counters: *mut ObjectCounters, class: u64) {
    // SAFETY: live map values.
    unsafe {
        let batch = &(*counters).batch;
        let entry = place(ring, (*ring).head.wrapping_add(batch.signalled));
        entry.wr_id = batch.building.wr_id;
        entry.posted = (*ring).posted.wrapping_add(batch.entries).wrapping_add(1);
        entry.class = class;
    }
}

/// A batch is posted: what was noted of it behind the head is under way from now on.
#[inline(always)]
pub fn post_built(ring: *mut Ring, entries: u64, signalled: u64, now: u64) {
    // SAFETY: a live map value; the callback gets a pointer to `posted`, which outlives the call.
    unsafe {
        let head = (*ring).head;
        if signalled == 1 {
            place(ring, head).t_ns = now;
        } else if signalled != 0 {
            let mut posted = Posted { ring: ring.cast(), head, left: signalled, now };
            bpf_loop(RING as u32, stamp as *mut c_void, (&raw mut posted).cast::<c_void>(), 0);
        }
        (*ring).head = head.wrapping_add(signalled);
        (*ring).posted = (*ring).posted.wrapping_add(entries);
    }
}

/// Work requests that get the time of their post. The [`Ring`] is not named, as in the context of a walk.
struct Posted {
    ring: *mut c_void,
    head: u64,
    left: u64,
    now: u64,
}

/// The last of them first: of more than there is room for, only those are there.
extern "C" fn stamp(_index: u32, posted: *mut Posted) -> i64 {
    // SAFETY: what `post_built` passed to bpf_loop.
    let posted = unsafe { &mut *posted };
    if posted.left == 0 {
        return 1;
    }
    posted.left -= 1;
    // SAFETY: a live map value.
    unsafe { place(posted.ring.cast(), posted.head.wrapping_add(posted.left)).t_ns = posted.now };
    0
}

/// A batch that was posted is refused.
#[inline(always)]
pub fn take_back_built(ring: *mut Ring, entries: u64, signalled: u64) {
    // SAFETY: a live map value.
    unsafe {
        (*ring).head = (*ring).head.wrapping_sub(signalled);
        (*ring).posted = (*ring).posted.wrapping_sub(entries);
    }
    forget_overwritten(ring, signalled);
}

/// So many were noted behind the head, and not posted: where there was no room, those under way are no longer there.
#[inline(always)]
pub fn forget_overwritten(ring: *mut Ring, noted: u64) {
    // SAFETY: a live map value.
    unsafe {
        let (head, tail) = ((*ring).head, (*ring).tail);
        if head.wrapping_sub(tail).wrapping_add(noted) > RING as u64 {
            forget(ring);
        }
    }
}

/// Notes how many work requests are under way now.
#[inline(always)]
pub fn note_outstanding(counters: *mut ObjectCounters, ring: *mut Ring) {
    // SAFETY: live map values.
    unsafe {
        if (*ring).by == 0 {
            // Nobody's: what is noted there is not remembered.
            return;
        }
        let outstanding = (*ring).posted.wrapping_sub((*ring).completed);
        let most = &mut (*counters).details[detail::MOST_OUTSTANDING];
        if outstanding as i64 > *most as i64 {
            *most = outstanding;
        }
    }
}

/// A completion entry of a send was reaped: tells the latency of its work request, which is the oldest one.
#[inline(always)]
pub fn reaped(subject: Subject, by: u16, number: u32, wr_id: u64, now: u64) {
    let Some(ring) = of(subject, number) else { return };
    // SAFETY: a live map value.
    unsafe {
        if (*ring).by != by as u64 {
            return;
        }
        let (head, tail) = ((*ring).head, (*ring).tail);
        if tail == head {
            (*ring).unmatched += 1;
            // Nothing that was seen is under way: what comes from now on is.
            (*ring).in_step = 1;
            return;
        }
        let entry = place(ring, tail);
        if (*ring).in_step == 0 {
            // The entry may be that of a request posted before the probes were there. Programs that give all the same
            // number do not tell.
            let next = place(ring, tail + 1);
            if entry.wr_id != wr_id || head - tail > 1 && next.wr_id == wr_id {
                (*ring).unmatched += 1;
                (*ring).tail += (head - tail > RING as u64) as u64;
                return;
            }
            (*ring).in_step = 1;
        }
        // Overwritten, or not the one in turn: whoever is in turn now cannot be told before all are reaped.
        if head - tail > RING as u64 || entry.wr_id != wr_id {
            (*ring).unmatched += 1;
            (*ring).tail = if head - tail > RING as u64 { tail + 1 } else { head };
            return;
        }
        (*ring).tail = tail + 1;
        (*ring).completed = entry.posted;
        data::latency(subject, entry.class as u16, now.wrapping_sub(entry.t_ns));
    }
}
