//! Memory regions. Payload: 0 mr, 1 pd, 2 address, 3 length, 4 access, 5 lkey and rkey (high half).
//!
//! `struct ibv_mr`: pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40. `struct ibv_mr_init_attr`: length 0,
//! access 8, iova 24, addr 32.

use probe_common::Layout;

use crate::frames::Frame;
use crate::user::{half, word};

/// Before `ibv_dereg_mr`, which frees the object.
#[inline(always)]
pub fn enter_dereg(frame: &mut Frame) {
    let mr = frame.args[0];
    frame.payload[0] = mr;
    frame.payload[1] = word(mr.wrapping_add(8)).unwrap_or(0);
    frame.payload[2] = word(mr.wrapping_add(16)).unwrap_or(0);
    frame.payload[3] = word(mr.wrapping_add(24)).unwrap_or(0);
    frame.payload[5] = keys(mr);
}

/// After any registration or deregistration.
#[inline(always)]
pub fn leave(layout: u8, frame: &mut Frame, value: u64, failed: bool) -> u64 {
    if layout == Layout::DeregMr as u8 {
        return frame.payload[3];
    }
    let args = &frame.args;
    let (mr, pd, address, length, access) = if layout == Layout::RegMr as u8 {
        (value, args[0], args[1], args[2], args[3])
    } else if layout == Layout::RegMrIova as u8 {
        (value, args[0], args[1], args[2], args[4])
    } else if layout == Layout::RegMrEx as u8 {
        let attr = args[1];
        (
            value,
            args[0],
            word(attr.wrapping_add(32)).unwrap_or(0),
            word(attr).unwrap_or(0),
            half(attr.wrapping_add(8)).unwrap_or(0) as u64,
        )
    } else if layout == Layout::CmdRegMr as u8 {
        (args[5], args[0], args[1], args[2], args[4])
    } else if layout == Layout::RegDmabufMr as u8 {
        (value, args[0], args[3], args[2], args[5])
    } else if layout == Layout::CmdRegDmMr as u8 {
        (args[5], args[0], args[2], args[3], args[4])
    } else {
        // ibv_rereg_mr: the object stays, and what the flags leave alone is in it.
        let mr = args[0];
        let pd = word(mr.wrapping_add(8)).unwrap_or(args[2]);
        let address = word(mr.wrapping_add(16)).unwrap_or(args[3]);
        let length = word(mr.wrapping_add(24)).unwrap_or(args[4]);
        (mr, pd, address, length, args[5])
    };
    frame.payload[0] = mr;
    frame.payload[1] = pd;
    frame.payload[2] = address;
    frame.payload[3] = length;
    frame.payload[4] = access & 0xffff_ffff;
    if !failed {
        frame.payload[5] = keys(mr);
    }
    length
}

#[inline(always)]
fn keys(mr: u64) -> u64 {
    let lkey = half(mr.wrapping_add(36)).unwrap_or(0) as u64;
    let rkey = half(mr.wrapping_add(40)).unwrap_or(0) as u64;
    rkey << 32 | lkey
}
