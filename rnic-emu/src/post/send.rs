//! `ibv_post_send`.

use super::check;
use super::digest::Digest;
use crate::abi::{consts::*, *};
use crate::device::process::Process;
use crate::engine::pacing::{self, CallCost};
use crate::engine::requester;
use crate::object::ah::Ah;
use crate::object::qp::{Qp, Requester};
use crate::object::qp_state::{SendPost, send_post};
use crate::object::send_queue::{NOWHERE, PENDING, SendWqe};
use probe_common::site::Queue;
use std::sync::atomic::Ordering::*;

/// Posts a list of requests.
///
/// # Safety
/// As `ibv_post_send`: a live QP, a list of valid requests, a place for the bad one.
pub unsafe extern "C" fn post_send(
    ibv: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> libc::c_int {
    // SAFETY: the caller's promise.
    let qp = unsafe { Qp::of(ibv) };
    let mut digest = Digest::new(ibv as usize, Queue::Send, false);
    let extended = qp.is_extended();
    if extended {
        qp.staging.acquire();
    }
    // SAFETY: the caller's promise.
    let (errno, process, cost) = unsafe { post_list(qp, first, bad, &mut digest) };
    if extended {
        qp.staging.release();
    }
    if let Some(process) = process {
        process.timers.run_urgent(process);
    }
    cost.spend();
    // SAFETY: the caller's promise; written where the call fails.
    let bad_wr = if errno == 0 { 0 } else { unsafe { *bad as usize } };
    digest.tell_failure(errno, bad_wr);
    errno
}

/// # Safety
/// As [`post_send`].
unsafe fn post_list(
    qp: &'static Qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    digest: &mut Digest,
) -> (i32, Option<&'static Process>, CallCost) {
    let mut wr = first;
    let mut guard = qp.send.lock();
    let usable = guard.as_mut().filter(|r| Process::is_current(r.fixed.process));
    let Some(r) = usable else {
        // SAFETY: the caller's promise.
        unsafe { *bad = wr };
        digest.tell(wr as usize);
        return (libc::EIO, None, CallCost::NONE);
    };
    let start_ns = pacing::call_begins(r.fixed.process);
    let mut errno = 0;
    if send_post(qp.state()) == SendPost::Refused {
        errno = libc::EINVAL;
    }
    let (sig_all, before) = (r.queue.sig_all, r.queue.posted);
    while errno == 0 && !wr.is_null() {
        // SAFETY: the caller's promise.
        let request = unsafe { &*wr };
        // SAFETY: as above.
        errno = match unsafe { take(qp, r, request) } {
            Ok(()) => {
                let posted = r.queue.posted - 1;
                digest.send(r.queue.wqe(posted), sig_all, &r.queue.stats);
                wr = request.next;
                0
            }
            Err(e) => e,
        };
    }
    if errno != 0 {
        // SAFETY: the caller's promise.
        unsafe { *bad = wr };
    }
    digest.count_send(&r.queue.stats);
    digest.tell(first as usize);
    let cost = pacing::posted(qp, r, before, start_ns);
    requester::pump(qp, r);
    (errno, Some(r.fixed.process), cost)
}

/// Room for one more request behind `ahead` others not yet posted.
///
/// # Errors
/// ENOMEM when the queue is full.
pub fn room(qp: &Qp, r: &Requester, ahead: u64) -> Result<(), i32> {
    let used = (r.queue.posted + ahead).saturating_sub(qp.send_freed.load(Acquire));
    if used >= u64::from(r.queue.cap.max_send_wr) { Err(libc::ENOMEM) } else { Ok(()) }
}

/// # Safety
/// `wr` and what it points to are valid.
unsafe fn take(qp: &Qp, r: &mut Requester, wr: &ibv_send_wr) -> Result<(), i32> {
    let kind = r.fixed.kind;
    if !check::opcode_fits(kind, wr.opcode) {
        return Err(libc::EINVAL);
    }
    room(qp, r, 0)?;
    let n_sge = u32::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if n_sge > r.queue.cap.max_send_sge {
        return Err(libc::ENOMEM);
    }
    let counter = r.queue.posted;
    let mut wqe = SendWqe {
        wr_id: wr.wr_id,
        imm: wr.imm_data,
        opcode: wr.opcode as u8,
        flags: wr.send_flags as u8,
        n_sge: n_sge as u16,
        status: PENDING,
        ..SendWqe::default()
    };
    // SAFETY: which member of the union is valid follows from opcode and QP type, as checked above.
    unsafe { address(kind, wr, &mut wqe)? };
    let local = matches!(wr.opcode, IBV_WR_LOCAL_INV | IBV_WR_BIND_MW);
    let sges = if n_sge == 0 || local {
        &[][..]
    } else {
        // SAFETY: the list has `num_sge` entries.
        unsafe { std::slice::from_raw_parts(wr.sg_list, n_sge as usize) }
    };
    wqe.n_sge = sges.len() as u16;
    let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    wqe.len = u32::try_from(total).unwrap_or(u32::MAX);
    wqe.inline = wr.send_flags & IBV_SEND_INLINE != 0 && check::may_be_inline(wr.opcode);
    if wqe.inline {
        if total > u64::from(r.queue.cap.max_inline_data) {
            return Err(libc::ENOMEM);
        }
        let mut room = r.queue.inline_mut(counter);
        for s in sges {
            let (here, rest) = room.split_at_mut(s.length as usize);
            // SAFETY: the program's buffer has `length` bytes; inline data needs no registration.
            unsafe { std::ptr::copy_nonoverlapping(s.addr as *const u8, here.as_mut_ptr(), here.len()) };
            room = rest;
        }
    } else {
        r.queue.sges_mut(counter)[..sges.len()].copy_from_slice(sges);
    }
    *r.queue.wqe_mut(counter) = wqe;
    r.queue.posted += 1;
    Ok(())
}

/// # Safety
/// `wr` is a valid request of its opcode for a QP of this type.
unsafe fn address(kind: u32, wr: &ibv_send_wr, wqe: &mut SendWqe) -> Result<(), i32> {
    if kind == IBV_QPT_UD {
        // SAFETY: the caller's promise.
        let ud = unsafe { wr.wr.ud };
        if ud.ah.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: a live address handle of ours.
        unsafe { datagram(wqe, ud.ah, ud.remote_qpn, ud.remote_qkey) };
        return Ok(());
    }
    match wr.opcode {
        o if check::has_remote(o) => {
            // SAFETY: the caller's promise.
            let rdma = unsafe { wr.wr.rdma };
            (wqe.remote_addr, wqe.rkey) = (rdma.remote_addr, rdma.rkey);
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the caller's promise.
            let a = unsafe { wr.wr.atomic };
            (wqe.remote_addr, wqe.rkey) = (a.remote_addr, a.rkey);
            (wqe.compare_add, wqe.swap) = (a.compare_add, a.swap);
        }
        IBV_WR_LOCAL_INV => wqe.rkey = wr.imm_data,
        IBV_WR_BIND_MW => {
            let b = &wr.bind_mw;
            // SAFETY: a live window of ours, and a live region or null.
            unsafe { binding(wqe, b.mw, b.rkey, &b.bind_info)? };
        }
        _ => {}
    }
    Ok(())
}

/// Fills in a datagram's destination.
///
/// # Safety
/// `ah` is a live address handle of an emulated device.
pub unsafe fn datagram(wqe: &mut SendWqe, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller's promise.
    let ah = unsafe { Ah::of(ah) };
    wqe.remote_device = ah.device.unwrap_or(NOWHERE);
    wqe.remote_qpn = qpn;
    wqe.remote_qkey = qkey;
}

/// Fills in a window's binding.
///
/// # Errors
/// EINVAL without a window, or with a range but no region.
///
/// # Safety
/// `mw` is a live window of an emulated device or null; so is `info.mr` as a region.
pub unsafe fn binding(
    wqe: &mut SendWqe,
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<(), i32> {
    if mw.is_null() || info.mr.is_null() && info.length != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let (kind, old) = unsafe { ((*mw).kind, (*mw).rkey) };
    // SAFETY: the caller's promise.
    let region = if info.mr.is_null() { 0 } else { unsafe { (*info.mr).lkey } };
    wqe.remote_addr = info.addr;
    wqe.compare_add = info.length;
    wqe.swap = u64::from(old) << 32 | u64::from(region);
    wqe.imm = info.mw_access_flags;
    wqe.rkey = rkey;
    wqe.remote_device = kind as u8;
    // As the specification has it, the window carries the new key from now on.
    // SAFETY: the caller's promise.
    unsafe { (*mw).rkey = rkey };
    Ok(())
}
