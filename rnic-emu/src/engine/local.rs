//! Requests to a QP of the same process: executed at once, one copy from source to destination.

use super::requester::Step;
use super::responder::{self, Verdict};
use super::retire;
use crate::abi::consts::*;
use crate::object::qp::{Qp, Requester};
use crate::object::segments::Segments;
use crate::object::send_queue::SendWqe;
use crate::stats::QpCounter;
use crate::wire::packet::{Packet, request_kind};

/// The header of request `wqe`, as if its payload came in one piece.
pub fn header(r: &Requester, wqe: &SendWqe) -> Packet {
    let datagram = r.fixed.kind == IBV_QPT_UD;
    let has_payload = !super::requester::takes_rd_slot(wqe.opcode);
    let qkey = if wqe.remote_qkey >> 31 != 0 { r.attr.qkey } else { wqe.remote_qkey };
    Packet {
        kind: request_kind(r.fixed.kind),
        opcode: wqe.opcode,
        flags: wqe.flags,
        device: if datagram { wqe.remote_device } else { r.peer_device.unwrap_or(u8::MAX) },
        dst_qpn: if datagram { wqe.remote_qpn } else { r.attr.dest_qp_num },
        src_qpn: r.fixed.qpn,
        psn: wqe.psn | r.queue.round,
        total: wqe.len,
        offset: 0,
        len: if has_payload { wqe.len } else { 0 },
        imm: wqe.imm,
        rkey: if datagram { qkey } else { wqe.rkey },
        packets: wqe.packets,
        raddr: wqe.remote_addr,
        a: wqe.compare_add,
        // A datagram's receiver learns which of our devices it came from.
        b: if datagram { u64::from(r.fixed.device) } else { wqe.swap },
    }
}

/// Pins what request `counter` reads (or, of a READ or atomic, writes) on our side.
///
/// # Errors
/// `None` is a local protection error.
pub fn payload<'a>(r: &'a Requester, counter: u64, wqe: &SendWqe) -> Option<Segments<'a>> {
    if wqe.inline {
        let bytes = r.queue.inline(counter);
        // SAFETY: inline data stays in the queue until its slot is reused, after completion; it is only read.
        return Some(unsafe { Segments::of_bytes(bytes.as_ptr().cast_mut(), bytes.len()) });
    }
    let write = super::requester::takes_rd_slot(wqe.opcode);
    Segments::pin_local(&r.fixed.process.keys, r.fixed.pd, r.queue.sges(counter), write)
}

/// Counts a request that goes out.
pub fn count_sent(r: &Requester, wqe: &SendWqe, bytes: u32) {
    r.queue.stats.add(QpCounter::TxMessages, 1);
    r.queue.stats.add(QpCounter::TxPackets, u64::from(wqe.packets));
    r.queue.stats.add(QpCounter::TxBytes, u64::from(bytes));
}

/// Executes request `counter` on `peer`.
///
/// The peer's receive completes before the request does: another thread may see the one, and answer, before this one sees the
/// other. Verbs promise no order between a sender's and a receiver's completion, and on hardware, too, the receiver's comes
/// first: the acknowledgement still has its way back.
pub fn transmit(_qp: &'static Qp, r: &mut Requester, counter: u64, wqe: &SendWqe, peer: &'static Qp) -> Step {
    let packet = header(r, wqe);
    let verdict = {
        let Some(ours) = payload(r, counter, wqe) else { return Step::Failed(IBV_WC_LOC_PROT_ERR) };
        count_sent(r, wqe, packet.len);
        match u32::from(wqe.opcode) {
            IBV_WR_RDMA_READ => responder::read_into(peer, &packet, &ours),
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let verdict = responder::serve(peer, &packet, &ours, &mut || ());
                if let Verdict::Value(original) = verdict {
                    // SAFETY: eight bytes from the stack.
                    unsafe { ours.copy_in(0, (&raw const original).cast(), 8) };
                }
                verdict
            }
            _ => responder::serve(peer, &packet, &ours, &mut || ()),
        }
    };
    match verdict {
        Verdict::Done | Verdict::Value(_) => {
            retire::done(&mut r.queue, counter, IBV_WC_SUCCESS);
            Step::Next
        }
        Verdict::Rnr(code) => Step::Rnr(code),
        Verdict::Nak(status) => Step::Failed(u32::from(status)),
        // A sequence gap cannot be cured by sending the same request again at once; the ACK timer decides.
        Verdict::Gap(_) | Verdict::More | Verdict::Lost | Verdict::Silent => Step::Lost,
    }
}
