//! The extended API of a provider: what is put together between `wr_start` and `wr_complete`.
//!
//! The functions between are many (one for each opcode, one for each way to give the data) and say little each. What a
//! work request consists of is known when the next one is begun, or the batch completed. A batch is counted when it is
//! completed, and taken back when that fails; one given up by `wr_abort` counts nothing, and neither does one that was
//! begun before the probes were there.
//!
//! Signalled work requests are noted in the ring of those under way, behind its head, as they are built; the head moves,
//! and they get their time, when the batch is completed.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_attach_cookie;
use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_common::counters::{BATCH_DETAILS, Batch, ObjectCounters, SIZES, detail, kind, place, qp, source};
use probe_common::failures::what;
use probe_common::site;
use probe_common::under_way::Class;
use probe_common::wire::hits;

use crate::addresses::{Steps, Told, is_zero, size_class};
use crate::bounds::bounded;
use crate::data;
use crate::failures::{self, Caller, Refusal};
use crate::gap;
use crate::meter::{self, Meter};
use crate::subject::Subject;
use crate::under_way::{self, keys};
use crate::user::{clear, read};
use crate::walk::{GO_INLINE, NAME_REMOTE_MEMORY, SIGNALED};

/// `wr_id` of `struct ibv_qp_ex`; `wr_flags` follows it.
const WR_ID: u64 = 168;
/// Entries of a list that are added up.
const MOST_SGES: u32 = site::MOST_SGES as u32;

/// What a program sets before it begins a work request.
#[repr(C)]
#[derive(Clone, Copy)]
struct Given {
    wr_id: u64,
    flags: u32,
    zero: u32,
}

#[inline(always)]
fn argument(ctx: &ProbeContext, n: usize) -> u64 {
    ctx.arg::<u64>(n).unwrap_or(0)
}

/// Carries out a hit at an entry with the counters of its queue pair.
#[inline(always)]
fn at_entry(ctx: &ProbeContext, then: impl FnOnce(Subject, Meter, *mut ObjectCounters)) {
    let Some((subject, meter)) = meter::hit(hits::POSTS) else { return };
    if let Some(counters) = data::counters(subject, kind::QP, argument(ctx, 0), source::FUNCTION) {
        then(subject, meter, counters);
    }
    meter.end();
}

/// The same where its batch is in progress.
#[inline(always)]
fn in_progress(ctx: &ProbeContext, then: impl FnOnce(Subject, *mut ObjectCounters)) {
    at_entry(ctx, |subject, _, counters| {
        // SAFETY: a live map value.
        if unsafe { (*counters).batch.open } != 0 {
            then(subject, counters);
        }
    });
}

/// Entry of `wr_start(qp)`.
#[inline(always)]
pub fn start(ctx: &ProbeContext) {
    at_entry(ctx, |subject, meter, counters| {
        // SAFETY: a live map value. What an earlier slice left open is not completed in this one.
        unsafe { (*counters).batch.open = 0 };
        let Some((weight, slice)) = meter.post() else { return };
        data::note_thread(counters, subject);
        data::in_slice(counters, slice);
        // SAFETY: a live map value; until `wr_complete` the queue pair belongs to this thread.
        unsafe {
            clear::<{ size_of::<Batch>() / 8 }>((&raw mut (*counters).batch).cast());
            (*counters).batch.open = weight;
            (*counters).batch.run = (*counters).counters[qp::UNSIGNALLED_RUN];
            (*counters).batch.longest = (*counters).counters[qp::LONGEST_UNSIGNALLED];
            (*counters).batch.last = (*counters).last;
        }
    });
}

/// Entry of `wr_send(qp)` and its like; the cookie is the opcode.
#[inline(always)]
pub fn build(ctx: &ProbeContext) {
    in_progress(ctx, |subject, counters| {
        settle(subject, counters);
        // SAFETY: the context is the kernel's own.
        let opcode = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } & 15;
        let given = read::<Given>(argument(ctx, 0).wrapping_add(WR_ID));
        let (wr_id, flags) = given.map_or((0, 0), |given| (given.wr_id, given.flags));
        // `wr_rdma_write(qp, rkey, remote_addr)`, and so with all that name remote memory.
        let names_remote = NAME_REMOTE_MEMORY >> opcode & 1 != 0;
        let (rkey, remote_addr) =
            if names_remote { (argument(ctx, 1) as u32, argument(ctx, 2)) } else { (0, 0) };
        // SAFETY: as in `start`.
        unsafe {
            let building = &mut (*counters).batch.building;
            building.begun = 1;
            building.wr_id = wr_id;
            building.opcode = opcode;
            building.signalled = (flags / SIGNALED & 1) as u64 | (*counters).granted.signal_all as u64 & 1;
            building.inline = 0;
            building.bytes = 0;
            building.sges = 0;
            building.remote_addr = remote_addr;
            building.keys = keys(rkey, 0);
            building.addr = 0;
            building.length = 0;
            building.low = 0;
        }
    });
}

/// Entry of `wr_set_sge(qp, lkey, addr, length)` and its like; the cookie says which.
#[inline(always)]
pub fn set(ctx: &ProbeContext) {
    in_progress(ctx, |_, counters| {
        // SAFETY: the context is the kernel's own.
        let which = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
        let inline = which == place::SET_INLINE || which == place::SET_INLINE_LIST;
        let mut list =
            List { at: 0, left: 0, bytes: 0, addr: 0, length: 0, low: 0, lkey: 0, lengths_are_words: inline };
        let mut sges = 1;
        if which == place::SET_SGE {
            (list.addr, list.length) = (argument(ctx, 2), argument(ctx, 3) & 0xffff_ffff);
            list.lkey = argument(ctx, 1);
            (list.low, list.bytes) = (list.addr, list.length);
        } else if which == place::SET_INLINE {
            (list.addr, list.length) = (argument(ctx, 1), argument(ctx, 2));
            (list.low, list.bytes) = (list.addr, list.length);
        } else {
            sges = argument(ctx, 1);
            (list.at, list.left) = (argument(ctx, 2), sges);
            // SAFETY: the callback gets a pointer to `list`, which outlives the call.
            unsafe {
                bpf_loop(MOST_SGES, entry as *mut c_void, (&raw mut list).cast::<c_void>(), 0);
            }
        }
        // SAFETY: as in `start`.
        unsafe {
            let batch = &mut (*counters).batch;
            batch.cut |= (list.left != 0) as u64;
            let building = &mut batch.building;
            building.inline = inline as u64;
            building.sges = sges;
            building.bytes = list.bytes;
            building.addr = list.addr;
            building.length = list.length;
            building.low = list.low;
            building.keys |= list.lkey << 32;
        }
    });
}

/// A list being added up.
struct List {
    at: u64,
    left: u64,
    bytes: u64,
    /// Its first entry.
    addr: u64,
    length: u64,
    /// Bits of all addresses.
    low: u64,
    /// Key of the first entry.
    lkey: u64,
    /// `struct ibv_data_buf` has a length of 64 bits, `struct ibv_sge` one of 32.
    lengths_are_words: bool,
}

extern "C" fn entry(index: u32, list: *mut List) -> i64 {
    // SAFETY: what `set` passed to bpf_loop.
    let list = unsafe { &mut *list };
    if list.left == 0 {
        return 1;
    }
    // Both are of 16 bytes, an address first.
    let Some([addr, word]) = read::<[u64; 2]>(list.at) else { return 1 };
    let (length, lkey) = if list.lengths_are_words { (word, 0) } else { (word & 0xffff_ffff, word >> 32) };
    if index == 0 {
        (list.addr, list.length, list.lkey) = (addr, length, lkey);
    }
    list.low |= addr;
    list.bytes = list.bytes.wrapping_add(length);
    list.at = list.at.wrapping_add(16);
    list.left -= 1;
    0
}

/// Takes the work request that is being built into the batch: all of it has been said.
#[inline(always)]
fn settle(subject: Subject, counters: *mut ObjectCounters) {
    // SAFETY: a live map value; until `wr_complete` the queue pair belongs to this thread.
    let (batch, max_inline) = unsafe { (&mut (*counters).batch, (*counters).granted.max_inline as u64) };
    if batch.building.begun == 0 {
        return;
    }
    let building = batch.building;
    batch.building.begun = 0;
    let opcode = bounded::<15>(building.opcode);
    let (bytes, inline, signalled) = (building.bytes, building.inline, building.signalled);
    if signalled != 0 {
        batch.run = 0;
        if let Some(ring) = under_way::ring(subject, counters, source::FUNCTION, batch.open, true) {
            let several = (1 - is_zero(building.sges >> 1)) * Class::SEVERAL;
            let class = opcode as u64 | several | inline * Class::INLINE | size_class(bytes) << 8;
            under_way::note_built(ring, counters, class);
        }
    } else {
        batch.run = batch.run.wrapping_add(1);
        if batch.run > batch.longest {
            batch.longest = batch.run;
        }
    }
    let is_remote = NAME_REMOTE_MEMORY >> opcode & 1;
    let mut local = Steps { at: batch.last[0], behind: batch.last[1] };
    let mut remote = Steps { at: batch.last[2], behind: batch.last[3] };
    // Where there is no buffer, the next one follows the one before.
    let local_step = if building.sges != 0 { local.to(building.addr, building.length) } else { (0, 0) };
    let remote_step = if is_remote != 0 { remote.to(building.remote_addr, bytes) } else { (0, 0) };
    let told = Told::of(building.low | building.remote_addr, local_step, remote_step);
    let fits = 1 - (max_inline.wrapping_sub(bytes) >> 63);
    batch.last = [local.at, local.behind, remote.at, remote.behind];
    batch.entries = batch.entries.wrapping_add(1);
    batch.signalled = batch.signalled.wrapping_add(signalled);
    batch.inline = batch.inline.wrapping_add(inline);
    batch.bytes = batch.bytes.wrapping_add(bytes);
    batch.sges = batch.sges.wrapping_add(building.sges);
    batch.details[detail::WRS] += 1;
    batch.details[detail::UNALIGNED_64] += told.get(Told::UNALIGNED_64) as u32;
    batch.details[detail::UNALIGNED_4096] += told.get(Told::UNALIGNED_4096) as u32;
    batch.details[detail::ODD_LENGTHS] += (1 - is_zero(bytes & 63)) as u32;
    batch.details[detail::REMOTE_WRS] += is_remote as u32;
    batch.details[detail::LOCAL_SAME] += told.get(Told::LOCAL_SAME) as u32;
    batch.details[detail::LOCAL_SEQUENTIAL] += told.get(Told::LOCAL_SEQUENTIAL) as u32;
    batch.details[detail::REMOTE_SAME] += told.get(Told::REMOTE_SAME) as u32;
    batch.details[detail::REMOTE_SEQUENTIAL] += told.get(Told::REMOTE_SEQUENTIAL) as u32;
    batch.details[detail::MERGEABLE] += told.get(Told::MERGEABLE) as u32;
    batch.details[detail::COULD_INLINE] += (fits & (1 - inline) & GO_INLINE >> opcode & 1) as u32;
    // SAFETY: within the map value.
    unsafe {
        let by_opcode = (&raw mut batch.opcodes).cast::<u32>().add(opcode);
        *by_opcode = (*by_opcode).wrapping_add(1);
        let by_size = (&raw mut batch.sizes).cast::<u32>().add(bounded::<31>(size_class(bytes)));
        *by_size = (*by_size).wrapping_add(1);
    }
}

/// Entry of `wr_complete(qp)`.
#[inline(always)]
pub fn complete_enter(ctx: &ProbeContext) {
    at_entry(ctx, |subject, _, counters| {
        // SAFETY: a live map value.
        let weight = unsafe { (*counters).batch.open };
        if weight != 0 {
            completed(subject, counters, argument(ctx, 0), weight);
        }
    });
}

#[inline(always)]
fn completed(subject: Subject, counters: *mut ObjectCounters, object: u64, weight: u64) {
    settle(subject, counters);
    data::add(counters, qp::POST_CALLS, weight);
    data::stands_for(counters, weight);
    add(counters, weight);
    // SAFETY: live map values, and this thread's own memory.
    unsafe {
        let batch = &mut (*counters).batch;
        batch.open = 0;
        (*counters).counters[qp::UNSIGNALLED_RUN] = batch.run;
        (*counters).counters[qp::LONGEST_UNSIGNALLED] = batch.longest;
        (*counters).last = batch.last;
        let Some(thread) = data::thread(subject, true) else {
            data::add(counters, qp::CUT, 1);
            return;
        };
        (*thread).post.object = object;
        (*thread).post.weight = weight;
        let every = weight == 1;
        let now = gap::Post { every, signalled: false, makes_entries: true }.at(subject, thread);
        if !every {
            return;
        }
        let (entries, signalled) = (batch.entries, batch.signalled);
        let Some(ring) = under_way::ring(subject, counters, source::FUNCTION, weight, true) else { return };
        under_way::post_built(ring, entries, signalled, now);
        under_way::note_outstanding(counters, ring);
    }
}

/// Return of `wr_complete`: when it fails, nothing was posted.
#[inline(always)]
pub fn complete_leave(ctx: &RetProbeContext) {
    let Some((subject, meter)) = meter::hit(hits::POST_RETURNS) else { return };
    if let Some(thread) = data::thread(subject, false) {
        // SAFETY: this thread's own memory.
        let (object, weight) =
            unsafe { (core::mem::take(&mut (*thread).post.object), (*thread).post.weight) };
        let result = ctx.ret::<u64>() as i32;
        if object != 0
            && result != 0
            && let Some(counters) = data::counters(subject, kind::QP, object, source::FUNCTION)
        {
            // SAFETY: a live map value.
            let (number, unposted) = unsafe { ((*counters).number, (*counters).batch.entries) };
            let (by, code) = (source::FUNCTION, result.unsigned_abs());
            let kind = failures::Kind { by, number, what: what::POST, code, weight };
            // Which of the batch was one too many is not told.
            let refusal = Refusal { kind, at: 0, chain: 0, posted: 0, unposted, caller: Caller::of(ctx) };
            failures::refused(subject, Some(thread), refusal);
            refused(subject, counters, weight);
        }
    }
    meter.end();
}

/// A batch was refused: it is taken back.
#[inline(always)]
fn refused(subject: Subject, counters: *mut ObjectCounters, weight: u64) {
    data::add(counters, qp::POST_FAILED, weight);
    add(counters, weight.wrapping_neg());
    if weight != 1 {
        return;
    }
    let Some(ring) = under_way::ring(subject, counters, source::FUNCTION, weight, true) else { return };
    // SAFETY: a live map value.
    let (entries, signalled) = unsafe { ((*counters).batch.entries, (*counters).batch.signalled) };
    under_way::take_back_built(ring, entries, signalled);
}

/// Entry of `wr_abort(qp)`.
#[inline(always)]
pub fn abort(ctx: &ProbeContext) {
    in_progress(ctx, |subject, counters| {
        // SAFETY: as in `start`.
        let (weight, signalled) =
            unsafe { (core::mem::take(&mut (*counters).batch.open), (*counters).batch.signalled) };
        data::add(counters, qp::ABORTED, weight);
        if weight == 1
            && signalled != 0
            && let Some(ring) = under_way::ring(subject, counters, source::FUNCTION, weight, true)
        {
            under_way::forget_overwritten(ring, signalled);
        }
    });
}

/// Adds the batch to the counters so many times; -1 takes it back.
#[inline(always)]
fn add(counters: *mut ObjectCounters, sign: u64) {
    // SAFETY: a live map value.
    unsafe {
        let batch = &(*counters).batch;
        let (signalled, inline, bytes, cut) = (batch.signalled, batch.inline, batch.bytes, batch.cut);
        let more_sges = batch.sges.wrapping_sub(batch.entries);
        data::add_sends(counters, data::Sends { signalled, inline, bytes, more_sges }, sign);
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
        let mut index = 0;
        while index < BATCH_DETAILS {
            let n = (*counters).batch.details[index] as u64;
            data::add_detail(counters, index, n.wrapping_mul(sign));
            index += 1;
        }
    }
}
