//! How long after a poll that found completion entries a thread posts again.
//!
//! The time of its last find is a thread's own: at a place of its own where it has one, so that a hit finds it without a
//! search, else in its memory.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use probe_common::counters::CQE_TO_POST;

use crate::data::{self, Thread};
use crate::hot::take;
use crate::subject::Subject;

/// Places of threads: 64 KiB.
const PLACES: u64 = 4096;

/// By thread id.
#[map]
static HOT_THREADS: Array<Pace> = Array::with_max_entries(PLACES as u32, 0);

/// In place of a time: the posts of the thread are not all seen.
const NOT_FOLLOWED: u64 = u64::MAX;

/// A thread's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pace {
    /// Whose it is; 0 for nobody.
    pid_tgid: u64,
    /// When it last found completion entries, if it has not posted since.
    reaped_ns: u64,
}

/// The place of the current thread; `None` where it has none.
#[inline(always)]
pub fn place(subject: Subject) -> Option<*mut Pace> {
    let place = HOT_THREADS.get_ptr_mut(subject.tid() & (PLACES as u32 - 1))?;
    // SAFETY: a live map value.
    (unsafe { (*place).pid_tgid } == subject.pid_tgid).then_some(place)
}

/// Gives the thread a place, if there is one for it.
#[inline(always)]
fn keep(subject: Subject, thread: *mut Thread) {
    let Some(place) = HOT_THREADS.get_ptr_mut(subject.tid() & (PLACES as u32 - 1)) else { return };
    // SAFETY: a live map value, and this thread's own memory.
    unsafe {
        if (*place).pid_tgid == 0 && take(&raw mut (*place).pid_tgid, subject.pid_tgid) {
            (*place).reaped_ns = (*thread).reaped_ns;
        }
    }
}

/// A thread ends.
#[inline(always)]
pub fn thread_ends(pid_tgid: u64) {
    if let Some(place) = place(Subject { pid_tgid, start_ns: 0 }) {
        // SAFETY: a live map value.
        unsafe { (&raw mut (*place).pid_tgid).write_volatile(0) };
    }
}

#[inline(always)]
fn reaped_ns(subject: Subject, thread: *mut Thread) -> u64 {
    // SAFETY: a live map value, and this thread's own memory.
    unsafe {
        match place(subject) {
            Some(place) => (*place).reaped_ns,
            None => (*thread).reaped_ns,
        }
    }
}

#[inline(always)]
fn set(subject: Subject, thread: *mut Thread, reaped_ns: u64) {
    // SAFETY: a live map value, and this thread's own memory.
    unsafe {
        match place(subject) {
            Some(place) => (*place).reaped_ns = reaped_ns,
            None => (*thread).reaped_ns = reaped_ns,
        }
    }
}

/// The thread has found completion entries; what comes next is the next post only where `every` one is seen.
#[inline(always)]
pub fn found(subject: Subject, thread: *mut Thread, now: u64, every: bool) {
    if reaped_ns(subject, thread) != NOT_FOLLOWED {
        set(subject, thread, if every { now } else { 0 });
    }
}

/// A post of which the kernel's memory of the thread says more.
#[derive(Clone, Copy)]
pub struct Post {
    /// Every post is seen: only then a gap can be told.
    pub every: bool,
    /// It was told as one of those with signalled requests.
    pub signalled: bool,
    /// It makes completion entries.
    pub makes_entries: bool,
}

impl Post {
    /// The time of the post, or 0 where nobody needs it; tells how long after the thread's last completion entries it
    /// comes.
    #[inline(always)]
    pub fn at(self, subject: Subject, thread: *mut Thread) -> u64 {
        keep(subject, thread);
        let (now, reaped_ns) = self.after(subject, reaped_ns(subject, thread));
        set(subject, thread, reaped_ns);
        now
    }

    /// The same of a thread that has a place.
    #[inline(always)]
    pub fn at_place(self, subject: Subject, place: *mut Pace) -> u64 {
        // SAFETY: a live map value, this thread's own.
        unsafe {
            let (now, reaped_ns) = self.after(subject, (*place).reaped_ns);
            (*place).reaped_ns = reaped_ns;
            now
        }
    }

    #[inline(always)]
    fn after(self, subject: Subject, reaped_ns: u64) -> (u64, u64) {
        if !self.every {
            return (0, NOT_FOLLOWED);
        }
        let is_followed = reaped_ns != NOT_FOLLOWED;
        let has_reaped = reaped_ns != 0 && is_followed;
        // Of posts that are told at another rate, it is not known whether there were some.
        let stays = if !is_followed && self.signalled { NOT_FOLLOWED } else { 0 };
        if !self.makes_entries && !has_reaped {
            return (0, stays);
        }
        // SAFETY: the helper has no preconditions.
        let now = unsafe { bpf_ktime_get_ns() };
        if has_reaped {
            data::latency(subject, CQE_TO_POST, now.wrapping_sub(reaped_ns));
        }
        (now, stays)
    }
}
