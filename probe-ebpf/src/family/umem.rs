//! Kernel calls on user memory. Payload: 0 address, 1 length, 2 whether inside a registration.

use probe_common::hook::Cookie;

use crate::frames::{Frame, IN_REGISTRATION};
use crate::maps::offset;
use crate::user::kernel;

/// Before a function whose arguments give the range.
#[inline(always)]
pub fn enter_range(cookie: Cookie, frame: &mut Frame) {
    frame.payload[0] = argument(frame, cookie.address_arg());
    frame.payload[1] = argument(frame, cookie.size_arg());
    frame.payload[2] = (frame.flags & IN_REGISTRATION != 0) as u64;
}

/// Before `ib_umem_release(umem)`, which frees the object; NULL is allowed.
#[inline(always)]
pub fn enter_release(frame: &mut Frame) {
    let umem = frame.args[0];
    if umem != 0 && offset!(umem_address) != 0 && offset!(umem_length) != 0 {
        frame.payload[0] = kernel(umem.wrapping_add(offset!(umem_address))).unwrap_or(0);
        frame.payload[1] = kernel(umem.wrapping_add(offset!(umem_length))).unwrap_or(0);
    }
    frame.payload[2] = (frame.flags & IN_REGISTRATION != 0) as u64;
}

/// After either.
#[inline(always)]
pub fn leave(frame: &Frame) -> u64 {
    frame.payload[1]
}

#[inline(always)]
fn argument(frame: &Frame, index: u8) -> u64 {
    match index {
        0 => frame.args[0],
        1 => frame.args[1],
        2 => frame.args[2],
        3 => frame.args[3],
        4 => frame.args[4],
        5 => frame.args[5],
        _ => 0,
    }
}
