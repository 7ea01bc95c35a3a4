//! `ibv_modify_qp`. Payload: 0 qp, 1 QPN and state before (high half), 2 mask, from 4 on `struct ibv_qp_attr`
//! (144 bytes) as the program passed it.

use crate::frames::Frame;
use crate::user::{fill, half};

/// Before the call: afterwards the object is in its new state.
#[inline(always)]
pub fn enter(frame: &mut Frame) {
    let qp = frame.args[0];
    frame.payload[0] = qp;
    let qpn = half(qp.wrapping_add(52)).unwrap_or(0) as u64;
    let state = half(qp.wrapping_add(56)).unwrap_or(u32::MAX) as u64;
    frame.payload[1] = state << 32 | qpn;
    frame.payload[2] = frame.args[2] & 0xffff_ffff;
    // SAFETY: words 4 to 21 are the payload's last eighteen.
    let attr = unsafe { &mut *(&raw mut frame.payload[4]).cast::<[u64; 18]>() };
    fill(attr, frame.args[1]);
}
