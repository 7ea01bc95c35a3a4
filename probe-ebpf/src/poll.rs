//! Polls: digested by a site of ours, or seen at the entry and return of a provider's functions.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use aya_ebpf::helpers::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_common::counters::{ObjectCounters, cq, detail, kind, place, source};
use probe_common::failures::what;
use probe_common::recipe::{Recipe, Side};
use probe_common::site::{FOUND_BEFORE, MOST_EXPONENT, Stream};
use probe_common::verbs::Wc;
use probe_common::wire::{hits, part};

use crate::bounds::bounded;
use crate::data::{self, Awaited, ENTRIES_AT_ONCE, Thread};
use crate::failures::{self, Completion};
use crate::gap;
use crate::meter;
use crate::recipes;
use crate::senders;
use crate::subject::Subject;
use crate::under_way;
use crate::user::read;

/// Bytes of `struct ibv_wc`.
const WC_BYTES: u64 = size_of::<Wc>() as u64;
/// Rounds of [`ENTRIES_AT_ONCE`] completion entries; those behind count without a status.
const ROUNDS: u32 = 64;
/// `IBV_WC_RECV`, a bit of the opcode of what was received.
const RECEIVED: u32 = 1 << 7;
/// `status` of `struct ibv_cq_ex`; `wr_id` follows it.
const STATUS: u64 = 132;
/// "Nothing there", from `start_poll` and `next_poll`.
const ENOENT: i32 = 2;

/// `…_polled(cq, n, wc)`.
#[inline(always)]
pub fn site(ctx: &ProbeContext) {
    let argument = |n: usize| ctx.arg::<u64>(n).unwrap_or(0);
    let (n, wc) = (argument(1) as i64, argument(2));
    let how = argument(3) as u32;
    let weight = 1u64 << (how & MOST_EXPONENT);
    let stream = if n == 0 { Stream::Empty } else { Stream::Finds };
    let Some((subject, meter)) = meter::hit(stream as usize) else { return };
    // SAFETY: the context is the kernel's own.
    let by = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u16;
    if let Some(counters) = data::counters(subject, kind::CQ, argument(0), by) {
        let thread = if n > 0 && wc != 0 { data::thread(subject, true) } else { None };
        data::note_thread(counters, subject);
        data::drawn(counters, weight, if n > 0 { n as u64 } else { 0 });
        if let Some(thread) = thread {
            // SAFETY: this thread's own memory.
            unsafe {
                (*thread).reading.by = by as u64;
                (*thread).reading.cq = argument(0);
                (*thread).reading.found_before = if how & FOUND_BEFORE != 0 { u32::MAX as u64 } else { 0 };
            }
        }
        polled(subject, counters, thread, n, wc, weight);
    }
    meter.end();
}

/// Entry of `poll_cq(cq, n, wc)`, `start_poll(cq, attributes)` or `next_poll(cq)`; the cookie may be
/// [`place::FIRST_ONLY`].
#[inline(always)]
pub fn enter(ctx: &ProbeContext) {
    let Some((subject, _)) = meter::hit(hits::POLLS) else { return };
    let Some((weight, idle_weight, _)) = meter::slice(part::POLLS) else { return };
    let Some(thread) = data::thread(subject, true) else { return };
    let argument = |n: usize| ctx.arg::<u64>(n).unwrap_or(0);
    // SAFETY: the context is the kernel's own.
    let second = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let (object, first) = (argument(0), argument(2));
    // What it is need not be told: so there is room for what it counts for where it finds nothing.
    let call = Awaited { object, first, second, kind: idle_weight, weight };
    // SAFETY: this thread's own memory.
    unsafe { (*thread).poll = call };
}

/// Return of `poll_cq`.
#[inline(always)]
pub fn leave(ctx: &RetProbeContext) {
    let Some((subject, meter)) = meter::hit(hits::POLL_RETURNS) else { return };
    if let Some((call, thread, counters)) = awaited_poll(subject) {
        let n = i64::from(ctx.ret::<u64>() as i32);
        let weight = if n > 0 { call.weight } else { call.kind };
        if n > 0 {
            meter.operations(part::POLLS, weight.wrapping_mul(n as u64));
        }
        data::stands_for(counters, weight);
        // SAFETY: this thread's own memory.
        unsafe {
            (*thread).reading.by = source::FUNCTION as u64;
            (*thread).reading.cq = call.object;
            (*thread).reading.found_before = 0;
        }
        polled(subject, counters, Some(thread), n, call.first, weight);
    }
    meter.end();
}

/// Return of `start_poll`.
#[inline(always)]
pub fn start_leave(ctx: &RetProbeContext) {
    let Some((subject, meter)) = meter::hit(hits::POLL_RETURNS) else { return };
    if let Some((call, thread, counters)) = awaited_poll(subject) {
        let result = ctx.ret::<u64>() as i32;
        let weight = if result == 0 { call.weight } else { call.kind };
        data::add(counters, cq::POLLS, weight);
        data::armed(counters, false);
        data::stands_for(counters, weight);
        if result == 0 {
            meter.operations(part::POLLS, weight);
            // SAFETY: a live map value; until `end_poll` the queue belongs to this thread.
            unsafe { (*counters).batch.entries = 0 };
            another(subject, thread, counters, call, recipes::of(ctx));
        } else if result == ENOENT {
            data::add(counters, cq::EMPTY, weight);
        } else {
            data::add(counters, cq::FAILED, weight);
        }
    }
    meter.end();
}

/// Return of `next_poll`.
#[inline(always)]
pub fn next_leave(ctx: &RetProbeContext) {
    let Some((subject, meter)) = meter::hit(hits::POLL_RETURNS) else { return };
    if let Some((call, thread, counters)) = awaited_poll(subject)
        && ctx.ret::<u64>() as i32 == 0
    {
        meter.operations(part::POLLS, call.weight);
        another(subject, thread, counters, call, recipes::of(ctx));
    }
    meter.end();
}

/// Entry of `req_notify_cq(cq, solicited_only)`: of a provider, or a site of the emulated device, which the cookie names.
#[inline(always)]
pub fn notify(ctx: &ProbeContext) {
    let object = ctx.arg::<u64>(0).unwrap_or(0);
    // SAFETY: the context is the kernel's own.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u16;
    // Sites tell of every one of these: they are no operations that could be told more seldom.
    if cookie != 0 {
        if let Some((subject, _)) = meter::hit(Stream::Finds as usize) {
            notified(subject, object, cookie, 1);
        }
        return;
    }
    if let Some((subject, _)) = meter::hit(hits::POLLS)
        && let Some((weight, ..)) = meter::slice(part::POLLS)
    {
        notified(subject, object, source::FUNCTION, weight);
    }
}

#[inline(always)]
fn notified(subject: Subject, object: u64, by: u16, weight: u64) {
    if let Some(counters) = data::counters(subject, kind::CQ, object, by) {
        data::add(counters, cq::NOTIFIES, weight);
        data::armed(counters, weight == 1);
    }
}

/// What the current thread's poll was about; once.
#[inline(always)]
fn awaited_poll(subject: Subject) -> Option<(Awaited, *mut Thread, *mut ObjectCounters)> {
    let thread = data::thread(subject, false)?;
    // SAFETY: this thread's own memory.
    let call = unsafe { (*thread).poll };
    if call.object == 0 {
        return None;
    }
    // SAFETY: as above.
    unsafe { (*thread).poll.object = 0 };
    let counters = data::counters(subject, kind::CQ, call.object, source::FUNCTION)?;
    data::note_thread(counters, subject);
    Some((call, thread, counters))
}

/// What an extended completion queue shows of the completion entry it stands at.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shown {
    status: u32,
    wr_id: [u32; 2],
}

/// Counts the completion entry an extended completion queue shows.
#[inline(always)]
fn another(
    subject: Subject,
    thread: *mut Thread,
    counters: *mut ObjectCounters,
    call: Awaited,
    recipe: Option<&'static Recipe>,
) {
    data::add(counters, cq::CQES, call.weight);
    // SAFETY: a live map value.
    let found = unsafe {
        (*counters).batch.entries = (*counters).batch.entries.wrapping_add(1);
        (*counters).batch.entries
    };
    most(counters, found);
    let shown = read::<Shown>(call.object.wrapping_add(STATUS));
    let (status, [low, high]) = shown.map_or((0, [0; 2]), |shown| (shown.status, shown.wr_id));
    let wr_id = low as u64 | (high as u64) << 32;
    let first_only = call.second == place::FIRST_ONLY;
    if first_only {
        data::add(counters, cq::CUT, call.weight);
    }
    let every = call.weight == 1;
    // SAFETY: the helper has no preconditions; this thread's own memory.
    let now = unsafe {
        let now = bpf_ktime_get_ns();
        gap::found(subject, thread, now, every);
        now
    };
    // Where the next ones are not seen, neither is which requests they complete.
    let followed = every && !first_only && status == 0;
    let number = if followed || status != 0 { recipes::number(recipe, call.object) } else { 0 };
    if status != 0 {
        let number = if number != 0 { number } else { senders::whose(subject, counters, call.object, wr_id) };
        let what = (status, number, call.weight);
        let entry = Completion { wr_id, vendor_err: 0, now };
        count_error(subject, thread, source::FUNCTION, counters, what, entry);
        return;
    }
    data::add(counters, cq::STATUSES, call.weight);
    if followed {
        let side = recipes::side(recipe, call.object);
        one_reaped(subject, counters, call.object, number, side, wr_id, now);
    }
}

/// A completion entry of an extended queue, as far as it is known of which queue pair (0: it is not) and which of its
/// queues.
#[inline(always)]
fn one_reaped(
    subject: Subject,
    counters: *mut ObjectCounters,
    cq: u64,
    number: u32,
    side: Option<Side>,
    wr_id: u64,
    now: u64,
) {
    let by = source::FUNCTION;
    match (side, number) {
        (Some(Side::Receive), _) => {}
        (_, 0) => {
            let number = senders::whose(subject, counters, cq, wr_id);
            if number != 0 {
                under_way::reaped(subject, by, number, wr_id, now);
            }
        }
        (Some(Side::Send), _) => under_way::reaped(subject, by, number, wr_id, now),
        (None, _) => {
            if !senders::has_receives(subject, cq) {
                under_way::reaped(subject, by, number, wr_id, now);
            } else {
                data::add_detail(counters, detail::GUESSED, 1);
                if senders::is_in_turn(subject, number, wr_id) {
                    under_way::reaped(subject, by, number, wr_id, now);
                }
            }
        }
    }
}

#[inline(always)]
fn most(counters: *mut ObjectCounters, n: u64) {
    // SAFETY: a live map value.
    unsafe {
        if n > (*counters).counters[cq::MOST_CQES] {
            (*counters).counters[cq::MOST_CQES] = n;
        }
    }
}

/// Counts a completion entry with an error: its status, the number of its queue pair (0 where that is not known), and how
/// many it stands for.
#[inline(always)]
fn count_error(
    subject: Subject,
    thread: *mut Thread,
    by: u16,
    counters: *mut ObjectCounters,
    (status, number, weight): (u32, u32, u64),
    entry: Completion,
) {
    let last = cq::STATUS_COUNT as u32 - 1;
    let place = if status > last { last } else { status };
    data::add(counters, cq::STATUSES + place as usize, weight);
    data::add(counters, cq::CQE_ERRORS, weight);
    let kind = failures::Kind { by, number, what: what::CQE, code: status, weight };
    failures::completed(subject, thread, kind, entry);
}

#[inline(always)]
fn polled(
    subject: Subject,
    counters: *mut ObjectCounters,
    thread: Option<*mut Thread>,
    n: i64,
    wc: u64,
    weight: u64,
) {
    data::add(counters, cq::POLLS, weight);
    data::armed(counters, false);
    if n == 0 {
        data::add(counters, cq::EMPTY, weight);
        return;
    }
    if n < 0 {
        data::add(counters, cq::FAILED, weight);
        return;
    }
    data::add(counters, cq::CQES, (n as u64).wrapping_mul(weight));
    most(counters, n as u64);
    let Some(thread) = thread else { return };
    // SAFETY: this thread's own memory, and a live map value; both outlive the program.
    let successes = unsafe {
        (*thread).reading.at = wc;
        (*thread).reading.left = n as u64;
        (*thread).reading.successes = 0;
        let now = bpf_ktime_get_ns();
        (*thread).reading.now = now;
        (*thread).reading.weight = weight;
        gap::found(subject, thread, now, weight == 1);
        let mut context = Context { subject, counters: counters.cast::<c_void>(), thread };
        bpf_loop(ROUNDS, entries as *mut c_void, (&raw mut context).cast::<c_void>(), 0);
        (*thread).reading.successes
    };
    data::add(counters, cq::STATUSES, successes.wrapping_mul(weight));
}

/// Completion entries being read. In the thread's memory, as a walk is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Reading {
    /// Who tells, one of [`source`].
    by: u64,
    /// The completion queue.
    cq: u64,
    /// All ones where each entry was found before the call tells of it, by so many ns as stand in its `imm_data`.
    found_before: u64,
    at: u64,
    left: u64,
    successes: u64,
    /// 1 where one of those read last has an error.
    failed: u64,
    now: u64,
    weight: u64,
}

impl Reading {
    /// When a completion entry was found.
    #[inline(always)]
    fn found(&self, entry: &Wc) -> u64 {
        self.now.wrapping_sub(entry.imm_data as u64 & self.found_before)
    }
}

/// What the rounds are given. The [`ObjectCounters`] are not named, as in the context of a walk.
struct Context {
    subject: Subject,
    counters: *mut c_void,
    thread: *mut Thread,
}

/// One round: as many completion entries as are read at once.
extern "C" fn entries(_index: u32, context: *mut Context) -> i64 {
    // SAFETY: what `polled` passed to bpf_loop; map values outlive the program.
    unsafe {
        let context = &*context;
        let thread = context.thread;
        let reading = &mut (*thread).reading;
        let left = reading.left;
        let n = if left > ENTRIES_AT_ONCE as u64 { ENTRIES_AT_ONCE as u64 } else { left };
        let bytes = (n * WC_BYTES) as u32 & 0x3ff;
        let room = size_of::<[Wc; ENTRIES_AT_ONCE]>() as u32;
        let into = (&raw mut (*thread).copied).cast::<c_void>();
        if bytes == 0 || bytes > room || bpf_probe_read_user(into, bytes, reading.at as *const c_void) != 0 {
            return 1;
        }
        reading.failed = 0;
        let given = (&raw const *context).cast_mut().cast::<c_void>();
        bpf_loop(n as u32, entry as *mut c_void, given, 0);
        if reading.failed != 0 {
            bpf_loop(n as u32, failed_entry as *mut c_void, given, 0);
        }
        reading.left = left - n;
        reading.at = reading.at.wrapping_add(n * WC_BYTES);
        i64::from(reading.left == 0)
    }
}

/// One completion entry of those read.
extern "C" fn entry(index: u32, context: *mut Context) -> i64 {
    // SAFETY: what `entries` passed to bpf_loop; the place is within bounds.
    unsafe {
        let context = &*context;
        let thread = context.thread;
        let place = bounded::<15>(index as u64);
        let entry = &*(&raw const (*thread).copied).cast::<Wc>().add(place);
        let reading = &mut (*thread).reading;
        if entry.status != 0 {
            reading.failed = 1;
            return 0;
        }
        reading.successes += 1;
        // Completion entries of receives have this bit of their opcode set.
        if entry.opcode & RECEIVED == 0 && reading.weight == 1 {
            let number = whose(context, entry);
            if number != 0 {
                let now = reading.found(entry);
                under_way::reaped(context.subject, reading.by as u16, number, entry.wr_id, now);
            }
        }
    }
    0
}

/// The number of the queue pair of a completion entry, 0 where that is not known: an extended queue may have been made
/// without it.
#[inline(always)]
unsafe fn whose(context: &Context, entry: &Wc) -> u32 {
    if entry.qp_num != 0 {
        return entry.qp_num;
    }
    // SAFETY: this thread's own memory.
    let cq = unsafe { (*context.thread).reading.cq };
    senders::whose(context.subject, context.counters.cast::<ObjectCounters>(), cq, entry.wr_id)
}

/// One completion entry of those read, if it has an error. By itself: together with those that have none it would be more
/// than the verifier follows. On a queue pair nothing succeeds any more once something has failed.
extern "C" fn failed_entry(index: u32, context: *mut Context) -> i64 {
    // SAFETY: what `entries` passed to bpf_loop; the place is within bounds.
    unsafe {
        let context = &*context;
        let thread = context.thread;
        let place = bounded::<15>(index as u64);
        let entry = &*(&raw const (*thread).copied).cast::<Wc>().add(place);
        if entry.status == 0 {
            return 0;
        }
        let reading = &(*thread).reading;
        let counters = context.counters.cast::<ObjectCounters>();
        let failed =
            Completion { wr_id: entry.wr_id, vendor_err: entry.vendor_err, now: reading.found(entry) };
        let what = (entry.status, whose(context, entry), reading.weight);
        count_error(context.subject, thread, reading.by as u16, counters, what, failed);
    }
    0
}
