//! Completion queues.

use super::{events, or_null};
use crate::abi::{consts::*, *};
use crate::device::{attr, context::DeviceContext};
use crate::object::channel::Channel;
use crate::object::cq::{Cq, CqRing, Poller};
use crate::poll;
use crate::stats::{MAX_CQS, ProcessCounter};
use crate::sys::lock::Lock;
use libc::{c_int, c_void};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// CQ indices in use.
static USED: [AtomicBool; MAX_CQS] = [const { AtomicBool::new(false) }; MAX_CQS];
static NEXT: AtomicU32 = AtomicU32::new(0);

struct Wanted {
    entries: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    flags: u32,
    wc_flags: u64,
    extended: bool,
}

/// `ibv_create_cq`.
///
/// # Safety
/// A live context of ours, and a live channel of it or null.
pub unsafe fn create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let wanted = Wanted {
        entries: entries.max(0) as u32,
        cq_context,
        channel,
        vector: vector as u32,
        flags: 0,
        wc_flags: 0,
        extended: false,
    };
    // SAFETY: the caller's promise.
    or_null(unsafe { create(context, &wanted) })
}

/// `ibv_create_cq_ex`.
///
/// # Safety
/// A live context of ours and a valid attribute.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller's promise.
    let a = unsafe { &*attr };
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    let flags = if a.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { a.flags } else { 0 };
    let known_flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let known_wc = IBV_WC_STANDARD_FLAGS
        | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
        | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    if a.comp_mask & !known != 0 || flags & !known_flags != 0 {
        return or_null(Err(libc::EINVAL));
    }
    if a.wc_flags & !known_wc != 0 {
        return or_null(Err(libc::EOPNOTSUPP));
    }
    let wanted = Wanted {
        entries: a.cqe,
        cq_context: a.cq_context,
        channel: a.channel,
        vector: a.comp_vector,
        flags,
        wc_flags: a.wc_flags,
        extended: true,
    };
    // SAFETY: the caller's promise.
    or_null(unsafe { create(context, &wanted) }).cast()
}

/// # Safety
/// As [`create_cq`].
unsafe fn create(context: *mut ibv_context, w: &Wanted) -> Result<*mut ibv_cq, i32> {
    // SAFETY: the caller's promise.
    let ctx = unsafe { DeviceContext::of(context) };
    let process = ctx.alive()?;
    if w.entries == 0 || w.entries > attr::MAX_CQE || w.vector >= ctx.verbs.context.num_comp_vectors as u32 {
        return Err(libc::EINVAL);
    }
    let index = claim_index()?;
    // SAFETY: the caller's promise.
    let channel = unsafe { w.channel.cast::<Channel>().as_ref() };
    let stats = process.stats.cq(index as usize);
    stats.open(index, ctx.device, w.entries);
    let mut ring = CqRing::new(w.entries, stats);
    ring.ignore_overrun = w.flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0;
    ring.stamps = w.wc_flags
        & (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        != 0;
    // SAFETY: pointers, integers and optional function pointers; all zeroes is a valid value.
    let mut ex: ibv_cq_ex = unsafe { std::mem::zeroed() };
    ex.base.context = context;
    ex.base.channel = w.channel;
    ex.base.cq_context = w.cq_context;
    ex.base.handle = index;
    ex.base.cqe = w.entries as c_int;
    if w.extended {
        poll::ex::install(&mut ex);
    }
    if let Some(channel) = channel {
        channel.users.fetch_add(1, AcqRel);
    }
    process.stats.add(ProcessCounter::CqsCreated, 1);
    let cq = Cq {
        ex: UnsafeCell::new(ex),
        context: ctx,
        channel,
        users: AtomicU32::new(0),
        events_taken: AtomicU32::new(0),
        async_taken: AtomicU32::new(0),
        index,
        ring: Lock::new(ring),
        poller: Lock::new(Poller::new(w.extended)),
    };
    Ok(Box::into_raw(Box::new(cq)).cast())
}

fn claim_index() -> Result<u32, i32> {
    let start = NEXT.fetch_add(1, Relaxed) as usize;
    (0..MAX_CQS)
        .map(|i| (start + i) % MAX_CQS)
        .find(|i| USED[*i].compare_exchange(false, true, AcqRel, Relaxed).is_ok())
        .map(|i| i as u32)
        .ok_or(libc::ENOMEM)
}

/// `ibv_resize_cq`.
///
/// # Safety
/// A live CQ of ours.
pub unsafe fn resize_cq(ibv: *mut ibv_cq, entries: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let cq = unsafe { Cq::of(ibv) };
    let Some(entries) = u32::try_from(entries).ok().filter(|n| (1..=attr::MAX_CQE).contains(n)) else {
        return libc::EINVAL;
    };
    if !cq.ring.lock().resize(entries) {
        return libc::EINVAL;
    }
    // SAFETY: the program's view; only this call changes the field.
    unsafe { (*ibv).cqe = entries as c_int };
    0
}

/// `ibv_destroy_cq`: EBUSY while queues complete into it; waits for its events to be acknowledged.
///
/// # Safety
/// A live CQ of ours.
pub unsafe fn destroy_cq(ibv: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's promise.
    let (cq, ctx) = unsafe { (Cq::of(ibv), DeviceContext::of((*ibv).context)) };
    let Ok(process) = ctx.alive() else { return libc::EIO };
    if cq.users.load(Acquire) != 0 {
        return libc::EBUSY;
    }
    if let Some(channel) = cq.channel {
        channel.forget(cq);
        channel.users.fetch_sub(1, AcqRel);
    }
    ctx.async_events.forget(ibv as usize);
    // SAFETY: the CQ is alive until the box is dropped.
    unsafe {
        events::wait_acknowledged(&raw mut (*ibv).comp_events_completed, cq.events_taken.load(Acquire));
        events::wait_acknowledged(&raw mut (*ibv).async_events_completed, cq.async_taken.load(Acquire));
    }
    process.stats.fold_cq(cq.ring.lock().stats);
    process.stats.add(ProcessCounter::CqsDestroyed, 1);
    USED[cq.index as usize].store(false, Release);
    // SAFETY: the box `create` leaked, used by no queue.
    drop(unsafe { Box::from_raw(ibv.cast::<Cq>()) });
    0
}
