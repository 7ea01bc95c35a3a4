//! Completion and asynchronous events. Payload: 0 channel, CQ or context, 1 events acknowledged or event type,
//! 2 CQ that had an event, or the object of the asynchronous one.
//!
//! `struct ibv_async_event`: element 0, event_type 8.

use crate::frames::Frame;
use crate::user::{half, word};

/// After `ibv_get_cq_event(channel, cq **, context **)`.
#[inline(always)]
pub fn leave_get_cq_event(frame: &mut Frame, failed: bool) {
    frame.payload[0] = frame.args[0];
    if !failed {
        frame.payload[2] = word(frame.args[1]).unwrap_or(0);
    }
}

/// After `ibv_ack_cq_events(cq, n)`.
#[inline(always)]
pub fn leave_ack(frame: &mut Frame) {
    frame.payload[0] = frame.args[0];
    frame.payload[1] = frame.args[1] & 0xffff_ffff;
}

/// After `ibv_get_async_event(context, event *)`.
#[inline(always)]
pub fn leave_async_event(frame: &mut Frame, failed: bool) {
    frame.payload[0] = frame.args[0];
    if !failed {
        frame.payload[1] = half(frame.args[1].wrapping_add(8)).unwrap_or(0) as u64;
        frame.payload[2] = word(frame.args[1]).unwrap_or(0);
    }
}
