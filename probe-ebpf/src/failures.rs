//! What failed, and the first request of each kind of failure.
//!
//! The first is the one that tells: after it a queue pair answers everything with an error, and a program that is
//! refused asks again. It is looked for once; those that come after it are counted.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use aya_ebpf::programs::RetProbeContext;
use probe_common::failures::{Failed, FailureKey, Request, known, what};
use probe_common::site::{MOST_SGES, MOST_SHOWN};
use probe_common::under_way::Class;
use probe_common::verbs::{RecvWr, SendWr, Sge, WrStart, is_atomic};
use probe_common::wire::Loss;

use crate::data::{self, Thread};
use crate::subject::Subject;
use crate::under_way;
use crate::user::{clear, half, read, word};
use crate::{arch, callers, count};

/// Failed posts and completion entries.
#[map]
static FAILURES: HashMap<FailureKey, Failed> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// `IBV_SEND_INLINE`.
const INLINE: u32 = 1 << 3;

/// A kind of failure, and how many this one stands for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Kind {
    /// Who tells, one of [`probe_common::counters::source`].
    pub by: u16,
    /// QP number, or the handle of a shared receive queue.
    pub number: u32,
    /// One of [`what`].
    pub what: u32,
    /// errno, or status.
    pub code: u32,
    pub weight: u64,
}

impl Kind {
    #[inline(always)]
    fn key(self, subject: Subject) -> FailureKey {
        FailureKey {
            start_ns: subject.start_ns,
            tgid: subject.tgid(),
            number: self.number,
            what: self.what | (self.by as u32) << 16,
            code: self.code,
        }
    }
}

/// Counts a failure where one of its kind is known.
#[inline(always)]
fn again(key: &FailureKey, weight: u64) -> bool {
    let Some(found) = FAILURES.get_ptr_mut(key) else { return false };
    // SAFETY: a live map value.
    count::add(unsafe { &raw mut (*found).count }, weight);
    true
}

/// Keeps the first failure of a kind. Two threads may come here at once: one of them is the first.
#[inline(always)]
fn first(key: &FailureKey, thread: *mut Thread, weight: u64) {
    // SAFETY: this thread's own memory.
    let inserted = unsafe {
        (*thread).failed.count = weight;
        FAILURES.insert(key, &(*thread).failed, BPF_NOEXIST as u64)
    };
    if inserted.is_err() && !again(key, weight) {
        count::lose(Loss::Uncounted);
    }
}

/// This thread's room for a request that failed, empty.
#[inline(always)]
fn room(thread: *mut Thread) -> *mut Request {
    // SAFETY: this thread's own memory.
    unsafe {
        clear::<{ size_of::<Failed>() / 8 }>((&raw mut (*thread).failed).cast());
        &raw mut (*thread).failed.first
    }
}

/// A completion entry with an error.
#[derive(Clone, Copy)]
pub struct Completion {
    pub wr_id: u64,
    pub vendor_err: u32,
    /// When it was found.
    pub now: u64,
}

/// Counts a completion entry with an error. The number of its queue pair is 0 where that is not known.
#[inline(always)]
pub fn completed(subject: Subject, thread: *mut Thread, kind: Kind, entry: Completion) {
    // SAFETY: this thread's own memory.
    unsafe { (*thread).completion = (kind, entry) };
    completion_failed(subject.pid_tgid, subject.start_ns);
}

/// Counts the one in the thread's memory, verified by itself (see the crate). The memory is looked up again: Linux 6.1 lets
/// a table take in what comes from a table, not what an argument points to.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn completion_failed(pid_tgid: u64, start_ns: u64) -> u32 {
    let subject = Subject { pid_tgid, start_ns };
    let Some(thread) = data::thread(subject, false) else { return 0 };
    // SAFETY: this thread's own memory.
    let (kind, entry) = unsafe { (*thread).completion };
    let key = kind.key(subject);
    let every = kind.weight == 1 && kind.number != 0;
    let ring = if every { under_way::of(subject, kind.number) } else { None };
    // SAFETY: a live map value. What another place notes is told there.
    let ring = ring.filter(|ring| unsafe { (**ring).by } == kind.by as u64);
    if !again(&key, kind.weight) {
        let request = room(thread);
        // SAFETY: this thread's own memory, and a live map value.
        unsafe {
            (*request).t_ns = entry.now;
            (*request).wr_id = entry.wr_id;
            (*request).vendor_err = entry.vendor_err;
            match ring {
                Some(ring) => under_way::describe(ring, &raw mut (*thread).sought, request),
                None if kind.weight != 1 => (*request).known = known::SAMPLED,
                None if kind.number == 0 => (*request).known = known::NO_QUEUE,
                None => (*request).known = known::UNSEEN,
            }
        }
        first(&key, thread, kind.weight);
    }
    if let Some(ring) = ring {
        under_way::failed(ring, entry.wr_id);
    }
    0
}

/// A post that was refused.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Refusal {
    pub kind: Kind,
    /// Address of the first request that was not posted; 0 where it is not known.
    pub at: u64,
    /// Address of the first of the call, where that is known, to count those before it.
    pub chain: u64,
    /// How many were posted, where that is known.
    pub posted: u64,
    /// How many were not.
    pub unposted: u64,
    /// Who called, where that is known.
    pub caller: Caller,
}

/// Who called: see [`callers::walk`]. Zeroes for nobody known.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Caller {
    pub return_address: u64,
    pub frame_pointer: u64,
    pub sp: u64,
}

impl Caller {
    /// At a site of ours the callers are functions of the library's own.
    pub const UNKNOWN: Self = Self { return_address: 0, frame_pointer: 0, sp: 0 };

    /// At the return of a probed function.
    #[inline(always)]
    pub fn of(ctx: &RetProbeContext) -> Self {
        Self {
            return_address: arch::instruction_pointer(ctx.regs),
            frame_pointer: arch::frame_pointer(ctx.regs),
            sp: arch::stack_pointer(ctx.regs),
        }
    }
}

/// Counts a refused post.
#[inline(always)]
pub fn refused(subject: Subject, thread: Option<*mut Thread>, refusal: Refusal) {
    let Some(thread) = thread else {
        count::lose(Loss::Uncounted);
        return;
    };
    // SAFETY: this thread's own memory.
    unsafe { (*thread).refusal = refusal };
    post_refused(subject.pid_tgid, subject.start_ns);
}

/// Counts the one in the thread's memory; see [`completion_failed`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn post_refused(pid_tgid: u64, start_ns: u64) -> u32 {
    let subject = Subject { pid_tgid, start_ns };
    let Some(thread) = data::thread(subject, false) else { return 0 };
    // SAFETY: this thread's own memory.
    let refusal = unsafe { &(*thread).refusal };
    let kind = refusal.kind;
    let key = kind.key(subject);
    if again(&key, kind.weight) {
        return 0;
    }
    let request = room(thread);
    // SAFETY: the helper has no preconditions; this thread's own memory; callbacks get pointers to what outlives them.
    unsafe {
        (*request).t_ns = bpf_ktime_get_ns();
        (*request).before = refusal.posted;
        (*request).outstanding = refusal.unposted;
        if refusal.chain != 0 && refusal.at != 0 {
            // A 0 that the verifier does not know, as in the search of a ring.
            let none = (*request).bytes;
            let mut walk = Sought { next: refusal.chain, at: refusal.at, before: none };
            bpf_loop(MOST_SHOWN as u32, reach as *mut c_void, (&raw mut walk).cast::<c_void>(), 0);
            (*request).before = walk.before;
        }
        let mut list = List { at: 0, left: 0, bytes: 0 };
        if kind.what == what::POST {
            if let Some(wr) = read::<WrStart>(refusal.at) {
                (*request).known = known::EXACTLY;
                (*request).wr_id = wr.wr_id;
                (*request).remote_addr = wr.remote_addr;
                (*request).rkey = if is_atomic((wr.opcode & 15) as u64) != 0 {
                    half(refusal.at.wrapping_add(SendWr::ATOMIC_RKEY)).unwrap_or(0)
                } else {
                    wr.rkey
                };
                let inline = (wr.send_flags / INLINE & 1) * Class::INLINE as u32;
                (*request).class = wr.opcode & 15 | inline;
                (*request).sges = wr.num_sge;
                (list.at, list.left) = (wr.sg_list, wr.num_sge as u64);
            }
        } else if let Some(wr) = read::<RecvWr>(refusal.at) {
            (*request).known = known::EXACTLY;
            (*request).wr_id = wr.wr_id;
            (*request).sges = wr.num_sge;
            (list.at, list.left) = (wr.sg_list, wr.num_sge as u64);
        }
        if list.left != 0
            && let Some(sge) = read::<Sge>(list.at)
        {
            (*request).addr = sge.addr;
            (*request).lkey = sge.lkey;
            bpf_loop(MOST_SGES as u32, sum as *mut c_void, (&raw mut list).cast::<c_void>(), 0);
            (*request).bytes = list.bytes;
        }
        let Caller { return_address, frame_pointer, sp } = refusal.caller;
        if return_address != 0 {
            callers::walk(&mut (*request).stack, return_address, frame_pointer, sp);
        }
    }
    first(&key, thread, kind.weight);
    0
}

/// A request that is looked for in its chain.
struct Sought {
    next: u64,
    at: u64,
    before: u64,
}

extern "C" fn reach(_index: u32, walk: *mut Sought) -> i64 {
    // SAFETY: what `refused` passed to bpf_loop.
    let walk = unsafe { &mut *walk };
    if walk.next == walk.at {
        return 1;
    }
    // `next` stands behind the number of every work request.
    let Some(next) = word(walk.next.wrapping_add(8)) else { return 1 };
    walk.next = next;
    walk.before += 1;
    0
}

/// A list being added up.
struct List {
    at: u64,
    left: u64,
    bytes: u64,
}

extern "C" fn sum(_index: u32, list: *mut List) -> i64 {
    // SAFETY: what `refused` passed to bpf_loop.
    let list = unsafe { &mut *list };
    if list.left == 0 {
        return 1;
    }
    let Some(sge) = read::<Sge>(list.at) else { return 1 };
    list.bytes = list.bytes.wrapping_add(sge.length as u64);
    list.at = list.at.wrapping_add(16);
    list.left -= 1;
    0
}
