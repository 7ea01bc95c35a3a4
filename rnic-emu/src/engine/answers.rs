//! What comes back from another process. Nothing in it is trusted: it can only complete requests this process sent, and
//! only write where those requests' own scatter lists allow.

use super::{requester, retire};
use crate::abi::consts::*;
use crate::device::process::Process;
use crate::object::qp::{Qp, Requester};
use crate::object::qp_attr::{PSN_MASK, psn_distance};
use crate::object::segments::Segments;
use crate::object::send_queue::PENDING;
use crate::wire::packet::{ABSENT, ACK, ATOMIC, DATA, GAP, NAK, Packet, RNR};

/// Takes one answer; `payload` has `packet.len` readable bytes.
pub fn take(process: &'static Process, packet: &Packet, payload: *const u8) {
    let Some(qp) = process.qps.find(packet.dst_qpn) else { return };
    let mut guard = qp.send.lock();
    let Some(r) = guard.as_mut() else { return };
    let ours = r.fixed.qpn == packet.dst_qpn
        && r.fixed.kind == IBV_QPT_RC
        && r.attr.dest_qp_num == packet.src_qpn
        && matches!(qp.state(), IBV_QPS_RTS | IBV_QPS_SQD);
    if !ours {
        return;
    }
    let out_of_date = packet.psn & !PSN_MASK != r.queue.round;
    let packet = &Packet { psn: packet.psn & PSN_MASK, ..*packet };
    match packet.kind {
        RNR | GAP | ABSENT if out_of_date => {}
        ACK => acknowledge(r, packet.psn, true),
        DATA => data(r, packet, payload),
        ATOMIC => atomic(r, packet),
        RNR => {
            if let Some(counter) = reach(r, packet.psn) {
                requester::rnr(qp, r, counter, packet.flags);
            }
        }
        NAK => {
            if let Some(counter) = reach(r, packet.psn) {
                retire::fail(r, counter, nak_status(packet.flags));
            }
        }
        GAP => gap(qp, r, packet.psn),
        ABSENT => absent(qp, r, packet.psn),
        _ => {}
    }
    requester::pump(qp, r);
}

/// Everything before `psn`, and with `inclusive` that request too, is done: the responder answers in order. READs and
/// atomics are done by their own answers only.
fn acknowledge(r: &mut Requester, psn: u32, inclusive: bool) {
    let newest = if inclusive { 0 } else { -1 };
    for counter in r.queue.retired..r.queue.sent {
        let wqe = r.queue.wqe(counter);
        if psn_distance(wqe.psn, psn) > newest {
            return;
        }
        if wqe.status == PENDING && requester::takes_rd_slot(wqe.opcode) {
            return;
        }
        if wqe.status == PENDING {
            retire::done(&mut r.queue, counter, IBV_WC_SUCCESS);
        }
    }
}

/// The pending request with this PSN, everything before it acknowledged.
fn reach(r: &mut Requester, psn: u32) -> Option<u64> {
    acknowledge(r, psn, false);
    (r.queue.retired..r.queue.sent)
        .find(|c| r.queue.wqe(*c).status == PENDING)
        .filter(|c| r.queue.wqe(*c).psn == psn)
}

fn data(r: &mut Requester, p: &Packet, payload: *const u8) {
    let Some(counter) = reach(r, p.psn) else { return };
    let wqe = *r.queue.wqe(counter);
    let end = u64::from(p.offset) + u64::from(p.len);
    let expected = u32::from(wqe.opcode) == IBV_WR_RDMA_READ && p.offset == r.queue.read_at;
    if !expected || end > u64::from(wqe.len) {
        return;
    }
    let written = {
        match Segments::pin_local(&r.fixed.process.keys, r.fixed.pd, r.queue.sges(counter), true) {
            Some(ours) => {
                // SAFETY: the ring keeps `len` bytes readable until the record is released.
                unsafe { ours.copy_in(p.offset as usize, payload, p.len as usize) };
                true
            }
            None => false,
        }
    };
    if !written {
        return retire::fail(r, counter, IBV_WC_LOC_PROT_ERR);
    }
    r.queue.read_at = end as u32;
    if end == u64::from(wqe.len) {
        finish_rd(r, counter);
    }
}

fn atomic(r: &mut Requester, p: &Packet) {
    let Some(counter) = reach(r, p.psn) else { return };
    let wqe = *r.queue.wqe(counter);
    if !requester::takes_rd_slot(wqe.opcode) || u32::from(wqe.opcode) == IBV_WR_RDMA_READ {
        return;
    }
    let written = {
        match Segments::pin_local(&r.fixed.process.keys, r.fixed.pd, r.queue.sges(counter), true) {
            Some(ours) => {
                // SAFETY: eight bytes of the header's copy.
                unsafe { ours.copy_in(0, (&raw const p.a).cast(), 8) };
                true
            }
            None => false,
        }
    };
    if written { finish_rd(r, counter) } else { retire::fail(r, counter, IBV_WC_LOC_PROT_ERR) }
}

fn finish_rd(r: &mut Requester, counter: u64) {
    r.queue.read_at = 0;
    r.queue.rd_outstanding = r.queue.rd_outstanding.saturating_sub(1);
    retire::done(&mut r.queue, counter, IBV_WC_SUCCESS);
}

/// The responder missed requests from `psn` on: send them again. Limited like any other retry.
fn gap(qp: &'static Qp, r: &mut Requester, psn: u32) {
    let Some(counter) = reach(r, psn) else { return };
    if r.queue.retries_left == 0 {
        retire::fail(r, counter, IBV_WC_RETRY_EXC_ERR);
        return retire::retire(qp, r);
    }
    r.queue.retries_left -= 1;
    requester::resend(r);
}

/// Nobody took a request: the ACK timer decides when it is sent again.
fn absent(qp: &'static Qp, r: &mut Requester, psn: u32) {
    let pending = |r: &Requester, c: u64| r.queue.wqe(c).status == PENDING && r.queue.wqe(c).psn == psn;
    if let Some(counter) = (r.queue.retired..r.queue.sent).find(|c| pending(r, *c)) {
        requester::lost(qp, r, counter);
    }
}

/// The status a NAK may carry; anything else is treated as the peer's failure to operate.
fn nak_status(status: u8) -> u32 {
    match u32::from(status) {
        s @ (IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_OP_ERR) => s,
        _ => IBV_WC_REM_OP_ERR,
    }
}
