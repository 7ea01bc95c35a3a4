//! The responder: what a QP does with an incoming request, whether it came through a ring or from this process.

use super::{local_ops, requester, retire};
use crate::abi::{consts::*, ibv_wc};
use crate::device::{gid, process::Process};
use crate::object::qp::{Partial, Qp, Responder};
use crate::object::qp_attr::{PSN_MASK, psn_distance};
use crate::object::qp_state::receives;
use crate::object::recv_ring::Taken;
use crate::object::segments::Segments;
use crate::stats::QpCounter;
use crate::wire::packet::{Packet, RC, UD, request_kind};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Bytes before the payload of a received datagram.
pub const GRH: usize = 40;

/// What the responder says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done; all before it, too.
    Done,
    /// So far so good: more of the message is to come.
    More,
    /// An atomic is done; this was the value before.
    Value(u64),
    /// No receive is posted; try again after this code's time.
    Rnr(u8),
    /// It failed; the requester completes it with this status.
    Nak(u8),
    /// Requests before it are missing; this PSN was expected.
    Gap(u32),
    /// Nobody there to serve it.
    Lost,
    /// Nothing to say: it was served before, or its fate has been told already.
    Silent,
}

/// Serves one record from another process' ring.
///
/// `acknowledge` is called before the program can see that a message has come: on hardware, too, the sender has its
/// ACK before it can have the program's reply, and programs that wait for one event at a time count on it.
///
/// # Safety
/// `payload` has `p.len` readable bytes.
pub unsafe fn serve_record(
    process: &'static Process,
    p: &Packet,
    payload: *const u8,
    acknowledge: &mut dyn FnMut(),
) -> Verdict {
    let Some(qp) = process.qps.find(p.dst_qpn) else { return Verdict::Lost };
    // SAFETY: the caller's promise; `serve` only reads from it.
    let bytes = unsafe { Segments::of_bytes(payload.cast_mut(), p.len as usize) };
    serve(qp, p, &bytes, acknowledge)
}

/// Serves a request whose payload, from `p.offset` on, is `payload`. Not for READs.
pub fn serve(qp: &'static Qp, p: &Packet, payload: &Segments<'_>, acknowledge: &mut dyn FnMut()) -> Verdict {
    let mut guard = qp.recv.lock();
    let Some(r) = guard.as_mut() else { return Verdict::Lost };
    if let Err(verdict) = admit(qp, r, p) {
        return verdict;
    }
    let verdict = match u32::from(p.opcode) {
        IBV_WR_RDMA_WRITE => write(r, p, payload, None),
        IBV_WR_RDMA_WRITE_WITH_IMM => receive(qp, r, p, payload, acknowledge),
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => receive(qp, r, p, payload, acknowledge),
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD if p.kind == RC => atomic(r, p),
        _ => Verdict::Nak(IBV_WC_REM_INV_REQ_ERR as u8),
    };
    conclude(qp, r, p, verdict)
}

/// Answers a READ of this process: copies straight into `into`.
pub fn read_into(qp: &'static Qp, p: &Packet, into: &Segments<'_>) -> Verdict {
    let mut guard = qp.recv.lock();
    let Some(r) = guard.as_mut() else { return Verdict::Lost };
    if let Err(verdict) = admit(qp, r, p) {
        return verdict;
    }
    let verdict = match readable(r, p, 0, p.total) {
        Some(from) => {
            from.copy_all_to(into);
            Verdict::Done
        }
        None => Verdict::Nak(refuse_read(r)),
    };
    conclude(qp, r, p, verdict)
}

/// Checks a READ from another process. On `Done` the caller answers it with [`read_chunk`].
pub fn admit_read(process: &'static Process, p: &Packet) -> Verdict {
    let Some(qp) = process.qps.find(p.dst_qpn) else { return Verdict::Lost };
    let mut guard = qp.recv.lock();
    let Some(r) = guard.as_mut() else { return Verdict::Lost };
    if let Err(verdict) = admit(qp, r, p) {
        return verdict;
    }
    let ok = readable(r, p, 0, p.total).is_some();
    let verdict = if ok { Verdict::Done } else { Verdict::Nak(refuse_read(r)) };
    conclude(qp, r, p, verdict)
}

/// Copies `len` bytes of an admitted READ, from `p.offset` on, to `to`. False if the region is gone.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub unsafe fn read_chunk(process: &'static Process, p: &Packet, to: *mut u8, len: u32) -> bool {
    let Some(qp) = process.qps.find(p.dst_qpn) else { return false };
    let guard = qp.recv.lock();
    let Some(r) = guard.as_ref().filter(|r| r.fixed.qpn == p.dst_qpn) else { return false };
    let Some(from) = readable(r, p, p.offset, len) else { return false };
    // SAFETY: the caller's promise.
    unsafe { from.segments.copy_out(0, to, len as usize) };
    true
}

/// The region of a READ under way is gone: the QP fails. Returns the status for the requester.
pub fn fail_read(process: &'static Process, p: &Packet) -> u8 {
    if let Some(qp) = process.qps.find(p.dst_qpn)
        && let Some(r) = qp.recv.lock().as_mut().filter(|r| r.fixed.qpn == p.dst_qpn)
    {
        error(qp, r, IBV_EVENT_QP_ACCESS_ERR);
    }
    IBV_WC_REM_ACCESS_ERR as u8
}

/// Pinned memory of the responder, as one piece.
struct Readable<'a> {
    segments: Segments<'a>,
}

impl Readable<'_> {
    fn copy_all_to(&self, into: &Segments<'_>) {
        into.copy_from(0, &self.segments);
    }
}

fn readable<'a>(r: &'a Responder, p: &Packet, offset: u32, len: u32) -> Option<Readable<'a>> {
    if p.total == 0 {
        return Some(Readable { segments: Segments::new() });
    }
    if r.attr.qp_access_flags & IBV_ACCESS_REMOTE_READ == 0 || r.attr.max_dest_rd_atomic == 0 {
        return None;
    }
    let addr = p.raddr.checked_add(u64::from(offset))?;
    let keys = &r.fixed.process.keys;
    let segments =
        Segments::pin_remote(keys, p.rkey, r.fixed.pd, r.fixed.qpn, addr, len, IBV_ACCESS_REMOTE_READ)?;
    Some(Readable { segments })
}

/// What a requester is told when its READ is not allowed.
fn refuse_read(r: &Responder) -> u8 {
    // With no READ resources at the responder the request itself is invalid, whatever memory it names.
    if r.attr.max_dest_rd_atomic == 0 { IBV_WC_REM_INV_REQ_ERR as u8 } else { IBV_WC_REM_ACCESS_ERR as u8 }
}

/// Whether the QP is there, connected to the sender, and at this point of the sequence.
fn admit(qp: &'static Qp, r: &mut Responder, p: &Packet) -> Result<(), Verdict> {
    let there = r.fixed.qpn == p.dst_qpn
        && r.fixed.device == p.device
        && p.kind == request_kind(r.fixed.kind)
        && receives(qp.state());
    if !there {
        return Err(Verdict::Lost);
    }
    if p.kind == UD {
        if p.rkey != r.attr.qkey {
            r.stats.add(QpCounter::Drops, 1);
            return Err(Verdict::Lost);
        }
        return Ok(());
    }
    if r.attr.dest_qp_num != p.src_qpn {
        return Err(Verdict::Lost);
    }
    if p.kind == RC {
        match psn_distance(p.psn, r.expected_psn) {
            0 => {}
            // Sent twice: it was served, and its answer is on the way.
            ..0 => return Err(Verdict::Silent),
            _ if r.gap_reported == Some(p.psn & !PSN_MASK) => return Err(Verdict::Silent),
            _ => {
                r.gap_reported = Some(p.psn & !PSN_MASK);
                return Err(Verdict::Gap(r.expected_psn));
            }
        }
    }
    // Chunks of a message come in order; one that does not belong is the rest of a message already given up.
    let continues = r.partial.is_some_and(|m| m.psn == p.psn && m.offset == p.offset);
    if p.offset != 0 && !continues { Err(Verdict::Silent) } else { Ok(()) }
}

fn conclude(qp: &'static Qp, r: &mut Responder, p: &Packet, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Done | Verdict::Value(_) => {
            r.partial = None;
            r.gap_reported = None;
            r.expected_psn = p.psn.wrapping_add(p.packets) & PSN_MASK;
            r.stats.add(QpCounter::RxMessages, 1);
            r.stats.add(QpCounter::RxPackets, u64::from(p.packets));
            r.stats.add(QpCounter::RxBytes, u64::from(p.total));
            if !r.established {
                r.established = true;
                if qp.state() == IBV_QPS_RTR && p.kind != UD {
                    qp.raise(IBV_EVENT_COMM_EST);
                }
            }
            verdict
        }
        Verdict::Rnr(_) => {
            r.stats.add(QpCounter::RnrSent, 1);
            verdict
        }
        Verdict::Nak(status) if p.kind == RC => {
            let access = u32::from(status) == IBV_WC_REM_ACCESS_ERR;
            error(qp, r, if access { IBV_EVENT_QP_ACCESS_ERR } else { IBV_EVENT_QP_REQ_ERR });
            verdict
        }
        Verdict::Nak(_) => {
            // Nobody hears an unreliable responder complain: the message is dropped.
            r.stats.add(QpCounter::Drops, 1);
            Verdict::Lost
        }
        other => other,
    }
}

/// The responder failed: error state, event, receives flushed; the sends follow once no lock is held.
fn error(qp: &'static Qp, r: &mut Responder, event: i32) {
    qp.set_state(IBV_QPS_ERR);
    retire::flush_recv(qp, r);
    qp.raise(event);
    requester::flush_soon(qp, r.fixed.process);
}

/// Writes the payload of a WRITE; `taken` is the receive that a WRITE with immediate data uses up.
fn write(r: &mut Responder, p: &Packet, payload: &Segments<'_>, taken: Option<Taken>) -> Verdict {
    if p.total > 0 {
        let allowed = r.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE != 0;
        // The first chunk vouches for the whole range, each later one for itself: the region may have gone meanwhile.
        let len = if p.offset == 0 { p.total } else { p.len };
        let to = p.raddr.checked_add(u64::from(p.offset)).and_then(|addr| {
            let keys = &r.fixed.process.keys;
            Segments::pin_remote(keys, p.rkey, r.fixed.pd, r.fixed.qpn, addr, len, IBV_ACCESS_REMOTE_WRITE)
        });
        match to.filter(|_| allowed) {
            Some(to) => to.copy_from(0, payload),
            None => return Verdict::Nak(IBV_WC_REM_ACCESS_ERR as u8),
        }
    }
    if p.is_last() {
        return Verdict::Done;
    }
    r.partial = Some(Partial { psn: p.psn, offset: p.offset + p.len, taken });
    Verdict::More
}

/// Serves a request that uses up a receive: a SEND, or a WRITE with immediate data.
fn receive(
    qp: &'static Qp,
    r: &mut Responder,
    p: &Packet,
    payload: &Segments<'_>,
    acknowledge: &mut dyn FnMut(),
) -> Verdict {
    let immediate_write = u32::from(p.opcode) == IBV_WR_RDMA_WRITE_WITH_IMM;
    // A message begun and given up (sent again after a timeout) keeps its receive.
    let Some(taken) = r.partial.take().and_then(|m| m.taken).or_else(|| take_receive(r)) else {
        if p.kind == RC {
            return Verdict::Rnr(r.attr.min_rnr_timer);
        }
        r.stats.add(QpCounter::Drops, 1);
        return Verdict::Lost;
    };
    if immediate_write {
        match write(r, p, payload, Some(taken)) {
            Verdict::Done => {}
            Verdict::More => return Verdict::More,
            refused => {
                // The receive was not the cause: it is flushed with the others.
                r.partial = Some(Partial { psn: p.psn, offset: 0, taken: Some(taken) });
                return refused;
            }
        }
    } else if let Err((local, remote)) = scatter(r, p, payload, &taken) {
        retire::complete_recv_error(qp, r, &taken, local);
        return Verdict::Nak(remote as u8);
    } else if !p.is_last() {
        r.partial = Some(Partial { psn: p.psn, offset: p.offset + p.len, taken: Some(taken) });
        return Verdict::More;
    }
    if u32::from(p.opcode) == IBV_WR_SEND_WITH_INV
        && !local_ops::close_window(r.fixed.process, p.imm, r.fixed.qpn, r.fixed.pd)
    {
        retire::complete_recv_error(qp, r, &taken, IBV_WC_LOC_ACCESS_ERR);
        return Verdict::Nak(IBV_WC_REM_ACCESS_ERR as u8);
    }
    let solicited = u32::from(p.flags) & IBV_SEND_SOLICITED != 0;
    acknowledge();
    if !retire::push_recv(qp, r, &taken, received(r, p, &taken, immediate_write), solicited) {
        error(qp, r, IBV_EVENT_QP_FATAL);
    }
    Verdict::Done
}

fn take_receive(r: &mut Responder) -> Option<Taken> {
    match r.srq {
        Some(srq) => srq.take(&mut r.scratch),
        None => r.ring.take(&mut r.scratch),
    }
}

/// Copies a SEND's payload into the receive. The error is what the receive and the requester complete with.
fn scatter(r: &Responder, p: &Packet, payload: &Segments<'_>, taken: &Taken) -> Result<(), (u32, u32)> {
    let pd = r.srq.map_or(r.fixed.pd, |s| s.pd);
    let sges = &r.scratch[..taken.n_sge as usize];
    let into = Segments::pin_local(&r.fixed.process.keys, pd, sges, true)
        .ok_or((IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR))?;
    let head = if p.kind == UD { GRH } else { 0 };
    if head + p.total as usize > into.total() {
        return Err((IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR));
    }
    if p.kind == UD && p.offset == 0 {
        let header = route_header(p);
        // SAFETY: GRH readable bytes.
        unsafe { into.copy_in(0, header.as_ptr(), GRH) };
    }
    into.copy_from(head + p.offset as usize, payload);
    Ok(())
}

/// The completion of a receive.
fn received(r: &Responder, p: &Packet, taken: &Taken, immediate_write: bool) -> ibv_wc {
    let mut wc = ibv_wc {
        wr_id: taken.wr_id,
        opcode: if immediate_write { IBV_WC_RECV_RDMA_WITH_IMM } else { IBV_WC_RECV },
        byte_len: p.total,
        qp_num: r.fixed.qpn,
        src_qp: p.src_qpn,
        ..ibv_wc::default()
    };
    match u32::from(p.opcode) {
        IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM => {
            wc.imm_data = p.imm;
            wc.wc_flags = IBV_WC_WITH_IMM;
        }
        IBV_WR_SEND_WITH_INV => {
            wc.imm_data = p.imm;
            wc.wc_flags = IBV_WC_WITH_INV;
        }
        _ => {}
    }
    if p.kind == UD {
        wc.byte_len = wc.byte_len.wrapping_add(GRH as u32);
        wc.wc_flags |= IBV_WC_GRH;
    }
    wc
}

fn atomic(r: &Responder, p: &Packet) -> Verdict {
    let refused = Verdict::Nak(IBV_WC_REM_ACCESS_ERR as u8);
    if r.attr.max_dest_rd_atomic == 0 || !p.raddr.is_multiple_of(8) {
        return Verdict::Nak(IBV_WC_REM_INV_REQ_ERR as u8);
    }
    if r.attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC == 0 {
        return refused;
    }
    let keys = &r.fixed.process.keys;
    let need = IBV_ACCESS_REMOTE_ATOMIC;
    let Some((_pin, _parent, at)) = keys.pin_remote(p.rkey, r.fixed.pd, r.fixed.qpn, p.raddr, 8, need) else {
        return refused;
    };
    if !(at as usize).is_multiple_of(8) {
        return Verdict::Nak(IBV_WC_REM_INV_REQ_ERR as u8);
    }
    // SAFETY: eight aligned bytes of pinned memory.
    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
    Verdict::Value(if u32::from(p.opcode) == IBV_WR_ATOMIC_FETCH_AND_ADD {
        word.fetch_add(p.a, SeqCst)
    } else {
        match word.compare_exchange(p.a, p.b, SeqCst, SeqCst) {
            Ok(v) | Err(v) => v,
        }
    })
}

/// What precedes a datagram: 20 bytes undefined, then the IPv4 header, as RoCE v2 devices write it.
fn route_header(p: &Packet) -> [u8; GRH] {
    let mut h = [0; GRH];
    let ip = &mut h[20..];
    ip[0] = 0x45;
    // IP, UDP and base transport headers, the extended header of datagrams, payload and its check sum.
    let len = (20 + 8 + 12 + 8 + 4 + p.total).min(u32::from(u16::MAX)) as u16;
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    ip[6] = 0x40;
    ip[8] = 64;
    ip[9] = 17;
    ip[12..16].copy_from_slice(&gid::of_device((p.b & 0xf) as usize).raw[12..]);
    ip[16..20].copy_from_slice(&gid::of_device(usize::from(p.device & 0xf)).raw[12..]);
    let sum: u32 = ip.as_chunks::<2>().0.iter().map(|w| u32::from(u16::from_be_bytes(*w))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    h
}
