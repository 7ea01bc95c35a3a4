//! The extended API of a provider: what is put together between `wr_start` and `wr_complete`.
//!
//! The functions between are many (one for each opcode, one for each way to give the data) and say little each. A batch
//! is counted when it is completed, and taken back when that fails; one given up by `wr_abort` counts nothing, and
//! neither does one that was begun before the probes were there.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_attach_cookie;
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_common::counters::{Batch, ObjectCounters, SIZES, failure, kind, place, qp, source};
use probe_common::wire::hits;

use crate::addresses::size_class;
use crate::data;
use crate::meter::{self, Meter};
use crate::subject::Subject;
use crate::user::{clear, half, word};
use crate::walk::SIGNALED;

/// `wr_flags` of `struct ibv_qp_ex`.
const WR_FLAGS: u64 = 176;
/// Entries of a list that are added up.
const MOST_SGES: u32 = 64;

#[inline(always)]
fn argument(ctx: &ProbeContext, n: usize) -> u64 {
    ctx.arg::<u64>(n).unwrap_or(0)
}

#[inline(always)]
fn counters(ctx: &ProbeContext) -> Option<(Subject, Meter, *mut ObjectCounters)> {
    let (subject, meter) = meter::hit(hits::FUNCTIONS)?;
    let counters = data::counters(subject, kind::QP, argument(ctx, 0), source::FUNCTION)?;
    Some((subject, meter, counters))
}

/// The counters of a queue pair whose batch is in progress.
#[inline(always)]
fn in_progress(ctx: &ProbeContext) -> Option<*mut ObjectCounters> {
    let (_, _, counters) = counters(ctx)?;
    // SAFETY: a live map value.
    (unsafe { (*counters).batch.open } != 0).then_some(counters)
}

/// Entry of `wr_start(qp)`.
#[inline(always)]
pub fn start(ctx: &ProbeContext) {
    let Some((subject, meter, counters)) = counters(ctx) else { return };
    // SAFETY: a live map value. What an earlier slice left open is not completed in this one.
    unsafe { (*counters).batch.open = 0 };
    let Some((weight, slice)) = meter::slice() else { return };
    meter.operations(weight);
    data::note_thread(counters, subject);
    data::in_slice(counters, slice);
    // SAFETY: a live map value; until `wr_complete` the queue pair belongs to this thread.
    unsafe {
        clear::<{ size_of::<Batch>() / 8 }>((&raw mut (*counters).batch).cast());
        (*counters).batch.open = weight;
    }
}

/// Entry of `wr_send(qp)` and its like; the cookie is the opcode.
#[inline(always)]
pub fn build(ctx: &ProbeContext) {
    let Some(counters) = in_progress(ctx) else { return };
    // SAFETY: the context is the kernel's own.
    let opcode = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as usize & 15;
    let flags = half(argument(ctx, 0).wrapping_add(WR_FLAGS)).unwrap_or(0);
    // SAFETY: as in `start`.
    unsafe {
        let batch = &mut (*counters).batch;
        batch.entries = batch.entries.wrapping_add(1);
        let signalled = (flags / SIGNALED & 1) as u64 | ((*counters).granted.signal_all & 1) as u64;
        batch.signalled = batch.signalled.wrapping_add(signalled);
        let by_opcode = (&raw mut batch.opcodes).cast::<u32>().add(opcode);
        *by_opcode = (*by_opcode).wrapping_add(1);
    }
}

/// Entry of `wr_set_sge(qp, lkey, addr, length)` and its like; the cookie says which.
#[inline(always)]
pub fn set(ctx: &ProbeContext) {
    let Some(counters) = in_progress(ctx) else { return };
    // SAFETY: the context is the kernel's own.
    let which = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let inline = which == place::SET_INLINE || which == place::SET_INLINE_LIST;
    let (mut sges, mut cut) = (1, 0);
    let bytes;
    if which == place::SET_SGE {
        bytes = argument(ctx, 3) & 0xffff_ffff;
    } else if which == place::SET_INLINE {
        bytes = argument(ctx, 2);
    } else {
        sges = argument(ctx, 1);
        let mut list = List { at: argument(ctx, 2), left: sges, bytes: 0, lengths_are_words: inline };
        // SAFETY: the callback gets a pointer to `list`, which outlives the call.
        unsafe {
            bpf_loop(MOST_SGES, entry as *mut c_void, (&raw mut list).cast::<c_void>(), 0);
        }
        bytes = list.bytes;
        cut = (list.left != 0) as u64;
    }
    // SAFETY: as in `start`.
    unsafe {
        let batch = &mut (*counters).batch;
        batch.inline = batch.inline.wrapping_add(inline as u64);
        batch.sges = batch.sges.wrapping_add(sges);
        batch.bytes = batch.bytes.wrapping_add(bytes);
        batch.cut |= cut;
        let by_size = (&raw mut batch.sizes).cast::<u32>().add(size_class(bytes) as usize & (SIZES - 1));
        *by_size = (*by_size).wrapping_add(1);
    }
}

/// A list being added up.
struct List {
    at: u64,
    left: u64,
    bytes: u64,
    /// `struct ibv_data_buf` has a length of 64 bits, `struct ibv_sge` one of 32.
    lengths_are_words: bool,
}

extern "C" fn entry(_index: u32, list: *mut List) -> i64 {
    // SAFETY: what `set` passed to bpf_loop.
    let list = unsafe { &mut *list };
    if list.left == 0 {
        return 1;
    }
    // Both are of 16 bytes, an address first.
    let Some(length) = word(list.at.wrapping_add(8)) else { return 1 };
    list.bytes = list.bytes.wrapping_add(if list.lengths_are_words { length } else { length & 0xffff_ffff });
    list.at = list.at.wrapping_add(16);
    list.left -= 1;
    0
}

/// Entry of `wr_complete(qp)`.
#[inline(always)]
pub fn complete_enter(ctx: &ProbeContext) {
    let Some((subject, _, counters)) = counters(ctx) else { return };
    // SAFETY: a live map value.
    let weight = unsafe { (*counters).batch.open };
    if weight == 0 {
        return;
    }
    data::add(counters, qp::POST_CALLS, weight);
    data::stands_for(counters, weight);
    add(counters, weight);
    follow_run(counters);
    let object = argument(ctx, 0);
    match data::thread(subject, true) {
        // SAFETY: this thread's own memory.
        Some(thread) => unsafe {
            (*thread).post.object = object;
            (*thread).post.weight = weight;
        },
        None => data::add(counters, qp::CUT, 1),
    }
}

/// Return of `wr_complete`: when it fails, nothing was posted.
#[inline(always)]
pub fn complete_leave(ctx: &RetProbeContext) {
    let Some((subject, _)) = meter::hit(hits::RETURNS) else { return };
    let Some(thread) = data::thread(subject, false) else { return };
    // SAFETY: this thread's own memory.
    let (object, weight) = unsafe { (core::mem::take(&mut (*thread).post.object), (*thread).post.weight) };
    if object == 0 {
        return;
    }
    let result = ctx.ret::<u64>() as i32;
    if result == 0 {
        return;
    }
    let Some(counters) = data::counters(subject, kind::QP, object, source::FUNCTION) else { return };
    data::add(counters, qp::POST_FAILED, weight);
    // SAFETY: a live map value.
    let number = unsafe { (*counters).number };
    data::failed(subject, number, failure::POST, result.unsigned_abs(), weight);
    add(counters, weight.wrapping_neg());
}

/// Entry of `wr_abort(qp)`.
#[inline(always)]
pub fn abort(ctx: &ProbeContext) {
    let Some(counters) = in_progress(ctx) else { return };
    // SAFETY: as in `start`.
    let weight = unsafe { core::mem::take(&mut (*counters).batch.open) };
    data::add(counters, qp::ABORTED, weight);
}

/// Adds the batch to the counters so many times; -1 takes it back.
#[inline(always)]
fn add(counters: *mut ObjectCounters, sign: u64) {
    // SAFETY: a live map value.
    unsafe {
        let batch = &mut (*counters).batch;
        batch.open = 0;
        let (entries, signalled, inline) = (batch.entries, batch.signalled, batch.inline);
        let (bytes, sges, cut) = (batch.bytes, batch.sges, batch.cut);
        data::add(counters, qp::SIGNALLED, signalled.wrapping_mul(sign));
        data::add(counters, qp::INLINE, inline.wrapping_mul(sign));
        data::add(counters, qp::BYTES, bytes.wrapping_mul(sign));
        data::add(counters, qp::SGES, sges.wrapping_sub(entries).wrapping_mul(sign));
        if sign >> 63 == 0 {
            data::add(counters, qp::CUT, cut.wrapping_mul(sign));
        }
        let mut index = 0;
        while index < qp::OPCODE_COUNT {
            let n = (*counters).batch.opcodes[index] as u64;
            data::add(counters, qp::OPCODES + index, n.wrapping_mul(sign));
            index += 1;
        }
        let mut index = 0;
        while index < SIZES {
            let n = (*counters).batch.sizes[index] as u64;
            data::add_size(counters, index, n.wrapping_mul(sign));
            index += 1;
        }
    }
}

/// Follows the run of unsignalled work requests, by their numbers alone.
#[inline(always)]
fn follow_run(counters: *mut ObjectCounters) {
    // SAFETY: a live map value.
    let (n, signalled) = unsafe { ((*counters).batch.entries, (*counters).batch.signalled) };
    crate::post::runs_at_least(counters, n, signalled);
}
