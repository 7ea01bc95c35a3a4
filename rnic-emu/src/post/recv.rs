//! `ibv_post_recv` and `ibv_post_srq_recv`.

use super::digest::Digest;
use crate::abi::{consts::*, *};
use crate::device::context::DeviceContext;
use crate::device::process::Process;
use crate::engine::requester::flush_soon;
use crate::object::qp::Qp;
use crate::object::srq::Srq;
use crate::stats::{ProcessCounter, QpCounter};
use probe_common::site::Queue;
use std::sync::atomic::Ordering::*;

/// Posts a list of receives to a QP.
///
/// # Safety
/// As `ibv_post_recv`: a live QP, a list of valid requests, a place for the bad one.
pub unsafe extern "C" fn post_recv(
    ibv: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> libc::c_int {
    // SAFETY: the caller's promise.
    let qp = unsafe { Qp::of(ibv) };
    let mut digest = Digest::new(ibv as usize, Queue::Receive, false);
    let mut guard = qp.recv.lock();
    let mut process = None;
    let errno = match guard.as_mut().filter(|r| Process::is_current(r.fixed.process)) {
        Some(r) => {
            process = Some(r.fixed.process);
            let refused = qp.state() == IBV_QPS_RESET || r.srq.is_some();
            // SAFETY: the caller's promise.
            let errno = unsafe {
                post_list(first, bad, &mut digest, |id, sges| {
                    if refused {
                        return Err(libc::EINVAL);
                    }
                    r.ring.post(id, sges, qp.recv_freed.load(Acquire))
                })
            };
            digest.tell(first as usize);
            r.stats.add(QpCounter::RecvCalls, 1);
            r.stats.add(QpCounter::RecvWrs, digest.n);
            if qp.state() == IBV_QPS_ERR && digest.n > 0 {
                flush_soon(qp, r.fixed.process);
            }
            errno
        }
        None => {
            // SAFETY: the caller's promise.
            unsafe { *bad = first };
            digest.tell(first as usize);
            libc::EIO
        }
    };
    drop(guard);
    if let Some(process) = process {
        process.timers.run_urgent(process);
    }
    // SAFETY: the caller's promise; written where the call fails.
    let bad_wr = if errno == 0 { 0 } else { unsafe { *bad as usize } };
    digest.tell_failure(errno, bad_wr);
    errno
}

/// Posts a list of receives to a shared receive queue.
///
/// # Safety
/// As `ibv_post_srq_recv`.
pub unsafe extern "C" fn post_srq_recv(
    ibv: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> libc::c_int {
    // SAFETY: the caller's promise.
    let (srq, ctx) = unsafe { (Srq::of(ibv), DeviceContext::of((*ibv).context)) };
    let mut digest = Digest::new(ibv as usize, Queue::SharedReceive, false);
    let errno = match ctx.alive() {
        Ok(process) => {
            let mut queue = srq.queue.lock();
            // SAFETY: the caller's promise.
            let errno =
                unsafe { post_list(first, bad, &mut digest, |id, sges| srq.post(&mut queue, id, sges)) };
            digest.tell(first as usize);
            drop(queue);
            process.stats.add(ProcessCounter::SrqRecvCalls, 1);
            process.stats.add(ProcessCounter::SrqRecvWrs, digest.n);
            errno
        }
        Err(e) => {
            // SAFETY: the caller's promise.
            unsafe { *bad = first };
            digest.tell(first as usize);
            e
        }
    };
    // SAFETY: the caller's promise; written where the call fails.
    let bad_wr = if errno == 0 { 0 } else { unsafe { *bad as usize } };
    digest.tell_failure(errno, bad_wr);
    errno
}

/// # Safety
/// A list of valid requests and a place for the bad one.
unsafe fn post_list(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    digest: &mut Digest,
    mut post: impl FnMut(u64, &[ibv_sge]) -> Result<(), i32>,
) -> i32 {
    while !wr.is_null() {
        // SAFETY: the caller's promise.
        let request = unsafe { &*wr };
        let sges = match request.num_sge {
            0 => &[][..],
            // SAFETY: the list has `num_sge` entries.
            n if n > 0 => unsafe { std::slice::from_raw_parts(request.sg_list, n as usize) },
            _ => {
                // SAFETY: the caller's promise.
                unsafe { *bad = wr };
                return libc::EINVAL;
            }
        };
        if let Err(errno) = post(request.wr_id, sges) {
            // SAFETY: the caller's promise.
            unsafe { *bad = wr };
            return errno;
        }
        digest.recv(sges.iter().map(|s| u64::from(s.length)).sum(), sges.len() as u64);
        wr = request.next;
    }
    0
}
