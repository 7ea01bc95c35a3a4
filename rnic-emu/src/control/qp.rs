//! Queue pairs: creation, transitions, queries, destruction.

use super::{events, or_null, status};
use crate::abi::{consts::*, *};
use crate::device::{attr, context::DeviceContext, gid};
use crate::engine::{requester, retire};
use crate::object::cq::Cq;
use crate::object::pd::Pd;
use crate::object::qp::{Fixed, Qp, Requester, Responder};
use crate::object::recv_ring::RecvRing;
use crate::object::send_queue::SendQueue;
use crate::object::srq::Srq;
use crate::object::{qp_attr, qp_state};
use crate::post::wr_api;
use crate::stats::ProcessCounter;
use libc::c_int;
use std::sync::atomic::Ordering::*;

/// Operations the extended posting table has.
const SEND_OPS: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// `ibv_create_qp`.
///
/// # Safety
/// A live PD of ours and a valid attribute.
pub unsafe fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    or_null(unsafe { create(pd, &mut *init, false) })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// A live context of ours and a valid attribute.
pub unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    let a = unsafe { &mut *attr };
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let flags = if a.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 { a.create_flags } else { 0 };
    let ops = if a.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 { a.send_ops_flags } else { 0 };
    if a.comp_mask & !known != 0 || flags != 0 || ops & !SEND_OPS != 0 || !ops_fit(a.qp_type, ops) {
        return or_null(Err(libc::EOPNOTSUPP));
    }
    if a.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || a.pd.is_null() {
        return or_null(Err(libc::EINVAL));
    }
    let extended = a.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    // The extended attribute begins with the fields of the plain one.
    // SAFETY: the caller's promise.
    or_null(unsafe { create(a.pd, &mut *attr.cast::<ibv_qp_init_attr>(), extended) })
}

/// Whether a QP type can do all the operations asked for.
fn ops_fit(kind: u32, ops: u64) -> bool {
    let sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let local = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
    match kind {
        IBV_QPT_UC => ops & !(sends | writes | local) == 0,
        IBV_QPT_UD => ops & !sends == 0,
        _ => true,
    }
}

/// # Safety
/// As [`create_qp`].
unsafe fn create(
    ibv_pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    extended: bool,
) -> Result<*mut ibv_qp, i32> {
    // SAFETY: the caller's promise.
    let (pd, ctx) = unsafe { (Pd::of(ibv_pd), DeviceContext::of((*ibv_pd).context)) };
    let process = ctx.alive()?;
    if !matches!(init.qp_type, IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD) {
        return Err(libc::EOPNOTSUPP);
    }
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    let cap = granted(&init.cap, !init.srq.is_null())?;
    process.wire.ensure_helper(process)?;
    // SAFETY: the caller's promise.
    let (send_cq, recv_cq) = unsafe { (Cq::of(init.send_cq), Cq::of(init.recv_cq)) };
    // SAFETY: null, or a live SRQ of ours, which outlives the QP.
    let srq = unsafe { init.srq.cast::<Srq>().as_ref() };
    let (qp, qpn) = process.qps.claim()?;
    let fixed =
        Fixed { qpn, kind: init.qp_type, pd: pd.id, device: ctx.device as u8, process, send_cq, recv_cq };
    let stats = process.stats.qp(crate::object::qp_table::index_of(qpn));
    stats.open(qpn, ctx.device, init.qp_type, send_cq.index, recv_cq.index);
    // SAFETY: the QP is vacant: no program sees it, and a stale packet only looks at what its locks guard.
    let ex = unsafe { &mut *qp.ex.get() };
    // SAFETY: pointers, integers and optional function pointers; all zeroes is a valid value.
    *ex = unsafe { std::mem::zeroed() };
    ex.qp_base.context = pd.ibv.context;
    ex.qp_base.qp_context = init.qp_context;
    ex.qp_base.pd = ibv_pd;
    ex.qp_base.send_cq = init.send_cq;
    ex.qp_base.recv_cq = init.recv_cq;
    ex.qp_base.srq = init.srq;
    ex.qp_base.handle = qpn;
    ex.qp_base.qp_num = qpn;
    ex.qp_base.qp_type = init.qp_type;
    if extended {
        wr_api::install(ex);
    }
    qp.send_freed.store(0, Release);
    qp.recv_freed.store(0, Release);
    qp.async_taken.store(0, Release);
    qp.timer.store(u64::MAX, Release);
    qp.context.store(std::ptr::from_ref(ctx).cast_mut(), Release);
    qp.set_state(IBV_QPS_RESET);
    let scratch = match srq {
        Some(srq) => srq.queue.lock().ring.max_sge(),
        None => cap.max_recv_sge,
    };
    *qp.send.lock() = Some(Requester {
        queue: SendQueue::new(cap, init.sq_sig_all != 0, stats),
        fixed,
        attr: ibv_qp_attr::default(),
        peer_device: None,
        paced: None,
    });
    *qp.recv.lock() = Some(Responder {
        ring: RecvRing::new(cap.max_recv_wr, cap.max_recv_sge),
        srq,
        fixed,
        attr: ibv_qp_attr::default(),
        expected_psn: 0,
        partial: None,
        gap_reported: None,
        last_wqe_raised: false,
        established: false,
        scratch: vec![ibv_sge::default(); scratch as usize].into_boxed_slice(),
        stats,
    });
    qp.set_number(qpn);
    pd.users.fetch_add(1, AcqRel);
    send_cq.users.fetch_add(1, AcqRel);
    recv_cq.users.fetch_add(1, AcqRel);
    if let Some(srq) = srq {
        srq.users.fetch_add(1, AcqRel);
    }
    init.cap = cap;
    process.stats.add(ProcessCounter::QpsCreated, 1);
    Ok(std::ptr::from_ref(qp).cast_mut().cast())
}

/// Capacities as granted: what was asked for.
///
/// # Errors
/// EINVAL beyond the device's limits.
fn granted(wanted: &ibv_qp_cap, has_srq: bool) -> Result<ibv_qp_cap, i32> {
    let too_much = wanted.max_send_wr > attr::MAX_WR
        || wanted.max_recv_wr > attr::MAX_WR
        || wanted.max_send_sge > attr::MAX_SGE
        || wanted.max_recv_sge > attr::MAX_SGE
        || wanted.max_inline_data > attr::MAX_INLINE;
    if too_much {
        return Err(libc::EINVAL);
    }
    let mut cap = *wanted;
    if has_srq {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    Ok(cap)
}

/// `ibv_qp_to_qp_ex`: null with EINVAL for a QP without the extended table.
///
/// # Safety
/// A live QP of ours.
pub unsafe fn to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller's promise.
    let extended = unsafe { Qp::of(qp) }.is_extended();
    or_null(if extended { Ok(qp.cast()) } else { Err(libc::EOPNOTSUPP) })
}

/// `ibv_modify_qp`.
///
/// # Safety
/// A live QP of ours and a valid attribute.
pub unsafe fn modify_qp(ibv: *mut ibv_qp, new: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let (qp, ctx, new) = unsafe { (Qp::of(ibv), DeviceContext::of((*ibv).context), &*new) };
    let done = ctx.alive().and_then(|process| {
        modify(qp, new, mask)?;
        process.stats.add(ProcessCounter::QpsModified, 1);
        process.timers.run_urgent(process);
        Ok(())
    });
    if done.is_ok() && mask & IBV_QP_STATE != 0 {
        // SAFETY: the program's view; only this call changes the field.
        unsafe { (*ibv).state = new.qp_state };
    }
    status(done)
}

fn modify(qp: &'static Qp, new: &ibv_qp_attr, mask: c_int) -> Result<(), i32> {
    let mut send = qp.send.lock();
    let mut recv = qp.recv.lock();
    let (Some(r), Some(responder)) = (send.as_mut(), recv.as_mut()) else { return Err(libc::EINVAL) };
    let from = qp.state();
    if mask & IBV_QP_CUR_STATE != 0 && new.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    let to = if mask & IBV_QP_STATE != 0 { new.qp_state } else { from };
    qp_state::check(r.fixed.kind, from, to, mask)?;
    qp_attr::check(new, mask)?;
    qp_attr::take_over(&mut r.attr, new, mask);
    qp_attr::take_over(&mut responder.attr, new, mask);
    if mask & IBV_QP_AV != 0 {
        r.peer_device = gid::to_device(&new.ah_attr.grh.dgid);
    }
    if mask & IBV_QP_RQ_PSN != 0 {
        responder.expected_psn = responder.attr.rq_psn;
    }
    if mask & IBV_QP_SQ_PSN != 0 {
        r.queue.next_psn = r.attr.sq_psn;
    }
    match to {
        IBV_QPS_RESET => reset(qp, r, responder),
        IBV_QPS_RTS if from == IBV_QPS_RTR => {
            r.queue.retries_left = r.attr.retry_cnt;
            r.queue.rnr_left = r.attr.rnr_retry;
        }
        IBV_QPS_SQD => {
            r.queue.draining = new.en_sqd_async_notify != 0 && mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0;
        }
        _ => {}
    }
    qp.set_state(to);
    r.queue.stats.state(to, r.attr.dest_qp_num);
    drop(recv);
    match to {
        IBV_QPS_ERR => retire::flush_both(qp, r),
        IBV_QPS_RTS | IBV_QPS_SQD => {
            requester::pump(qp, r);
        }
        // Connect now rather than at the first request, where it would cost the program time it measures.
        IBV_QPS_RTR if r.fixed.kind != IBV_QPT_UD => requester::connect(r),
        _ => {}
    }
    Ok(())
}

/// Back to RESET: both queues empty, their completions taken out of the CQs.
fn reset(qp: &'static Qp, r: &mut Requester, responder: &mut Responder) {
    forget_completions(qp, &r.fixed);
    if let Some(pacer) = &r.fixed.process.pacer {
        pacer.leave(r);
    }
    r.queue.reset();
    r.attr = ibv_qp_attr::default();
    r.peer_device = None;
    responder.ring.clear();
    responder.attr = ibv_qp_attr::default();
    responder.expected_psn = 0;
    responder.partial = None;
    responder.gap_reported = None;
    responder.last_wqe_raised = false;
    responder.established = false;
    qp.send_freed.store(0, Release);
    qp.recv_freed.store(0, Release);
}

fn forget_completions(qp: &Qp, fixed: &Fixed) {
    fixed.send_cq.ring.lock().forget(qp);
    if !std::ptr::eq(fixed.send_cq, fixed.recv_cq) {
        fixed.recv_cq.ring.lock().forget(qp);
    }
}

/// `ibv_query_qp`.
///
/// # Safety
/// A live QP of ours and places for the answers.
pub unsafe fn query_qp(
    ibv: *mut ibv_qp,
    out: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let qp = unsafe { Qp::of(ibv) };
    let send = qp.send.lock();
    let Some(r) = send.as_ref() else { return libc::EINVAL };
    let mut a = r.attr;
    a.qp_state = qp.state();
    a.cur_qp_state = qp.state();
    a.cap = r.queue.cap;
    a.sq_psn = r.queue.next_psn;
    a.sq_draining = u8::from(qp.state() == IBV_QPS_SQD && r.queue.retired != r.queue.sent);
    if let Some(responder) = qp.recv.lock().as_ref() {
        a.rq_psn = responder.expected_psn;
    }
    let sq_sig_all = c_int::from(r.queue.sig_all);
    // SAFETY: the caller's promise; the program's view of the QP is alive. Real libraries also renew `state` here.
    unsafe {
        out.write(a);
        (*ibv).state = a.qp_state;
        init.write(ibv_qp_init_attr {
            qp_context: (*ibv).qp_context,
            send_cq: (*ibv).send_cq,
            recv_cq: (*ibv).recv_cq,
            srq: (*ibv).srq,
            cap: a.cap,
            qp_type: (*ibv).qp_type,
            sq_sig_all,
        });
    }
    0
}

/// `ibv_destroy_qp`: waits for its events to be acknowledged.
///
/// # Safety
/// A live QP of ours that nobody uses any more.
pub unsafe fn destroy_qp(ibv: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's promise.
    let (qp, ctx) = unsafe { (Qp::of(ibv), DeviceContext::of((*ibv).context)) };
    let Ok(process) = ctx.alive() else { return libc::EIO };
    let mut send = qp.send.lock();
    let mut recv = qp.recv.lock();
    let (Some(mut r), Some(responder)) = (send.take(), recv.take()) else { return libc::EINVAL };
    if let Some(pacer) = &process.pacer {
        pacer.leave(&mut r);
    }
    let qpn = r.fixed.qpn;
    // From here on packets and completions for this number find nobody.
    qp.set_number(0);
    forget_completions(qp, &r.fixed);
    drop((send, recv));
    ctx.async_events.forget(ibv as usize);
    // SAFETY: the QP's memory stays.
    unsafe {
        events::wait_acknowledged(&raw mut (*ibv).events_completed, qp.async_taken.load(Acquire));
        Pd::of((*ibv).pd).users.fetch_sub(1, AcqRel);
    }
    r.fixed.send_cq.users.fetch_sub(1, AcqRel);
    r.fixed.recv_cq.users.fetch_sub(1, AcqRel);
    if let Some(srq) = responder.srq {
        // A receive taken for half a message is lost with the QP; its slot is not.
        if responder.partial.is_some_and(|p| p.taken.is_some()) {
            srq.freed.fetch_add(1, AcqRel);
        }
        srq.users.fetch_sub(1, AcqRel);
    }
    process.stats.fold_qp(r.queue.stats);
    process.stats.add(ProcessCounter::QpsDestroyed, 1);
    qp.context.store(std::ptr::null_mut(), Release);
    process.qps.release(qp, qpn);
    0
}
