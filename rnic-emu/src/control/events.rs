//! Completion channels and asynchronous events.

use super::or_null;
use crate::abi::{consts::*, *};
use crate::device::context::DeviceContext;
use crate::object::channel::Channel;
use crate::object::cq::Cq;
use crate::object::qp::Qp;
use crate::object::srq::Srq;
use crate::stats::ProcessCounter;
use crate::sys::bell::Bell;
use crate::sys::lock::{Lock, futex_wake};
use libc::{c_int, c_void};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// `ibv_create_comp_channel`.
///
/// # Safety
/// A live context of ours.
pub unsafe fn create_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: the caller's promise.
    let ctx = unsafe { DeviceContext::of(context) };
    or_null(ctx.alive().and_then(|process| {
        let bell = Bell::new(false).map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        process.stats.add(ProcessCounter::ChannelsCreated, 1);
        let channel = Channel {
            ibv: ibv_comp_channel { context, fd: bell.raw(), refcnt: 0 },
            bell,
            queue: Lock::new(VecDeque::with_capacity(16)),
            users: AtomicU32::new(0),
        };
        Ok(Box::into_raw(Box::new(channel)).cast())
    }))
}

/// `ibv_destroy_comp_channel`: EBUSY while CQs report to it.
///
/// # Safety
/// A live channel of ours.
pub unsafe fn destroy_channel(ibv: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { Channel::of(ibv) }.users.load(Acquire) != 0 {
        return libc::EBUSY;
    }
    // SAFETY: the box `create_channel` leaked, used by no CQ.
    drop(unsafe { Box::from_raw(ibv.cast::<Channel>()) });
    0
}

/// `ibv_get_cq_event`: -1 with `errno` of the read.
///
/// # Safety
/// A live channel of ours and places for the answer.
pub unsafe fn get_cq_event(
    ibv: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let (channel, ctx) = unsafe { (Channel::of(ibv), DeviceContext::of((*ibv).context)) };
    let Ok(process) = ctx.alive() else {
        super::set_errno(libc::EIO);
        return -1;
    };
    // Nobody polls while this thread waits: peers must wake the helper, also for what has just come.
    process.wire.program_sleeps(process);
    match channel.take() {
        Ok(taken) => {
            process.stats.add(ProcessCounter::CqEventsTaken, 1);
            // SAFETY: a CQ with an event not yet acknowledged is alive.
            unsafe {
                Cq::of(taken).events_taken.fetch_add(1, AcqRel);
                *cq = taken;
                *cq_context = (*taken).cq_context;
            }
            0
        }
        Err(e) => {
            super::set_errno(e.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// A live CQ of ours.
pub unsafe fn ack_cq_events(ibv: *mut ibv_cq, n: u32) {
    // SAFETY: the caller's promise.
    unsafe { acknowledge(&raw mut (*ibv).comp_events_completed, n) };
}

/// `ibv_get_async_event`: -1 with `errno` of the read.
///
/// # Safety
/// A live context of ours and a place for the answer.
pub unsafe fn get_async_event(context: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    // SAFETY: the caller's promise.
    let ctx = unsafe { DeviceContext::of(context) };
    match ctx.async_events.take() {
        Ok(event) => {
            // SAFETY: objects with an event not yet acknowledged are alive; the place is the caller's promise.
            unsafe {
                match subject(event.event_type) {
                    Subject::Cq => Cq::of(event.element as *mut ibv_cq).async_taken.fetch_add(1, AcqRel),
                    Subject::Qp => Qp::of(event.element as *mut ibv_qp).async_taken.fetch_add(1, AcqRel),
                    Subject::Srq => Srq::of(event.element as *mut ibv_srq).async_taken.fetch_add(1, AcqRel),
                    Subject::Port => 0,
                };
                out.write(event);
            }
            0
        }
        Err(e) => {
            super::set_errno(e.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// An event fetched from a device of ours and not yet acknowledged.
pub unsafe fn ack_async_event(event: *const ibv_async_event) {
    // SAFETY: the caller's promise: the subject is alive.
    unsafe {
        let event = &*event;
        match subject(event.event_type) {
            Subject::Cq => {
                acknowledge(&raw mut (*(event.element as *mut ibv_cq)).async_events_completed, 1);
            }
            Subject::Qp => acknowledge(&raw mut (*(event.element as *mut ibv_qp)).events_completed, 1),
            Subject::Srq => acknowledge(&raw mut (*(event.element as *mut ibv_srq)).events_completed, 1),
            Subject::Port => {}
        }
    }
}

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// A shared receive queue.
    Srq,
    /// The port or the device.
    Port,
}

/// What events of this type are about.
pub fn subject(event_type: i32) -> Subject {
    match event_type {
        IBV_EVENT_CQ_ERR => Subject::Cq,
        IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => Subject::Qp,
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Subject::Srq,
        _ => Subject::Port,
    }
}

/// # Safety
/// `word` belongs to a live object.
unsafe fn acknowledge(word: *mut u32, n: u32) {
    // SAFETY: the caller's promise; the word is only used atomically.
    let word = unsafe { AtomicU32::from_ptr(word) };
    word.fetch_add(n, AcqRel);
    futex_wake(word, i32::MAX);
}

/// Waits until `taken` events have been acknowledged, as destroying an object does.
///
/// # Safety
/// `word` belongs to a live object.
pub unsafe fn wait_acknowledged(word: *mut u32, taken: u32) {
    // SAFETY: the caller's promise; the word is only used atomically.
    let word = unsafe { AtomicU32::from_ptr(word) };
    loop {
        let seen = word.load(Acquire);
        // A program that acknowledges more than it took only harms itself: do not wait for the difference.
        if taken.wrapping_sub(seen) as i32 <= 0 {
            return;
        }
        crate::sys::lock::futex_wait(word, seen, None);
    }
}
