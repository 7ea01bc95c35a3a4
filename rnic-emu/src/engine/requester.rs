//! The requester: takes requests off a send queue, in order, as far as they may go.

use super::pacing::DELIVER;
use super::{intervals, local, local_ops, remote, retire, timers};
use crate::abi::consts::*;
use crate::device::process::Process;
use crate::object::qp::{Qp, Requester};
use crate::object::qp_attr::{PSN_MASK, packets};
use crate::object::qp_state::{SendPost, send_post};
use crate::object::qp_table::slot_of;
use crate::object::send_queue::{NOWHERE, PENDING, Route, SendQueue};
use crate::stats::QpCounter;
use crate::sys::clock;

/// What became of an attempt to send one request.
pub enum Step {
    /// It went, or failed for good: on to the next.
    Next,
    /// It went and its answer is still to come.
    Sent,
    /// It cannot go now; something will come back to it.
    Stop,
    /// Nobody was there to take it: it counts as sent, and the ACK timer will tell.
    Lost,
    /// The responder had no receive; wait this code's time.
    Rnr(u8),
    /// It failed with this status.
    Failed(u32),
}

/// Works on a send queue. True if anything moved.
pub fn run(qp: &'static Qp) -> bool {
    let mut guard = qp.send.lock();
    guard.as_mut().is_some_and(|r| pump(qp, r))
}

/// Sends what can be sent and completes what has completed. The caller holds the send queue.
pub fn pump(qp: &'static Qp, r: &mut Requester) -> bool {
    let before = (r.queue.sent, r.queue.retired, r.queue.part);
    match send_post(qp.state()) {
        SendPost::Runs => {
            send(qp, r);
            retire::retire(qp, r);
        }
        SendPost::Waits => {
            retire::retire(qp, r);
            retire::drained(qp, r);
        }
        SendPost::Flushes => retire::flush_send(qp, r),
        SendPost::Refused => {}
    }
    before != (r.queue.sent, r.queue.retired, r.queue.part)
}

/// The timer came up for `qp`.
pub fn on_timer(qp: &'static Qp) {
    let mut guard = qp.send.lock();
    let Some(r) = guard.as_mut() else { return };
    if qp.state() == IBV_QPS_ERR {
        retire::flush_both(qp, r);
        return;
    }
    let now = clock::now_ns();
    if r.queue.hold_until != 0 && now >= r.queue.hold_until {
        r.queue.hold_until = 0;
    }
    if r.queue.ack_deadline != 0 && now >= r.queue.ack_deadline {
        ack_timeout(qp, r);
    }
    pump(qp, r);
    if let Some(oldest) = oldest_pending(&r.queue)
        && peer_is_dead(r)
    {
        lost(qp, r, oldest);
    }
    let next = [r.queue.hold_until, r.queue.ack_deadline].into_iter().filter(|t| *t != 0).min();
    if let Some(at) = next {
        r.fixed.process.timers.set(r.fixed.process, qp, at);
    }
}

fn send(qp: &'static Qp, r: &mut Requester) {
    while r.queue.sent < r.queue.posted && !r.queue.halted && r.queue.hold_until == 0 {
        let counter = r.queue.sent;
        let wqe = r.queue.wqe(counter);
        if wqe.gates & DELIVER != 0 {
            return;
        }
        if r.queue.numbered == counter && !number(r, counter) {
            return;
        }
        let wqe = r.queue.wqe(counter);
        if wqe.flags & IBV_SEND_FENCE as u8 != 0 && r.queue.rd_outstanding > 0 {
            return;
        }
        let is_rd = takes_rd_slot(wqe.opcode);
        if is_rd && r.queue.rd_outstanding >= u32::from(r.attr.max_rd_atomic) && r.queue.part == 0 {
            if r.attr.max_rd_atomic == 0 {
                retire::fail(r, counter, IBV_WC_LOC_QP_OP_ERR);
            }
            return;
        }
        let step = transmit(qp, r, counter);
        match step {
            Step::Stop => return,
            Step::Rnr(code) => return rnr(qp, r, counter, code),
            Step::Failed(status) => return retire::fail(r, counter, status),
            Step::Next => r.queue.sent += 1,
            Step::Sent | Step::Lost => {
                if is_rd {
                    r.queue.rd_outstanding += 1;
                }
                r.queue.sent += 1;
                if matches!(step, Step::Lost) {
                    lost(qp, r, counter);
                }
            }
        }
    }
}

/// Gives a request its sequence number. False if it is too long and failed at once.
fn number(r: &mut Requester, counter: u64) -> bool {
    let (kind, mtu, psn) = (r.fixed.kind, r.attr.path_mtu, r.queue.next_psn);
    let wqe = r.queue.wqe_mut(counter);
    let too_long = wqe.len > crate::device::attr::MAX_MSG || kind == IBV_QPT_UD && wqe.len > 4096;
    wqe.packets = packets(wqe.len, mtu);
    wqe.psn = psn;
    let local = matches!(u32::from(wqe.opcode), IBV_WR_LOCAL_INV | IBV_WR_BIND_MW);
    let taken = if local { 0 } else { wqe.packets };
    r.queue.next_psn = (psn + taken) & PSN_MASK;
    r.queue.numbered = counter + 1;
    if too_long {
        retire::fail(r, counter, IBV_WC_LOC_LEN_ERR);
    }
    !too_long
}

fn transmit(qp: &'static Qp, r: &mut Requester, counter: u64) -> Step {
    let wqe = *r.queue.wqe(counter);
    match u32::from(wqe.opcode) {
        IBV_WR_LOCAL_INV => return local_ops::invalidate(r, counter, &wqe),
        IBV_WR_BIND_MW => return local_ops::bind(r, counter, &wqe),
        _ => {}
    }
    let route = if r.fixed.kind == IBV_QPT_UD {
        datagram_route(r, wqe.remote_device, wqe.remote_qpn)
    } else {
        connected_route(r)
    };
    let step = match route {
        Some(Route::Local(peer)) => local::transmit(qp, r, counter, &wqe, peer),
        Some(Route::Remote(link)) => remote::transmit(r, counter, &wqe, link),
        Some(Route::Unknown) | None => Step::Lost,
    };
    // Nobody answers for an unreliable request: it is complete once it has left.
    if r.fixed.kind != IBV_QPT_RC && matches!(step, Step::Sent | Step::Lost) {
        retire::done(&mut r.queue, counter, IBV_WC_SUCCESS);
        return Step::Next;
    }
    step
}

/// Looks up where a connected QP's requests go, if that can be known yet.
pub fn connect(r: &mut Requester) {
    connected_route(r);
}

fn connected_route(r: &mut Requester) -> Option<Route> {
    match r.queue.route {
        Route::Unknown => {
            r.peer_device?;
            let route = find_route(r, r.attr.dest_qp_num, true)?;
            r.queue.route = route;
            Some(route)
        }
        // The peer this QP was connected to is gone; whoever has its slot now is somebody else.
        Route::Remote(link) if link.socket.is_dead() => None,
        // The QP may have been destroyed, and even be another's by now: the responder looks at its number.
        route => Some(route),
    }
}

fn datagram_route(r: &Requester, device: u8, qpn: u32) -> Option<Route> {
    if device == NOWHERE { None } else { find_route(r, qpn, false) }
}

/// `to_present`: the connection must be to the process that has the QP's slot now. Costs a system call.
fn find_route(r: &Requester, qpn: u32, to_present: bool) -> Option<Route> {
    let process = r.fixed.process;
    if process.qps.is_local(qpn) {
        return process.qps.find(qpn).map(Route::Local);
    }
    if qpn >> 24 != 0 {
        return None;
    }
    let slot = slot_of(qpn);
    let link =
        if to_present { process.wire.to_present(process, slot) } else { process.wire.to(process, slot) };
    link.map(Route::Remote)
}

/// Whether an opcode occupies one of the `max_rd_atomic` places while it is answered.
pub fn takes_rd_slot(opcode: u8) -> bool {
    matches!(u32::from(opcode), IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD)
}

/// The responder was not ready for request `counter`: everything from it on is sent again after the time it asks for.
pub fn rnr(qp: &'static Qp, r: &mut Requester, counter: u64, code: u8) {
    r.queue.stats.add(QpCounter::RnrReceived, 1);
    // 7 means: for ever.
    if r.attr.rnr_retry != 7 {
        if r.queue.rnr_left == 0 {
            return retire::fail(r, counter, IBV_WC_RNR_RETRY_EXC_ERR);
        }
        r.queue.rnr_left -= 1;
    }
    rewind(&mut r.queue, counter);
    r.queue.hold_until = clock::now_ns() + intervals::rnr_timer_ns(code);
    r.fixed.process.timers.set(r.fixed.process, qp, r.queue.hold_until);
}

/// Takes requests from `counter` on back to be sent again.
pub fn rewind(queue: &mut SendQueue, counter: u64) {
    for c in counter..queue.sent {
        if queue.wqe(c).status == PENDING && takes_rd_slot(queue.wqe(c).opcode) {
            queue.rd_outstanding = queue.rd_outstanding.saturating_sub(1);
        }
        queue.wqe_mut(c).lost = false;
    }
    queue.sent = counter;
    queue.part = 0;
    queue.read_at = 0;
    queue.round = queue.round.wrapping_add(PSN_MASK + 1);
}

/// A retransmission of everything from the oldest unanswered request on.
pub fn resend(r: &mut Requester) {
    if let Some(first) = oldest_pending(&r.queue) {
        r.queue.stats.add(QpCounter::Retries, 1);
        rewind(&mut r.queue, first);
    }
}

/// Nobody took request `counter`: the ACK timer starts.
pub fn lost(qp: &'static Qp, r: &mut Requester, counter: u64) {
    r.queue.wqe_mut(counter).lost = true;
    if r.fixed.kind != IBV_QPT_RC || r.queue.ack_deadline != 0 {
        return;
    }
    if let Some(ns) = intervals::ack_timeout_ns(r.attr.timeout) {
        r.queue.ack_deadline = clock::now_ns() + ns;
        r.fixed.process.timers.set(r.fixed.process, qp, r.queue.ack_deadline);
    }
}

/// The oldest request that was sent and not answered.
fn oldest_pending(queue: &SendQueue) -> Option<u64> {
    (queue.retired..queue.sent).find(|c| queue.wqe(*c).status == PENDING)
}

fn peer_is_dead(r: &Requester) -> bool {
    matches!(r.queue.route, Route::Remote(link) if link.socket.is_dead())
}

/// The ACK timer ran out.
fn ack_timeout(qp: &'static Qp, r: &mut Requester) {
    r.queue.ack_deadline = 0;
    let Some(oldest) = oldest_pending(&r.queue) else { return };
    // Only what is known to be lost is sent again. A stopped process (a debugger, a slow machine) is not a dead NIC:
    // hardware would have answered for it.
    if !r.queue.wqe(oldest).lost && !peer_is_dead(r) {
        return;
    }
    if r.queue.retries_left == 0 {
        retire::fail(r, oldest, IBV_WC_RETRY_EXC_ERR);
        return retire::retire(qp, r);
    }
    r.queue.retries_left -= 1;
    resend(r);
}

/// Has the timer look at a QP as soon as nobody holds a lock: its peer may be gone.
pub fn look_soon(qp: &'static Qp, process: &'static Process) {
    process.timers.set(process, qp, timers::NOW);
}

/// Has the queues of a QP that went into error flushed by somebody who holds no lock.
pub fn flush_soon(qp: &'static Qp, process: &'static Process) {
    look_soon(qp, process);
}
