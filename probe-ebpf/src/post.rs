//! Posts: digested by a site of ours, or walked at the entry of a provider's function and corrected at its return.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::helpers::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_common::counters::{CQE_TO_POST, ObjectCounters, Ring, failure, kind, qp, source};
use probe_common::site::{Flags, Queue, Refused, Stream};
use probe_common::wire::hits;

use crate::data::{self, Awaited, Sge, Thread};
use crate::meter;
use crate::senders;
use crate::subject::Subject;
use crate::user::{clear, read, word};
use crate::walk::{self, Chain, Walk};

/// `…_posted(queue, n_wr, bytes, flags, n_sge, wr)`.
#[inline(always)]
pub fn site(ctx: &ProbeContext) {
    digest(ctx, false);
}

/// `…_post_failed(queue, n_wr, bytes, flags, n_sge, errno)`: what the digest before told too much.
#[inline(always)]
pub fn site_failed(ctx: &ProbeContext) {
    digest(ctx, true);
}

#[inline(always)]
fn digest(ctx: &ProbeContext, failed: bool) {
    let flags = Flags(ctx.arg::<u64>(3).unwrap_or(0));
    let weight = 1u64 << flags.exponent();
    let Some((subject, meter)) = meter::hit(Stream::of_post(flags.signalled()) as usize) else { return };
    count_digest(ctx, subject, flags, weight, failed);
    meter.end();
}

#[inline(always)]
fn count_digest(ctx: &ProbeContext, subject: Subject, flags: Flags, weight: u64, failed: bool) {
    let argument = |n: usize| ctx.arg::<u64>(n).unwrap_or(0);
    // SAFETY: the context is the kernel's own.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let shared = matches!(flags.queue(), Some(Queue::SharedReceive));
    let send = matches!(flags.queue(), Some(Queue::Send));
    let object = if shared { kind::SRQ } else { kind::QP };
    let Some(counters) = data::counters(subject, object, argument(0), cookie as u16) else { return };
    let (n, bytes, sges) = (argument(1), argument(2), argument(4));
    let factor = if failed { weight.wrapping_neg() } else { weight };
    let sign = |n: u64| n.wrapping_mul(factor);
    if failed {
        let what = if send {
            failure::POST
        } else if shared {
            failure::SHARED_RECEIVE
        } else {
            failure::RECEIVE
        };
        // SAFETY: a live map value.
        data::failed(
            subject,
            cookie as u16,
            unsafe { (*counters).number },
            what,
            Refused(argument(5)).errno(),
            weight,
        );
    } else {
        data::drawn(counters, weight, n);
    }
    if !send {
        note_receives(subject, counters, object);
        data::add(counters, if failed { qp::RECV_FAILED } else { qp::RECV_CALLS }, weight);
        data::add(counters, qp::RECV_WRS, sign(n));
        data::add(counters, qp::RECV_BYTES, sign(bytes));
        data::add(counters, qp::RECV_SGES, sign(sges.wrapping_sub(n)));
        return;
    }
    data::add(counters, if failed { qp::POST_FAILED } else { qp::POST_CALLS }, weight);
    data::add(counters, qp::BYTES, sign(bytes));
    data::add(counters, qp::SGES, sign(sges.wrapping_sub(n)));
    // What the digest of a failure packs into its flags is the whole call's where nothing is to be subtracted.
    if failed && n == 0 {
        return;
    }
    data::add(counters, qp::SIGNALLED, sign(flags.signalled()));
    data::add(counters, qp::INLINE, sign(flags.inline()));
    // With several opcodes in one chain the digest does not say how many there are of each.
    let opcodes = flags.opcodes();
    let one_kind = opcodes != 0 && opcodes & opcodes.wrapping_sub(1) == 0;
    if one_kind {
        data::add_opcode(counters, lowest_bit(opcodes), sign(n));
    }
    let mut by_opcode = if one_kind { n } else { 0 };
    if !failed {
        data::note_thread(counters, subject);
        let first = argument(5);
        let looks = if cookie >> 16 & 1 != 0 { first } else { 0 };
        let sends = Sends { subject, counters, by: cookie as u16, weight, n, signalled: flags.signalled() };
        by_opcode = by_opcode.wrapping_add(sends.follow(looks, !one_kind));
    } else {
        let first = Refused(argument(5)).wr();
        let chain = Chain { first, most: n, now: 0, sign: factor, by_opcode: !one_kind };
        if first != 0
            && let Some(thread) = data::thread(subject, true)
            && let Some(ring) = data::ring(subject, counters, cookie as u16, weight, true)
        {
            let walk = take_back(counters, thread, ring, &chain);
            walk.describe(counters, weight == 1);
            let (_, all) = walk.under_way();
            by_opcode = by_opcode.wrapping_add(if one_kind { 0 } else { all });
        }
    }
    data::add(counters, qp::WRS, sign(n.wrapping_sub(by_opcode)));
}

/// Sends that a digest tells of.
struct Sends {
    subject: Subject,
    counters: *mut ObjectCounters,
    /// Who tells.
    by: u16,
    /// The digest stands for so many.
    weight: u64,
    n: u64,
    signalled: u64,
}

impl Sends {
    /// Looks at their chain for what the digest does not tell, if `first` is not 0. Returns how many of them it counted by
    /// opcode, where that is wanted.
    #[inline(always)]
    fn follow(&self, first: u64, by_opcode: bool) -> u64 {
        let Self { subject, counters, by, weight, n, signalled } = *self;
        let every = weight == 1;
        if first != 0
            && let Some(thread) = data::thread(subject, true)
            && let Some(ring) = data::ring(subject, counters, by, weight, signalled != 0)
        {
            follow_gap(thread, every, signalled != 0);
            let now = if every { posts_at(subject, thread, makes_entries(counters, signalled)) } else { 0 };
            let chain = Chain { first, most: n, now, sign: weight, by_opcode };
            let walk = walk::over(counters, thread, ring, &chain);
            walk.describe(counters, every);
            data::add(counters, qp::CUT, walk.cut().wrapping_mul(weight));
            if every {
                walk::note_outstanding(counters, ring);
                walk.follow_run(counters);
            } else {
                forget_run(counters);
            }
            let (_, all) = walk.under_way();
            return if by_opcode { all } else { 0 };
        }
        if every {
            runs_at_least(counters, n, signalled);
        } else {
            forget_run(counters);
        }
        0
    }
}

/// Whether any of so many signalled work requests, by what the program asked for, makes a completion entry.
#[inline(always)]
fn makes_entries(counters: *mut ObjectCounters, signalled: u64) -> bool {
    // SAFETY: a live map value.
    signalled != 0 || unsafe { (*counters).granted.signal_all } != 0
}

/// A gap is from what a poll found to the next post: it can be told only where every post is seen.
#[inline(always)]
pub fn follow_gap(thread: *mut Thread, every: bool, signalled: bool) {
    // SAFETY: this thread's own memory.
    unsafe {
        if !every {
            (*thread).reaped_ns = data::NOT_FOLLOWED;
        } else if !signalled && (*thread).reaped_ns == data::NOT_FOLLOWED {
            (*thread).reaped_ns = 0;
        }
    }
}

/// Posts in between were not seen.
#[inline(always)]
fn forget_run(counters: *mut ObjectCounters) {
    // SAFETY: a live map value.
    unsafe { (*counters).counters[qp::UNSIGNALLED_RUN] = 0 };
}

/// The time of a post, or 0 where nobody needs it; tells how long after the thread's last completion entries it comes.
#[inline(always)]
pub fn posts_at(subject: Subject, thread: *mut Thread, makes_entries: bool) -> u64 {
    // SAFETY: the helper has no preconditions; this thread's own memory.
    unsafe {
        let reaped = (*thread).reaped_ns;
        let has_reaped = reaped != 0 && reaped != data::NOT_FOLLOWED;
        if !makes_entries && !has_reaped {
            return 0;
        }
        let now = bpf_ktime_get_ns();
        if has_reaped {
            (*thread).reaped_ns = 0;
            data::latency(subject, CQE_TO_POST, now.wrapping_sub(reaped));
        }
        now
    }
}

/// Follows the run of unsignalled work requests by their numbers alone: exact where all or none are signalled, or one
/// alone; else as long as the longest run must be at least.
#[inline(always)]
fn runs_at_least(counters: *mut ObjectCounters, n: u64, signalled: u64) {
    // SAFETY: a live map value; see `follow_run` of a walk.
    unsafe {
        let words = &mut (*counters).counters;
        let run = if signalled == 0 { words[qp::UNSIGNALLED_RUN].wrapping_add(n) } else { 0 };
        let parts = signalled.wrapping_add(1);
        // Divided only where there is something to be. None at all where the numbers make no sense: a division by 0 would
        // be a call that does not return.
        let longest = if parts <= 1 {
            run
        } else if n <= signalled {
            0
        } else {
            n / parts
        };
        words[qp::UNSIGNALLED_RUN] = run;
        if longest > words[qp::LONGEST_UNSIGNALLED] {
            words[qp::LONGEST_UNSIGNALLED] = longest;
        }
    }
}

/// Place of the only bit; this target has no instruction for it.
#[inline(always)]
fn lowest_bit(word: u16) -> u64 {
    let mut n = 0;
    if word & 0xff00 != 0 {
        n += 8;
    }
    if word & 0xf0f0 != 0 {
        n += 4;
    }
    if word & 0xcccc != 0 {
        n += 2;
    }
    if word & 0xaaaa != 0 {
        n += 1;
    }
    n
}

/// Entry of `post_send(qp, wr, bad_wr)`.
#[inline(always)]
pub fn send_enter(ctx: &ProbeContext) {
    let Some((subject, meter)) = meter::hit(hits::POSTS) else { return };
    if let Some((weight, slice)) = meter.post() {
        send_entered(ctx, subject, weight, slice);
    }
    meter.end();
}

#[inline(always)]
fn send_entered(ctx: &ProbeContext, subject: Subject, weight: u64, slice: u32) {
    let (object, wr) = (ctx.arg::<u64>(0).unwrap_or(0), ctx.arg::<u64>(1).unwrap_or(0));
    let Some(counters) = data::counters(subject, kind::QP, object, source::FUNCTION) else { return };
    data::in_slice(counters, slice);
    data::stands_for(counters, weight);
    data::add(counters, qp::POST_CALLS, weight);
    data::note_thread(counters, subject);
    let Some(thread) = data::thread(subject, true) else {
        data::add(counters, qp::CUT, 1);
        return;
    };
    let second = ctx.arg::<u64>(2).unwrap_or(0);
    // SAFETY: this thread's own memory.
    unsafe { (*thread).post = Awaited { object, first: wr, second, kind: kind::QP as u64, weight } };
    let Some(ring) = data::ring(subject, counters, source::FUNCTION, weight, true) else { return };
    let every = weight == 1;
    follow_gap(thread, every, false);
    let now = if every { posts_at(subject, thread, true) } else { 0 };
    let chain = Chain { first: wr, most: u64::MAX, now, sign: weight, by_opcode: true };
    let walk = walk::over(counters, thread, ring, &chain);
    if every {
        walk::note_outstanding(counters, ring);
    }
    walk.count(counters);
    walk.describe(counters, true);
    walk.follow_run(counters);
    data::add(counters, qp::CUT, walk.cut().wrapping_mul(weight));
}

/// Return of `post_send`: what was not posted is taken back.
#[inline(always)]
pub fn send_leave(ctx: &RetProbeContext) {
    let Some((subject, _)) = meter::hit(hits::POST_RETURNS) else { return };
    let Some((call, thread)) = awaited_post(subject) else { return };
    let result = ctx.ret::<u64>() as i32;
    if result == 0 {
        return;
    }
    let Some(counters) = data::counters(subject, kind::QP, call.object, source::FUNCTION) else { return };
    data::add(counters, qp::POST_FAILED, call.weight);
    // SAFETY: a live map value.
    let number = unsafe { (*counters).number };
    data::failed(subject, source::FUNCTION, number, failure::POST, result.unsigned_abs(), call.weight);
    let Some(ring) = data::ring(subject, counters, source::FUNCTION, call.weight, true) else { return };
    let back = call.weight.wrapping_neg();
    let chain = Chain { first: first_unposted(&call), most: u64::MAX, now: 0, sign: back, by_opcode: true };
    let walk = take_back(counters, thread, ring, &chain);
    walk.count(counters);
    walk.describe(counters, true);
}

/// Walks what was not posted, and takes it from what is under way.
#[inline(always)]
fn take_back(
    counters: *mut ObjectCounters,
    thread: *mut Thread,
    ring: *mut Ring,
    chain: &Chain,
) -> &'static mut Walk {
    let walk = walk::over(counters, thread, ring, chain);
    // What was not posted was noted twice by now.
    let (signalled, all) = walk.under_way();
    // SAFETY: a live map value.
    unsafe {
        (*ring).head = (*ring).head.wrapping_sub(signalled.wrapping_mul(2));
        (*ring).posted = (*ring).posted.wrapping_sub(all.wrapping_mul(2));
    }
    walk
}

/// What the current thread's post was about; once.
#[inline(always)]
fn awaited_post(subject: Subject) -> Option<(Awaited, *mut Thread)> {
    let thread = data::thread(subject, false)?;
    // SAFETY: this thread's own memory.
    let call = unsafe { (*thread).post };
    if call.object == 0 {
        return None;
    }
    // SAFETY: as above.
    unsafe { (*thread).post.object = 0 };
    Some((call, thread))
}

/// The first work request a failed post did not post: what the provider wrote to `bad_wr`, or the first one, where it
/// wrote nothing that could be one.
#[inline(always)]
fn first_unposted(call: &Awaited) -> u64 {
    match word(call.second) {
        Some(bad) if bad != 0 => bad,
        _ => call.first,
    }
}

/// Entry of `post_recv(qp, wr, bad_wr)` or `post_srq_recv(srq, wr, bad_wr)`: which, the cookie says.
#[inline(always)]
pub fn receive_enter(ctx: &ProbeContext) {
    let Some((subject, meter)) = meter::hit(hits::POSTS) else { return };
    if let Some((weight, slice)) = meter.post() {
        receive_entered(ctx, subject, weight, slice);
    }
    meter.end();
}

#[inline(always)]
fn receive_entered(ctx: &ProbeContext, subject: Subject, weight: u64, slice: u32) {
    let (object, first) = (ctx.arg::<u64>(0).unwrap_or(0), ctx.arg::<u64>(1).unwrap_or(0));
    // SAFETY: the context is the kernel's own.
    let object_kind = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let Some(counters) = data::counters(subject, object_kind as u32, object, source::FUNCTION) else {
        return;
    };
    data::in_slice(counters, slice);
    data::stands_for(counters, weight);
    note_receives(subject, counters, object_kind as u32);
    data::add(counters, qp::RECV_CALLS, weight);
    let second = ctx.arg::<u64>(2).unwrap_or(0);
    let Some(thread) = data::thread(subject, true) else {
        data::add(counters, qp::CUT, 1);
        return;
    };
    // SAFETY: this thread's own memory.
    unsafe { (*thread).post = Awaited { object, first, second, kind: object_kind, weight } };
    count_receives(counters, thread, first, weight, false);
}

/// Before the first receive of a queue pair counts: its completion queue for receives has some.
#[inline(always)]
fn note_receives(subject: Subject, counters: *mut ObjectCounters, object_kind: u32) {
    // SAFETY: a live map value.
    unsafe {
        if object_kind == kind::QP && (*counters).counters[qp::RECV_CALLS] == 0 {
            senders::receives(subject, (*counters).queues[1]);
        }
    }
}

/// Return of either: what was not posted is taken back.
#[inline(always)]
pub fn receive_leave(ctx: &RetProbeContext) {
    let Some((subject, _)) = meter::hit(hits::POST_RETURNS) else { return };
    let Some((call, thread)) = awaited_post(subject) else { return };
    let result = ctx.ret::<u64>() as i32;
    if result == 0 {
        return;
    }
    let object_kind = call.kind as u32;
    let Some(counters) = data::counters(subject, object_kind, call.object, source::FUNCTION) else {
        return;
    };
    data::add(counters, qp::RECV_FAILED, call.weight);
    let what = if object_kind == kind::SRQ { failure::SHARED_RECEIVE } else { failure::RECEIVE };
    // SAFETY: a live map value.
    let number = unsafe { (*counters).number };
    data::failed(subject, source::FUNCTION, number, what, result.unsigned_abs(), call.weight);
    count_receives(counters, thread, first_unposted(&call), call.weight, true);
}

/// Receives are posted in long chains when a program starts.
const MOST_RECEIVES: u32 = 2048;
/// Entries of a receive's list that are added up.
const MOST_SGES: u32 = 64;

/// Receives being counted. In the thread's memory, as a walk is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Receives {
    at: u64,
    wrs: u64,
    bytes: u64,
    sges: u64,
    cut: u64,
    list: u64,
    list_left: u64,
}

#[inline(always)]
fn count_receives(counters: *mut ObjectCounters, thread: *mut Thread, first: u64, weight: u64, back: bool) {
    // SAFETY: this thread's own memory, which outlives the program.
    let receives = unsafe {
        let receives = &mut (*thread).receives;
        clear::<{ size_of::<Receives>() / 8 }>((&raw mut *receives).cast());
        receives.at = first;
        let mut context = thread;
        bpf_loop(MOST_RECEIVES, receive as *mut c_void, (&raw mut context).cast::<c_void>(), 0);
        &mut (*thread).receives
    };
    if receives.at != 0 {
        receives.cut = 1;
    }
    let sign = if back { weight.wrapping_neg() } else { weight };
    data::add(counters, qp::RECV_WRS, receives.wrs.wrapping_mul(sign));
    data::add(counters, qp::RECV_BYTES, receives.bytes.wrapping_mul(sign));
    data::add(counters, qp::RECV_SGES, receives.sges.wrapping_sub(receives.wrs).wrapping_mul(sign));
    if !back {
        data::add(counters, qp::CUT, receives.cut.wrapping_mul(weight));
    }
}

extern "C" fn receive(_index: u32, thread: *mut *mut Thread) -> i64 {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct RecvWr {
        wr_id: u64,
        next: u64,
        sg_list: u64,
        num_sge: u32,
        zero: u32,
    }
    // SAFETY: what `count_receives` passed to bpf_loop.
    let thread = unsafe { *thread };
    // SAFETY: this thread's own memory.
    let receives = unsafe { &mut (*thread).receives };
    if receives.at == 0 {
        return 1;
    }
    let Some(wr) = read::<RecvWr>(receives.at) else {
        receives.cut = 1;
        receives.at = 0;
        return 1;
    };
    receives.wrs += 1;
    receives.sges += wr.num_sge as u64;
    if wr.num_sge == 1 {
        match read::<Sge>(wr.sg_list) {
            Some(sge) => receives.bytes += sge.length as u64,
            None => receives.cut = 1,
        }
    } else if wr.num_sge != 0 {
        receives.list = wr.sg_list;
        receives.list_left = wr.num_sge as u64;
        let mut context = thread;
        // SAFETY: the callback gets a pointer to the thread's memory, which outlives the call.
        unsafe {
            bpf_loop(MOST_SGES, receive_sge as *mut c_void, (&raw mut context).cast::<c_void>(), 0);
        }
        if receives.list_left != 0 {
            receives.cut = 1;
        }
    }
    receives.at = wr.next;
    0
}

extern "C" fn receive_sge(_index: u32, thread: *mut *mut Thread) -> i64 {
    // SAFETY: what `receive` passed to bpf_loop.
    let receives = unsafe { &mut (**thread).receives };
    if receives.list_left == 0 {
        return 1;
    }
    let Some(sge) = read::<Sge>(receives.list) else { return 1 };
    receives.bytes += sge.length as u64;
    receives.list = receives.list.wrapping_add(16);
    receives.list_left -= 1;
    0
}
