//! The extended posting interface: `ibv_wr_start`, one call per request and per attribute, `ibv_wr_complete`.
//!
//! Requests are built in the queue's own slots behind the posted ones and become posted all at once. A mistake is
//! remembered and reported by `ibv_wr_complete`, which then posts nothing, as the interface demands.

use super::check;
use super::digest::Digest;
use super::send;
use crate::abi::{consts::*, *};
use crate::device::process::Process;
use crate::engine::pacing::{self, CallCost};
use crate::engine::requester;
use crate::object::qp::{Qp, Requester};
use crate::object::qp_state::{SendPost, send_post};
use crate::object::send_queue::{PENDING, SendWqe};
use crate::sites;
use libc::{c_int, c_void};
use probe_common::site::Queue;

/// Fills in every slot of the table.
pub fn install(ex: &mut ibv_qp_ex) {
    ex.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    ex.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    ex.wr_bind_mw = Some(wr_bind_mw);
    ex.wr_local_inv = Some(wr_local_inv);
    ex.wr_rdma_read = Some(wr_rdma_read);
    ex.wr_rdma_write = Some(wr_rdma_write);
    ex.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    ex.wr_send = Some(wr_send);
    ex.wr_send_imm = Some(wr_send_imm);
    ex.wr_send_inv = Some(wr_send_inv);
    ex.wr_send_tso = Some(wr_send_tso);
    ex.wr_set_ud_addr = Some(wr_set_ud_addr);
    ex.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    ex.wr_set_inline_data = Some(wr_set_inline_data);
    ex.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    ex.wr_set_sge = Some(wr_set_sge);
    ex.wr_set_sge_list = Some(wr_set_sge_list);
    ex.wr_start = Some(wr_start);
    ex.wr_complete = Some(sites::rnic_emu_wr_complete);
    ex.wr_abort = Some(wr_abort);
    ex.wr_atomic_write = Some(wr_atomic_write);
}

/// # Safety
/// `ex` is a live extended QP of ours.
unsafe fn with(ex: *mut ibv_qp_ex, f: impl FnOnce(&Qp, &mut Requester) -> Result<(), i32>) {
    // SAFETY: the caller's promise.
    let qp = unsafe { Qp::of(ex.cast()) };
    if let Some(r) = qp.send.lock().as_mut()
        && r.queue.stage_error == 0
        && let Err(errno) = f(qp, r)
    {
        r.queue.stage_error = errno;
    }
}

/// # Safety
/// `ex` is a live extended QP of ours, between start and complete.
unsafe fn begin(ex: *mut ibv_qp_ex, opcode: u32, fill: impl FnOnce(&mut SendWqe) -> Result<(), i32>) {
    // SAFETY: the caller's promise.
    let (wr_id, flags) = unsafe { ((*ex).wr_id, (*ex).wr_flags) };
    // SAFETY: as above.
    unsafe {
        with(ex, |qp, r| {
            if !check::opcode_fits(r.fixed.kind, opcode) {
                return Err(libc::EINVAL);
            }
            send::room(qp, r, r.queue.staged)?;
            let mut wqe = SendWqe {
                wr_id,
                opcode: opcode as u8,
                // Whether data is inline is said by the call that sets it.
                flags: (flags & !IBV_SEND_INLINE) as u8,
                status: PENDING,
                ..SendWqe::default()
            };
            fill(&mut wqe)?;
            let counter = r.queue.posted + r.queue.staged;
            *r.queue.wqe_mut(counter) = wqe;
            r.queue.staged += 1;
            Ok(())
        });
    }
}

/// # Safety
/// As [`begin`].
unsafe fn amend(ex: *mut ibv_qp_ex, f: impl FnOnce(&mut Requester, u64) -> Result<(), i32>) {
    // SAFETY: the caller's promise.
    unsafe {
        with(ex, |_, r| {
            if r.queue.staged == 0 {
                return Err(libc::EINVAL);
            }
            let counter = r.queue.posted + r.queue.staged - 1;
            f(r, counter)
        });
    }
}

unsafe extern "C" fn wr_start(ex: *mut ibv_qp_ex) {
    // SAFETY: a live extended QP of ours.
    let qp = unsafe { Qp::of(ex.cast()) };
    qp.staging.acquire();
    if let Some(r) = qp.send.lock().as_mut() {
        r.queue.staged = 0;
        let usable = Process::is_current(r.fixed.process);
        let refused = send_post(qp.state()) == SendPost::Refused;
        r.queue.stage_error = if !usable {
            libc::EIO
        } else if refused {
            libc::EINVAL
        } else {
            0
        };
    }
}

/// Posts what was built since `ibv_wr_start`.
///
/// # Safety
/// As `ibv_wr_complete`.
pub unsafe extern "C" fn wr_complete(ex: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a live extended QP of ours.
    let qp = unsafe { Qp::of(ex.cast()) };
    let mut digest = Digest::new(ex as usize, Queue::Send, true);
    let mut errno = libc::EIO;
    let mut process = None;
    let mut cost = CallCost::NONE;
    if let Some(r) = qp.send.lock().as_mut() {
        let start_ns = pacing::call_begins(r.fixed.process);
        errno = r.queue.stage_error;
        if errno == 0 {
            let first = r.queue.posted;
            for counter in first..first + r.queue.staged {
                digest.send(r.queue.wqe(counter), r.queue.sig_all, &r.queue.stats);
            }
            r.queue.posted += r.queue.staged;
        }
        r.queue.staged = 0;
        digest.count_send(&r.queue.stats);
        let before = r.queue.posted - digest.n;
        digest.tell_built(&mut r.queue, before);
        cost = pacing::posted(qp, r, before, start_ns);
        process = Some(r.fixed.process);
        requester::pump(qp, r);
    }
    qp.staging.release();
    if let Some(process) = process.filter(|p| Process::is_current(p)) {
        process.timers.run_urgent(process);
    }
    cost.spend();
    digest.tell_failure(errno, 0);
    errno
}

unsafe extern "C" fn wr_abort(ex: *mut ibv_qp_ex) {
    // SAFETY: a live extended QP of ours.
    let qp = unsafe { Qp::of(ex.cast()) };
    if let Some(r) = qp.send.lock().as_mut() {
        r.queue.staged = 0;
    }
    qp.staging.release();
}

macro_rules! builders {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) = $opcode:ident |$wqe:ident| $body:expr;)+) => {
        $(unsafe extern "C" fn $name(ex: *mut ibv_qp_ex $(, $arg: $kind)*) {
            // SAFETY: the program calls this between start and complete of a live extended QP of ours.
            unsafe {
                begin(ex, $opcode, |$wqe| $body);
            }
        })+
    };
}

builders! {
    fn wr_rdma_write(rkey: u32, addr: u64) = IBV_WR_RDMA_WRITE |w| remote(w, rkey, addr);
    fn wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = IBV_WR_RDMA_WRITE_WITH_IMM |w| {
        w.imm = imm;
        remote(w, rkey, addr)
    };
    fn wr_rdma_read(rkey: u32, addr: u64) = IBV_WR_RDMA_READ |w| remote(w, rkey, addr);
    fn wr_send() = IBV_WR_SEND |_w| Ok(());
    fn wr_send_imm(imm: u32) = IBV_WR_SEND_WITH_IMM |w| {
        w.imm = imm;
        Ok(())
    };
    fn wr_send_inv(rkey: u32) = IBV_WR_SEND_WITH_INV |w| {
        w.imm = rkey;
        Ok(())
    };
    fn wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = IBV_WR_ATOMIC_CMP_AND_SWP |w| {
        (w.compare_add, w.swap) = (compare, swap);
        remote(w, rkey, addr)
    };
    fn wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = IBV_WR_ATOMIC_FETCH_AND_ADD |w| {
        w.compare_add = add;
        remote(w, rkey, addr)
    };
    fn wr_local_inv(rkey: u32) = IBV_WR_LOCAL_INV |w| {
        w.rkey = rkey;
        Ok(())
    };
    fn wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = IBV_WR_BIND_MW
        |w| send::binding(w, mw, rkey, &*info);
}

fn remote(wqe: &mut SendWqe, rkey: u32, addr: u64) -> Result<(), i32> {
    (wqe.rkey, wqe.remote_addr) = (rkey, addr);
    Ok(())
}

unsafe extern "C" fn wr_send_tso(ex: *mut ibv_qp_ex, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) {
    // SAFETY: as in the builders.
    unsafe { with(ex, |_, _| Err(libc::EOPNOTSUPP)) };
}

unsafe extern "C" fn wr_atomic_write(ex: *mut ibv_qp_ex, _rkey: u32, _addr: u64, _data: *const c_void) {
    // SAFETY: as in the builders.
    unsafe { with(ex, |_, _| Err(libc::EOPNOTSUPP)) };
}

unsafe extern "C" fn wr_set_xrc_srqn(ex: *mut ibv_qp_ex, _srqn: u32) {
    // SAFETY: as in the builders.
    unsafe { with(ex, |_, _| Err(libc::EOPNOTSUPP)) };
}

unsafe extern "C" fn wr_set_ud_addr(ex: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as in the builders; the handle is live.
    unsafe {
        amend(ex, |r, counter| {
            if ah.is_null() || r.fixed.kind != IBV_QPT_UD {
                return Err(libc::EINVAL);
            }
            send::datagram(r.queue.wqe_mut(counter), ah, qpn, qkey);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(ex: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as in the builders.
    unsafe { amend(ex, |r, counter| set_sges(r, counter, &[ibv_sge { addr, length, lkey }])) };
}

unsafe extern "C" fn wr_set_sge_list(ex: *mut ibv_qp_ex, n: usize, list: *const ibv_sge) {
    // SAFETY: as in the builders; the list has `n` entries.
    unsafe {
        let sges = if n == 0 { &[][..] } else { std::slice::from_raw_parts(list, n) };
        amend(ex, |r, counter| set_sges(r, counter, sges));
    }
}

fn set_sges(r: &mut Requester, counter: u64, sges: &[ibv_sge]) -> Result<(), i32> {
    if sges.len() > r.queue.cap.max_send_sge as usize {
        return Err(libc::ENOMEM);
    }
    r.queue.sges_mut(counter)[..sges.len()].copy_from_slice(sges);
    let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    let wqe = r.queue.wqe_mut(counter);
    wqe.n_sge = sges.len() as u16;
    wqe.len = u32::try_from(total).unwrap_or(u32::MAX);
    wqe.inline = false;
    Ok(())
}

unsafe extern "C" fn wr_set_inline_data(ex: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: as in the builders; the buffer has `length` bytes.
    unsafe { amend(ex, |r, counter| set_inline(r, counter, &[one])) };
}

unsafe extern "C" fn wr_set_inline_data_list(ex: *mut ibv_qp_ex, n: usize, list: *const ibv_data_buf) {
    // SAFETY: as in the builders; the list has `n` entries.
    unsafe {
        let buffers = if n == 0 { &[][..] } else { std::slice::from_raw_parts(list, n) };
        amend(ex, |r, counter| set_inline(r, counter, buffers));
    }
}

/// # Safety
/// The buffers are readable for their lengths.
unsafe fn set_inline(r: &mut Requester, counter: u64, buffers: &[ibv_data_buf]) -> Result<(), i32> {
    let total = buffers.iter().try_fold(0usize, |sum, b| sum.checked_add(b.length)).ok_or(libc::ENOMEM)?;
    if total > r.queue.cap.max_inline_data as usize {
        return Err(libc::ENOMEM);
    }
    if !check::may_be_inline(u32::from(r.queue.wqe(counter).opcode)) {
        return Err(libc::EINVAL);
    }
    let mut room = r.queue.inline_mut(counter);
    for b in buffers {
        let (here, rest) = room.split_at_mut(b.length);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(b.addr.cast_const().cast(), here.as_mut_ptr(), here.len()) };
        room = rest;
    }
    let wqe = r.queue.wqe_mut(counter);
    wqe.n_sge = buffers.len().min(usize::from(u16::MAX)) as u16;
    wqe.len = total as u32;
    wqe.compare_add = buffers.first().map_or(0, |b| b.addr as u64);
    wqe.inline = true;
    Ok(())
}
