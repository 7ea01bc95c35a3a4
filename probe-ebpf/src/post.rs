//! Posts: digested by a site of ours, or walked at the entry of a provider's function and corrected at its return.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_attach_cookie;
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_common::counters::{ObjectCounters, kind, qp, source};
use probe_common::failures::what;
use probe_common::site::{self, Flags, Queue, Refused, Stream};
use probe_common::under_way::Ring;
use probe_common::verbs::{RecvWr, Sge};
use probe_common::wire::hits;

use crate::addresses::is_zero;
use crate::alone::Alone;
use crate::data::{self, Awaited, Thread};
use crate::failures::{self, Caller, Refusal};
use crate::gap;
use crate::hot;
use crate::meter::{self, Meter};
use crate::senders;
use crate::subject::Subject;
use crate::under_way;
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

/// The same as [`site`] of a send queue that has a place, without a search for it; false where it has none, or more is to
/// be looked at than registers tell, and nothing was counted.
///
/// A function of its own: with what a walk has on the stack, there would be no room for this.
#[inline(never)]
pub fn hot_site(ctx: *mut c_void) -> bool {
    let ctx = &ProbeContext::new(ctx);
    let told = Told::by(ctx);
    if !matches!(told.flags.queue(), Some(Queue::Send)) {
        return false;
    }
    let by = told.flags.source();
    let Some(found) = hot::find(kind::QP, told.object, by) else { return false };
    if !found.walks {
        let meter = count_hot(&found, told);
        follow_digest(found.counters, told.n, told.flags.signalled(), told.weight());
        meter.end();
        return true;
    }
    if !told.flags.is_alone() {
        return false;
    }
    let (subject, counters, every) = (found.subject, found.counters, told.weight() == 1);
    let signalled = told.flags.signalled() != 0;
    let Some(pace) = gap::place(subject) else { return false };
    // Where not every one is seen, those without a completion entry of their own are nothing to the others.
    let mut ring = if every || signalled { under_way::known(subject, counters, by) } else { None };
    if every && ring.is_none() {
        return false;
    }
    let meter = count_hot(&found, told);
    let makes_entries = makes_entries(counters, told.flags.signalled());
    let now = gap::Post { every, signalled, makes_entries }.at_place(subject, pace);
    if !every {
        if let Some(ring) = ring {
            // SAFETY: a live map value.
            unsafe { under_way::forget(ring) };
        }
        ring = None;
    }
    Alone::by(ctx, told.flags, lowest_bit(told.flags.opcodes()), told.bytes).count(counters, ring, now);
    meter.end();
    true
}

/// Counts what a digest tells of a send queue that has a place.
#[inline(always)]
fn count_hot(found: &hot::Found, told: Told) -> Meter {
    let (counters, weight) = (found.counters, told.weight());
    let meter = found.hit(Stream::of_post(told.flags.signalled()) as usize);
    data::drawn(counters, weight, told.n);
    data::add(counters, qp::POST_CALLS, weight);
    told.count(counters, weight);
    data::note_thread(counters, found.subject);
    data::add(counters, qp::WRS, told.rest(0).wrapping_mul(weight));
    meter
}

/// What a digest says in its registers.
#[derive(Clone, Copy)]
struct Told {
    /// The queue pair, or shared receive queue.
    object: u64,
    n: u64,
    bytes: u64,
    flags: Flags,
    sges: u64,
    /// The first work request, or [`Refused`].
    last: u64,
}

impl Told {
    #[inline(always)]
    fn by(ctx: &ProbeContext) -> Self {
        let argument = |n: usize| ctx.arg::<u64>(n).unwrap_or(0);
        Self {
            object: argument(0),
            n: argument(1),
            bytes: argument(2),
            flags: Flags(argument(3)),
            sges: argument(4),
            last: argument(5),
        }
    }

    /// It stands for so many.
    #[inline(always)]
    fn weight(self) -> u64 {
        1 << self.flags.exponent()
    }

    /// Counts sends, each `factor` times, but for [`Self::rest`].
    #[inline(always)]
    fn count(self, counters: *mut ObjectCounters, factor: u64) {
        data::add(counters, qp::BYTES, self.bytes.wrapping_mul(factor));
        data::add(counters, qp::SGES, self.sges.wrapping_sub(self.n).wrapping_mul(factor));
        data::add(counters, qp::SIGNALLED, self.flags.signalled().wrapping_mul(factor));
        data::add(counters, qp::INLINE, self.flags.inline().wrapping_mul(factor));
        let of_it = self.n.wrapping_mul(self.is_of_one_kind());
        data::add_opcode(counters, lowest_bit(self.flags.opcodes()), of_it.wrapping_mul(factor));
    }

    /// 1 where all have one opcode; with several in one chain the digest does not say how many there are of each.
    ///
    /// A number that the verifier knows nothing of: known to be the one or the other, it would double its work on all that
    /// comes behind.
    #[inline(always)]
    fn is_of_one_kind(self) -> u64 {
        let opcodes = self.flags.opcodes() as u64;
        is_zero(opcodes & opcodes.wrapping_sub(1)) & (1 - is_zero(opcodes))
    }

    /// How many are not counted by opcode, where `walked` are looked at.
    #[inline(always)]
    fn rest(self, walked: u64) -> u64 {
        self.n.wrapping_sub(walked).wrapping_mul(1 - self.is_of_one_kind())
    }
}

#[inline(always)]
fn digest(ctx: &ProbeContext, failed: bool) {
    let told = Told::by(ctx);
    let Some((subject, meter)) = meter::hit(Stream::of_post(told.flags.signalled()) as usize) else { return };
    count_digest(ctx, subject, told, failed);
    if failed {
        note_refused(ctx, subject, told);
    }
    meter.end();
}

/// Notes the first work request that was not posted. Behind all else, for the verifier: it would go through a walk again
/// for each kind of queue there is here.
#[inline(always)]
fn note_refused(ctx: &ProbeContext, subject: Subject, told: Told) {
    // SAFETY: the context is the kernel's own.
    let by = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u16;
    let (object, what) = match told.flags.queue() {
        Some(Queue::Send) => (kind::QP, what::POST),
        Some(Queue::SharedReceive) => (kind::SRQ, what::SHARED_RECEIVE),
        _ => (kind::QP, what::RECEIVE),
    };
    let Some(counters) = data::counters(subject, object, told.object, by) else { return };
    let why = Refused(told.last);
    // SAFETY: a live map value.
    let number = unsafe { (*counters).number };
    let refusal = Refusal {
        kind: failures::Kind { by, number, what, code: why.errno(), weight: told.weight() },
        at: why.wr(),
        chain: 0,
        posted: told.flags.posted(),
        unposted: told.n,
        caller: Caller::UNKNOWN,
    };
    failures::refused(subject, data::thread(subject, true), refusal);
}

#[inline(always)]
fn count_digest(ctx: &ProbeContext, subject: Subject, told: Told, failed: bool) {
    // SAFETY: the context is the kernel's own.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let by = cookie as u16;
    let shared = matches!(told.flags.queue(), Some(Queue::SharedReceive));
    let send = matches!(told.flags.queue(), Some(Queue::Send));
    let object = if shared { kind::SRQ } else { kind::QP };
    let Some(counters) = data::counters(subject, object, told.object, by) else { return };
    let (n, weight) = (told.n, told.weight());
    let factor = if failed { weight.wrapping_neg() } else { weight };
    let sign = |n: u64| n.wrapping_mul(factor);
    if !failed {
        data::drawn(counters, weight, n);
    }
    if !send {
        note_receives(subject, counters, object);
        data::add(counters, if failed { qp::RECV_FAILED } else { qp::RECV_CALLS }, weight);
        data::add(counters, qp::RECV_WRS, sign(n));
        data::add(counters, qp::RECV_BYTES, sign(told.bytes));
        data::add(counters, qp::RECV_SGES, sign(told.sges.wrapping_sub(n)));
        return;
    }
    data::add(counters, if failed { qp::POST_FAILED } else { qp::POST_CALLS }, weight);
    // What the digest of a failure packs into its flags is the whole call's where nothing is to be subtracted.
    if failed && n == 0 {
        return;
    }
    told.count(counters, factor);
    let by_opcode = 1 - told.is_of_one_kind();
    let mut walked = 0;
    if !failed {
        hot::keep(subject, counters, object, told.object, by, cookie >> 16 & 1 != 0);
        hot::go_on_from(counters);
        data::note_thread(counters, subject);
        let looks = if cookie >> 16 & 1 != 0 { told.last } else { 0 };
        let sends = Sends { subject, counters, by, weight, n, signalled: told.flags.signalled() };
        walked = sends.follow(looks, by_opcode);
        hot::go_on_at(counters);
    } else {
        let first = Refused(told.last).wr();
        let chain = Chain { first, most: n, now: 0, sign: factor, by_opcode };
        if first != 0
            && let Some(thread) = data::thread(subject, true)
            && let Some(ring) = under_way::ring(subject, counters, by, weight, true)
        {
            let walk = take_back(counters, thread, ring, &chain);
            walk.describe(counters, weight == 1);
            (_, walked) = walk.under_way();
        }
    }
    data::add(counters, qp::WRS, sign(told.rest(walked)));
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
    /// Looks at their chain for what the digest does not tell, if `first` is not 0: by opcode too, where that is wanted.
    /// Returns how many it looked at.
    #[inline(always)]
    fn follow(&self, first: u64, by_opcode: u64) -> u64 {
        let Self { subject, counters, by, weight, n, signalled } = *self;
        let every = weight == 1;
        if first != 0
            && let Some(thread) = data::thread(subject, true)
            && let Some(ring) = under_way::ring(subject, counters, by, weight, signalled != 0)
        {
            let makes_entries = makes_entries(counters, signalled);
            let now = gap::Post { every, signalled: signalled != 0, makes_entries }.at(subject, thread);
            let chain = Chain { first, most: n, now, sign: weight, by_opcode };
            let walk = walk::over(counters, thread, ring, &chain);
            walk.describe(counters, every);
            data::add(counters, qp::CUT, walk.cut().wrapping_mul(weight));
            if every {
                under_way::note_outstanding(counters, ring);
                walk.follow_run(counters);
            } else {
                forget_run(counters);
            }
            return walk.under_way().1;
        }
        follow_digest(counters, n, signalled, weight);
        0
    }
}

/// What the numbers of a digest alone tell of the run of unsignalled work requests.
#[inline(always)]
fn follow_digest(counters: *mut ObjectCounters, n: u64, signalled: u64, weight: u64) {
    if weight == 1 {
        runs_at_least(counters, n, signalled);
    } else {
        forget_run(counters);
    }
}

/// Whether any of so many signalled work requests, by what the program asked for, makes a completion entry.
#[inline(always)]
fn makes_entries(counters: *mut ObjectCounters, signalled: u64) -> bool {
    // SAFETY: a live map value.
    signalled != 0 || unsafe { (*counters).granted.signal_all } != 0
}

/// Posts in between were not seen.
#[inline(always)]
fn forget_run(counters: *mut ObjectCounters) {
    // SAFETY: a live map value.
    unsafe { (*counters).counters[qp::UNSIGNALLED_RUN] = 0 };
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

/// Place of the only bit; this target has no instruction for it. Without a branch: the verifier would follow each place
/// there may be by itself.
#[inline(always)]
fn lowest_bit(word: u16) -> u64 {
    let is_in = |half: u16| 1 - is_zero((word & half) as u64);
    is_in(0xff00) << 3 | is_in(0xf0f0) << 2 | is_in(0xcccc) << 1 | is_in(0xaaaa)
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
    let Some(ring) = under_way::ring(subject, counters, source::FUNCTION, weight, true) else { return };
    let every = weight == 1;
    let now = gap::Post { every, signalled: false, makes_entries: true }.at(subject, thread);
    let chain = Chain { first: wr, most: u64::MAX, now, sign: weight, by_opcode: 1 };
    let walk = walk::over(counters, thread, ring, &chain);
    if every {
        under_way::note_outstanding(counters, ring);
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
    let Some(ring) = under_way::ring(subject, counters, source::FUNCTION, call.weight, true) else { return };
    let back = call.weight.wrapping_neg();
    let first = first_unposted(&call);
    let chain = Chain { first, most: u64::MAX, now: 0, sign: back, by_opcode: 1 };
    let walk = take_back(counters, thread, ring, &chain);
    walk.count(counters);
    walk.describe(counters, true);
    let (_, unposted) = walk.under_way();
    tell_refused(ctx, subject, counters, thread, &call, (what::POST, result), (first, unposted));
}

/// Tells of a post to a function of a provider that was refused with an errno, and from which request on.
#[inline(always)]
fn tell_refused(
    ctx: &RetProbeContext,
    subject: Subject,
    counters: *mut ObjectCounters,
    thread: *mut Thread,
    call: &Awaited,
    (what, errno): (u32, i32),
    (at, unposted): (u64, u64),
) {
    // SAFETY: a live map value.
    let number = unsafe { (*counters).number };
    let code = errno.unsigned_abs();
    let kind = failures::Kind { by: source::FUNCTION, number, what, code, weight: call.weight };
    let refusal = Refusal { kind, at, chain: call.first, posted: 0, unposted, caller: Caller::of(ctx) };
    failures::refused(subject, Some(thread), refusal);
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
    let (signalled, all) = walk.under_way();
    under_way::take_back(ring, signalled, all);
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
    let what = if object_kind == kind::SRQ { what::SHARED_RECEIVE } else { what::RECEIVE };
    let first = first_unposted(&call);
    count_receives(counters, thread, first, call.weight, true);
    // SAFETY: this thread's own memory.
    let unposted = unsafe { (*thread).receives.wrs };
    tell_refused(ctx, subject, counters, thread, &call, (what, result), (first, unposted));
}

/// Receives are posted in long chains when a program starts.
const MOST_RECEIVES: u32 = site::MOST_SHOWN as u32;
/// Entries of a receive's list that are added up.
const MOST_SGES: u32 = site::MOST_SGES as u32;

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
