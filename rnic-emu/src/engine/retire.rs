//! Completing requests: in order, once, and, after an error, all that are left as flushed.

use super::pacing::COMPLETE;
use crate::abi::{consts::*, ibv_wc};
use crate::object::cq::{Cqe, Frees};
use crate::object::qp::{Qp, Requester, Responder};
use crate::object::recv_ring::Taken;
use crate::object::send_queue::{PENDING, SendQueue};
use crate::stats::QpCounter;

/// Notes that a request is done. Its completion waits for its turn.
#[inline]
pub fn done(queue: &mut SendQueue, counter: u64, status: u32) {
    queue.wqe_mut(counter).status = status as u8;
}

/// Notes that a request failed; nothing behind it is sent any more.
pub fn fail(r: &mut Requester, counter: u64, status: u32) {
    done(&mut r.queue, counter, status);
    r.queue.halted = true;
    r.queue.sent = counter + 1;
    r.queue.part = 0;
}

/// Completes the oldest requests, as far as they are done and their time has come.
pub fn retire(qp: &'static Qp, r: &mut Requester) {
    while r.queue.retired < r.queue.sent {
        let counter = r.queue.retired;
        let wqe = r.queue.wqe(counter);
        if wqe.status == PENDING {
            return;
        }
        let status = u32::from(wqe.status);
        if wqe.gates & COMPLETE != 0 {
            return;
        }
        r.queue.retired += 1;
        if status != IBV_WC_SUCCESS {
            complete_send(qp, r, counter, status);
            return send_error(qp, r);
        }
        r.queue.retries_left = r.attr.retry_cnt;
        r.queue.rnr_left = r.attr.rnr_retry;
        let signalled = r.queue.sig_all || wqe_flags(r, counter) & IBV_SEND_SIGNALED != 0;
        if signalled && !complete_send(qp, r, counter, IBV_WC_SUCCESS) {
            qp.raise(IBV_EVENT_QP_FATAL);
            return send_error(qp, r);
        }
    }
}

fn wqe_flags(r: &Requester, counter: u64) -> u32 {
    u32::from(r.queue.wqe(counter).flags)
}

/// A request failed: the QP goes into error and everything left is flushed.
fn send_error(qp: &'static Qp, r: &mut Requester) {
    if r.fixed.kind == IBV_QPT_RC {
        qp.set_state(IBV_QPS_ERR);
        flush_both(qp, r);
    } else {
        // An unreliable QP only stops sending; it can be taken back to RTS.
        qp.set_state(IBV_QPS_SQE);
        flush_send(qp, r);
    }
    note_state(qp, r);
}

fn note_state(qp: &Qp, r: &Requester) {
    r.queue.stats.state(qp.state(), r.attr.dest_qp_num);
}

/// Flushes both queues of a QP in error.
pub fn flush_both(qp: &'static Qp, r: &mut Requester) {
    flush_send(qp, r);
    if let Some(responder) = qp.recv.lock().as_mut() {
        flush_recv(qp, responder);
    }
    note_state(qp, r);
}

/// Completes every request left in the send queue as flushed.
pub fn flush_send(qp: &'static Qp, r: &mut Requester) {
    if let Some(pacer) = &r.fixed.process.pacer {
        pacer.flush(r);
    }
    while r.queue.retired < r.queue.posted {
        let counter = r.queue.retired;
        r.queue.retired += 1;
        complete_send(qp, r, counter, IBV_WC_WR_FLUSH_ERR);
    }
    r.queue.sent = r.queue.posted;
    r.queue.numbered = r.queue.posted;
    r.queue.part = 0;
    r.queue.rd_outstanding = 0;
    r.queue.halted = false;
    r.queue.hold_until = 0;
    r.queue.ack_deadline = 0;
}

/// Completes every posted receive as flushed.
pub fn flush_recv(qp: &'static Qp, r: &mut Responder) {
    if let Some(taken) = r.partial.take().and_then(|p| p.taken) {
        complete_recv_error(qp, r, &taken, IBV_WC_WR_FLUSH_ERR);
    }
    if r.srq.is_some() {
        if !r.last_wqe_raised {
            r.last_wqe_raised = true;
            qp.raise(IBV_EVENT_QP_LAST_WQE_REACHED);
        }
        return;
    }
    while let Some(taken) = r.ring.take(&mut r.scratch) {
        complete_recv_error(qp, r, &taken, IBV_WC_WR_FLUSH_ERR);
    }
}

/// Raises SQ_DRAINED once the send queue of a QP in SQD has nothing under way.
pub fn drained(qp: &'static Qp, r: &mut Requester) {
    if r.queue.draining && r.queue.retired == r.queue.sent {
        r.queue.draining = false;
        qp.raise(IBV_EVENT_SQ_DRAINED);
    }
}

fn complete_send(qp: &'static Qp, r: &Requester, counter: u64, status: u32) -> bool {
    let wqe = r.queue.wqe(counter);
    let mut wc = ibv_wc { wr_id: wqe.wr_id, status, qp_num: r.fixed.qpn, ..ibv_wc::default() };
    wc.opcode = opcode(wqe.opcode);
    if status == IBV_WC_SUCCESS {
        wc.byte_len = wqe.len;
    } else {
        wc.vendor_err = vendor_error(status);
        r.queue.stats.add(QpCounter::SendErrors, 1);
    }
    r.queue.stats.add(QpCounter::SendCqes, 1);
    let cqe = Cqe { wc, qp, frees: Frees::Send(counter), at_ns: 0, wall_ns: 0 };
    r.fixed.send_cq.push(cqe, false)
}

/// Completes a receive that failed.
pub fn complete_recv_error(qp: &'static Qp, r: &Responder, taken: &Taken, status: u32) {
    let wc = ibv_wc {
        wr_id: taken.wr_id,
        status,
        opcode: IBV_WC_RECV,
        vendor_err: vendor_error(status),
        qp_num: r.fixed.qpn,
        ..ibv_wc::default()
    };
    r.stats.add(QpCounter::RecvErrors, 1);
    push_recv(qp, r, taken, wc, true);
}

/// Writes the completion of a receive; false if the CQ was full.
pub fn push_recv(qp: &'static Qp, r: &Responder, taken: &Taken, wc: ibv_wc, solicited: bool) -> bool {
    r.stats.add(QpCounter::RecvCqes, 1);
    let frees = r.srq.map_or(Frees::Recv(taken.counter), Frees::Srq);
    r.fixed.recv_cq.push(Cqe { wc, qp, frees, at_ns: 0, wall_ns: 0 }, solicited)
}

/// A code of ours beside each error status, as devices have: it repeats the status, for tools that print only this.
fn vendor_error(status: u32) -> u32 {
    0xe0 + status
}

fn opcode(wr: u8) -> u32 {
    match u32::from(wr) {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
        IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
        IBV_WR_BIND_MW => IBV_WC_BIND_MW,
        IBV_WR_LOCAL_INV => IBV_WC_LOCAL_INV,
        _ => IBV_WC_SEND,
    }
}
