//! The extended polling interface: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` and the readers.

use crate::abi::*;
use crate::device::context::DeviceContext;
use crate::engine::pacing;
use crate::object::cq::{BATCH, Cq, Cqe, Poller};
use crate::sites;
use crate::stats::CqCounter;
use crate::sys::clock;
use crate::told;
use libc::{c_int, c_void};
use probe_common::site::{FOUND_BEFORE, Stream};

/// Fills in the table.
pub fn install(ex: &mut ibv_cq_ex) {
    ex.start_poll = Some(sites::rnic_emu_start_poll);
    ex.next_poll = Some(sites::rnic_emu_next_poll);
    ex.end_poll = Some(sites::rnic_emu_end_poll);
    ex.read_opcode = Some(read_opcode);
    ex.read_vendor_err = Some(read_vendor_err);
    ex.read_byte_len = Some(read_byte_len);
    ex.read_imm_data = Some(read_imm_data);
    ex.read_qp_num = Some(read_qp_num);
    ex.read_src_qp = Some(read_src_qp);
    ex.read_wc_flags = Some(read_wc_flags);
    ex.read_slid = Some(read_slid);
    ex.read_sl = Some(read_sl);
    ex.read_dlid_path_bits = Some(read_dlid_path_bits);
    ex.read_completion_ts = Some(read_completion_ts);
    ex.read_cvlan = Some(read_cvlan);
    ex.read_flow_tag = Some(read_flow_tag);
    ex.read_tm_info = Some(read_tm_info);
    ex.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Begins a poll and stands at its first completion; ENOENT if there is none.
///
/// # Safety
/// As `ibv_start_poll`.
pub unsafe extern "C" fn start_poll(ex: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { attr.as_ref() }.is_some_and(|a| a.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    let (cq, ctx) = unsafe { (Cq::of(ex.cast()), DeviceContext::of((*ex).base.context)) };
    let Ok(process) = ctx.alive() else { return libc::EIO };
    process.wire.look(process);
    let start = process.run_due_on_poll();
    cq.poller.acquire();
    // SAFETY: the lock was just taken.
    let poller = unsafe { cq.poller.held_value() };
    (poller.batched, poller.taken, poller.start_ns) = (0, 0, start);
    let found = advance(ex, cq, poller);
    let ring = cq.ring.lock();
    ring.stats.add(CqCounter::PollCalls, 1);
    if found {
        return 0;
    }
    ring.stats.add(CqCounter::EmptyPolls, 1);
    drop(ring);
    cq.poller.release();
    told::polled(ex.cast(), 0, std::ptr::null(), 0);
    libc::ENOENT
}

/// Steps to the next completion; ENOENT if there is none.
///
/// # Safety
/// As `ibv_next_poll`, between a successful start and its end.
pub unsafe extern "C" fn next_poll(ex: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise: it holds the poller since `start_poll`.
    let (cq, poller) = unsafe { (Cq::of(ex.cast()), Cq::of(ex.cast()).poller.held_value()) };
    if advance(ex, cq, poller) { 0 } else { libc::ENOENT }
}

/// Ends a poll.
///
/// # Safety
/// As `ibv_end_poll`, after a successful start.
pub unsafe extern "C" fn end_poll(ex: *mut ibv_cq_ex) {
    // SAFETY: as above.
    let (cq, poller) = unsafe { (Cq::of(ex.cast()), Cq::of(ex.cast()).poller.held_value()) };
    report(ex, poller);
    poller.current = None;
    let (start, taken) = (poller.start_ns, poller.taken);
    cq.poller.release();
    // SAFETY: a live CQ of a device that is open.
    let ctx = unsafe { DeviceContext::of((*ex).base.context) };
    if let Ok(process) = ctx.alive() {
        pacing::polled(process, start, taken).spend();
    }
}

fn advance(ex: *mut ibv_cq_ex, cq: &Cq, poller: &mut Poller) -> bool {
    let mut ring = cq.ring.lock();
    let Some(cqe) = ring.pop() else { return false };
    ring.stats.add(CqCounter::Polled, 1);
    drop(ring);
    poller.taken += 1;
    if poller.batched == BATCH {
        report(ex, poller);
    }
    if let Some(place) = poller.batch.get_mut(poller.batched) {
        *place = cqe.wc;
        poller.found_ns[poller.batched] = if told::every(Stream::Finds) { clock::now_ns() } else { 0 };
        poller.batched += 1;
    }
    // SAFETY: the program's view of a live CQ of ours; only the thread that polls reads these fields.
    unsafe {
        (*ex).status = cqe.wc.status;
        (*ex).wr_id = cqe.wc.wr_id;
    }
    poller.current = Some(cqe);
    true
}

fn report(ex: *mut ibv_cq_ex, poller: &mut Poller) {
    let n = std::mem::take(&mut poller.batched);
    if !told::every(Stream::Finds) {
        return told::polled(ex.cast(), n as i64, poller.batch.as_ptr(), 0);
    }
    let now = clock::now_ns();
    for (wc, found) in poller.batch[..n].iter_mut().zip(&poller.found_ns) {
        // Those that nobody asked about when they were found are taken to be found now.
        let before = if *found == 0 { 0 } else { now.saturating_sub(*found) };
        wc.imm_data = u32::try_from(before).unwrap_or(u32::MAX);
    }
    told::polled(ex.cast(), n as i64, poller.batch.as_ptr(), FOUND_BEFORE);
}

/// # Safety
/// `ex` is a live CQ of ours whose poller the caller holds.
unsafe fn current<T: Default>(ex: *mut ibv_cq_ex, f: impl FnOnce(&Cqe) -> T) -> T {
    // SAFETY: the caller's promise.
    let poller = unsafe { Cq::of(ex.cast()).poller.held_value() };
    poller.current.as_ref().map_or_else(T::default, f)
}

macro_rules! readers {
    ($(fn $name:ident -> $ret:ty = |$cqe:ident| $value:expr;)+) => {
        $(unsafe extern "C" fn $name(ex: *mut ibv_cq_ex) -> $ret {
            // SAFETY: the program calls this between start and end of a poll.
            unsafe { current(ex, |$cqe| $value) }
        })+
    };
}

readers! {
    fn read_opcode -> u32 = |c| c.wc.opcode;
    fn read_vendor_err -> u32 = |c| c.wc.vendor_err;
    fn read_byte_len -> u32 = |c| c.wc.byte_len;
    fn read_imm_data -> u32 = |c| c.wc.imm_data;
    fn read_qp_num -> u32 = |c| c.wc.qp_num;
    fn read_src_qp -> u32 = |c| c.wc.src_qp;
    fn read_wc_flags -> u32 = |c| c.wc.wc_flags;
    fn read_slid -> u32 = |c| u32::from(c.wc.slid);
    fn read_sl -> u8 = |c| c.wc.sl;
    fn read_dlid_path_bits -> u8 = |c| c.wc.dlid_path_bits;
    fn read_completion_ts -> u64 = |c| c.at_ns;
    fn read_completion_wallclock_ns -> u64 = |c| c.wall_ns;
    fn read_cvlan -> u16 = |_c| 0;
    fn read_flow_tag -> u32 = |_c| 0;
}

unsafe extern "C" fn read_tm_info(_ex: *mut ibv_cq_ex, _info: *mut c_void) {}
