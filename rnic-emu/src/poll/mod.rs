//! Polling completions and asking for events.

pub mod ex;

use crate::abi::*;
use crate::device::context::DeviceContext;
use crate::engine::pacing;
use crate::object::cq::{Armed, Cq};
use crate::stats::CqCounter;
use crate::told;
use libc::c_int;

/// Takes up to `n` completions.
///
/// # Safety
/// As `ibv_poll_cq`: a live CQ, and room for `n` completions.
pub unsafe extern "C" fn poll_cq(ibv: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise.
    let taken = unsafe { take(ibv, n, wc) };
    told::polled(ibv, i64::from(taken), wc, 0);
    taken
}

/// # Safety
/// As [`poll_cq`].
unsafe fn take(ibv: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise.
    let (cq, ctx) = unsafe { (Cq::of(ibv), DeviceContext::of((*ibv).context)) };
    let Ok(process) = ctx.alive() else { return -libc::EIO };
    process.wire.look(process);
    let start = process.run_due_on_poll();
    let mut ring = cq.ring.lock();
    let mut taken = 0;
    while taken < n {
        let Some(cqe) = ring.pop() else { break };
        // SAFETY: the caller's promise.
        unsafe { wc.add(taken as usize).write(cqe.wc) };
        taken += 1;
    }
    ring.stats.add(CqCounter::PollCalls, 1);
    ring.stats.add(CqCounter::Polled, taken as u64);
    if taken == 0 {
        ring.stats.add(CqCounter::EmptyPolls, 1);
    }
    drop(ring);
    pacing::polled(process, start, taken as u64).spend();
    taken
}

/// Asks for an event with the next completion, or the next solicited or failed one.
///
/// # Safety
/// As `ibv_req_notify_cq`.
pub unsafe extern "C" fn req_notify_cq(ibv: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let (cq, ctx) = unsafe { (Cq::of(ibv), DeviceContext::of((*ibv).context)) };
    if let Err(errno) = ctx.alive() {
        return errno;
    }
    let mut ring = cq.ring.lock();
    ring.stats.add(CqCounter::Notifies, 1);
    // A request for any completion is not weakened by a later one for solicited ones only.
    if ring.armed != Armed::Any {
        ring.armed = if solicited_only != 0 { Armed::Solicited } else { Armed::Any };
    }
    0
}
