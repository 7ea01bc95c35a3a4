//! The signalled work requests of each queue pair that are under way, in the order of their posts: what tells the
//! latency of each when its completion entry is reaped.

use core::ffi::c_void;
use core::mem::transmute;

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use probe_common::counters::{ObjectCounters, detail, qp};
use probe_common::failures::{Request, known};
use probe_common::under_way::{Class, RING, Ring, RingKey, UnderWay};

use crate::bounds::bounded;
use crate::data;
use crate::subject::Subject;

/// Work requests under way, by queue pair.
#[map]
static RINGS: HashMap<RingKey, Ring> = HashMap::with_max_entries(4_096, BPF_F_NO_PREALLOC);

/// What a new entry of [`RINGS`] begins as; never written.
#[map]
static NEW_RING: Array<Ring> = Array::with_max_entries(1, 0);

/// Where work requests are noted that are not remembered; never read. It is one of [`RINGS`]: two kinds of tables would
/// double the verifier's work on all that comes behind.
const NOBODY: RingKey = RingKey { start_ns: 0, tgid: 0, number: 0 };

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

/// Nobody's: see [`NOBODY`].
#[inline(always)]
fn nobodys() -> Option<*mut Ring> {
    if let Some(found) = RINGS.get_ptr_mut(&NOBODY) {
        return Some(found);
    }
    let _ = RINGS.insert(&NOBODY, NEW_RING.get(0)?, BPF_NOEXIST as u64);
    RINGS.get_ptr_mut(&NOBODY)
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
    if weight != 1 {
        // Where not every one is seen, none can be matched with its completion entry; what is remembered gets stale. Those
        // without a completion entry of their own change nothing.
        if signalled && let Some(stale) = RINGS.get_ptr_mut(&key) {
            // SAFETY: a live map value.
            unsafe {
                if (*stale).by == by as u64 {
                    forget(stale);
                }
            }
        }
        return nobodys();
    }
    let found = RINGS.get_ptr_mut(&key);
    if let Some(ring) = found {
        // SAFETY: a live map value.
        let known = unsafe { (*ring).by };
        if known == by as u64 {
            return found;
        }
        if known < by as u64 {
            // Noted already, nearer to the program.
            return nobodys();
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
    nobodys()
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

/// Remote key, and key of the first buffer, in a word.
#[inline(always)]
pub fn keys(rkey: u32, lkey: u32) -> u64 {
    rkey as u64 | (lkey as u64) << 32
}

/// Notes a signalled work request that is posted; `write` writes what it itself says, a word at a time: all at once would
/// have to lie on the stack.
///
/// # Safety
/// `ring` is a live map value.
#[inline(always)]
pub unsafe fn note(ring: *mut Ring, now: u64, bytes: u64, write: impl FnOnce(&mut UnderWay)) {
    // SAFETY: as promised.
    unsafe {
        let (head, posted) = ((*ring).head, (*ring).posted.wrapping_add(1));
        let entry = place(ring, head);
        entry.t_ns = now;
        entry.posted_bytes = posted & 0xffff_ffff | bytes << 32;
        (*ring).posted = posted;
        (*ring).head = head.wrapping_add(1);
        write(entry);
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
        let building = &batch.building;
        let entry = place(ring, (*ring).head.wrapping_add(batch.signalled));
        let posted = (*ring).posted.wrapping_add(batch.entries).wrapping_add(1);
        entry.wr_id = building.wr_id;
        entry.posted_bytes = posted & 0xffff_ffff | building.bytes << 32;
        entry.remote_addr = building.remote_addr;
        entry.keys = building.keys;
        entry.class_addr = class | building.addr << 16;
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
        (*ring).completed = entry.posted((*ring).posted);
        let class = entry.class_addr & Class::OF_LATENCY;
        data::latency(subject, class as u16, now.wrapping_sub(entry.t_ns));
    }
}

/// The request in turn failed, if it has that number: it is under way no longer.
#[inline(always)]
pub fn failed(ring: *mut Ring, wr_id: u64) {
    // SAFETY: a live map value.
    unsafe {
        let tail = (*ring).tail;
        let entry = place(ring, tail);
        if tail != (*ring).head && entry.wr_id == wr_id {
            (*ring).tail = tail.wrapping_add(1);
            (*ring).completed = entry.posted((*ring).posted);
        }
    }
}

/// Tells what is known of the request of a completion entry with an error; `request` has its number.
///
/// # Safety
/// All are live map values.
#[inline(always)]
pub unsafe fn describe(ring: *mut Ring, sought: *mut Sought, request: *mut Request) {
    // SAFETY: as promised; the callback gets a pointer to the context, which outlives the call.
    unsafe {
        let (head, tail) = ((*ring).head, (*ring).tail);
        if head.wrapping_sub(tail) > RING as u64 {
            (*request).known = known::FORGOTTEN;
            return;
        }
        (*sought).wr_id = (*request).wr_id;
        (*sought).at = head;
        (*sought).left = head.wrapping_sub(tail);
        (*sought).place = tail;
        (*sought).alike = 0;
        let mut context = Search { ring: ring.cast(), sought: sought.cast() };
        bpf_loop(RING as u32, seek as *mut c_void, (&raw mut context).cast::<c_void>(), 0);
        // Unsignalled ones that were posted before the one in turn.
        let (posted, in_step) = ((*ring).posted, (*ring).in_step & 1);
        let outstanding = posted.wrapping_sub((*ring).completed).wrapping_mul(in_step);
        (*request).outstanding = outstanding;
        let mut before = outstanding;
        if head != tail {
            let in_turn = place(ring, tail).posted(posted);
            before = in_turn.wrapping_sub((*ring).completed).wrapping_sub(1).wrapping_mul(in_step);
        }
        let alike = (*sought).alike;
        if alike == 0 && before == 0 {
            (*request).known = known::UNSEEN;
            return;
        }
        (*request).before = before;
        (*request).known = known::BEFORE;
        if alike != 0 {
            // A program that gives no number twice leaves no doubt.
            let one_before = place(ring, tail.wrapping_sub(1));
            let is_number = alike == 1 && (tail == 0 || one_before.wr_id != (*request).wr_id);
            let is_in_turn = (*sought).place == tail && in_step != 0 && before == 0;
            (*request).known = if is_number || is_in_turn { known::EXACTLY } else { known::BY_NUMBER };
        }
        if head != tail {
            let entry = place(ring, (*sought).place);
            (*request).next_wr_id = entry.wr_id;
            (*request).posted_ns = entry.t_ns;
            (*request).remote_addr = entry.remote_addr;
            (*request).addr = entry.addr();
            (*request).bytes = entry.posted_bytes >> 32;
            (*request).rkey = entry.keys as u32;
            (*request).lkey = (entry.keys >> 32) as u32;
            (*request).class = entry.class() as u32;
        }
    }
}

/// A number that is looked for among the requests under way, the youngest first. In the thread's memory, as a walk is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sought {
    wr_id: u64,
    at: u64,
    left: u64,
    /// The oldest that has it, and how many have.
    place: u64,
    alike: u64,
}

/// What the search is given, without naming types; see the context of a walk.
struct Search {
    ring: *mut c_void,
    sought: *mut c_void,
}

extern "C" fn seek(_index: u32, context: *mut Search) -> i64 {
    // SAFETY: what `describe` passed to bpf_loop; live map values.
    unsafe {
        let sought = (*context).sought.cast::<Sought>();
        if (*sought).left == 0 {
            return 1;
        }
        let at = (*sought).at.wrapping_sub(1);
        (*sought).at = at;
        (*sought).left -= 1;
        if place((*context).ring.cast(), at).wr_id == (*sought).wr_id {
            (*sought).place = at;
            (*sought).alike += 1;
        }
        0
    }
}
