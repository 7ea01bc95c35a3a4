//! Shared receive queues.

use super::{events, or_null};
use crate::abi::{consts::*, *};
use crate::device::{attr, context::DeviceContext};
use crate::object::pd::Pd;
use crate::object::recv_ring::RecvRing;
use crate::object::srq::{Srq, SrqQueue};
use crate::stats::ProcessCounter;
use crate::sys::lock::Lock;
use libc::{c_int, c_void};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// `ibv_create_srq`.
///
/// # Safety
/// A live PD of ours and a valid attribute.
pub unsafe fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller's promise.
    unsafe { or_null(create(pd, (*init).srq_context, &mut (*init).attr)) }
}

/// `ibv_create_srq_ex`: only the basic type.
///
/// # Safety
/// A live context of ours and a valid attribute.
pub unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller's promise.
    let a = unsafe { &mut *init };
    let basic = a.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || a.srq_type == IBV_SRQT_BASIC;
    if a.comp_mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 || !basic {
        return or_null(Err(libc::EOPNOTSUPP));
    }
    if a.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || a.pd.is_null() {
        return or_null(Err(libc::EINVAL));
    }
    // SAFETY: the caller's promise.
    unsafe { or_null(create(a.pd, a.srq_context, &mut a.attr)) }
}

/// # Safety
/// A live PD of ours.
unsafe fn create(
    ibv: *mut ibv_pd,
    srq_context: *mut c_void,
    wanted: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, i32> {
    // SAFETY: the caller's promise.
    let (pd, ctx) = unsafe { (Pd::of(ibv), DeviceContext::of((*ibv).context)) };
    let process = ctx.alive()?;
    if wanted.max_wr == 0 || wanted.max_wr > attr::MAX_WR || wanted.max_sge > attr::MAX_SGE {
        return Err(libc::EINVAL);
    }
    wanted.max_sge = wanted.max_sge.max(1);
    // SAFETY: pointers and integers; all zeroes is a valid value.
    let mut view: ibv_srq = unsafe { std::mem::zeroed() };
    view.context = pd.ibv.context;
    view.srq_context = srq_context;
    view.pd = ibv;
    view.handle = process.handle();
    pd.users.fetch_add(1, AcqRel);
    process.stats.add(ProcessCounter::SrqsCreated, 1);
    let srq = Srq {
        ibv: UnsafeCell::new(view),
        context: ctx,
        users: AtomicU32::new(0),
        freed: AtomicU64::new(0),
        pd: pd.id,
        async_taken: AtomicU32::new(0),
        queue: Lock::new(SrqQueue { ring: RecvRing::new(wanted.max_wr, wanted.max_sge), limit: 0 }),
    };
    Ok(Box::into_raw(Box::new(srq)).cast())
}

/// `ibv_modify_srq`: arms the limit, changes the size.
///
/// # Safety
/// A live SRQ of ours and a valid attribute.
pub unsafe fn modify_srq(ibv: *mut ibv_srq, new: *const ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let (srq, new) = unsafe { (Srq::of(ibv), &*new) };
    if mask & !(IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR) != 0 {
        return libc::EINVAL;
    }
    let mut queue = srq.queue.lock();
    if mask & IBV_SRQ_MAX_WR != 0 {
        let outstanding = queue.ring.posted().saturating_sub(srq.freed.load(Acquire));
        if new.max_wr == 0 || new.max_wr > attr::MAX_WR || u64::from(new.max_wr) < outstanding {
            return libc::EINVAL;
        }
        queue.ring.resize(new.max_wr);
    }
    if mask & IBV_SRQ_LIMIT != 0 {
        if new.srq_limit > queue.ring.max_wr() {
            return libc::EINVAL;
        }
        queue.limit = new.srq_limit;
    }
    0
}

/// `ibv_query_srq`.
///
/// # Safety
/// A live SRQ of ours and a place for the answer.
pub unsafe fn query_srq(ibv: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller's promise.
    let queue = unsafe { Srq::of(ibv) }.queue.lock();
    let answer =
        ibv_srq_attr { max_wr: queue.ring.max_wr(), max_sge: queue.ring.max_sge(), srq_limit: queue.limit };
    // SAFETY: the caller's promise.
    unsafe { out.write(answer) };
    0
}

/// `ibv_destroy_srq`: EBUSY while QPs take from it; waits for its events to be acknowledged.
///
/// # Safety
/// A live SRQ of ours.
pub unsafe fn destroy_srq(ibv: *mut ibv_srq) -> c_int {
    // SAFETY: the caller's promise.
    let (srq, ctx) = unsafe { (Srq::of(ibv), DeviceContext::of((*ibv).context)) };
    if ctx.alive().is_err() {
        return libc::EIO;
    }
    if srq.users.load(Acquire) != 0 {
        return libc::EBUSY;
    }
    ctx.async_events.forget(ibv as usize);
    // SAFETY: the SRQ is alive until the box is dropped; its PD outlives it.
    unsafe {
        events::wait_acknowledged(&raw mut (*ibv).events_completed, srq.async_taken.load(Acquire));
        Pd::of((*ibv).pd).users.fetch_sub(1, AcqRel);
        drop(Box::from_raw(ibv.cast::<Srq>()));
    }
    0
}
