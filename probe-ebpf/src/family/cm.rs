//! Connection management. Payload: 0 rdma_cm_id, 1 event type, 2 status.
//!
//! `struct rdma_cm_event`: id 0, event 16, status 20.

use crate::frames::Frame;
use crate::user::{half, word};

/// After `rdma_get_cm_event(channel, event **)`.
#[inline(always)]
pub fn leave_get_event(frame: &mut Frame, failed: bool) {
    if failed {
        return;
    }
    let event = word(frame.args[1]).unwrap_or(0);
    frame.payload[0] = word(event).unwrap_or(0);
    frame.payload[1] = half(event.wrapping_add(16)).unwrap_or(0) as u64;
    frame.payload[2] = half(event.wrapping_add(20)).unwrap_or(0) as u64;
}
