//! Queue pairs, completion queues, shared receive queues.
//!
//! Payloads. QP: 0 qp, 1 pd, 2 QPN and type (high half), 3 send_cq, 4 recv_cq, 5 srq, 6 max_send_wr and max_recv_wr,
//! 7 max_send_sge and max_recv_sge, 8 max_inline_data and sq_sig_all. CQ: 0 cq, 1 cqe, 2 channel. SRQ: 0 srq, 1 max_wr.
//!
//! `struct ibv_qp`: pd 16, send_cq 24, recv_cq 32, srq 40, qp_num 52, state 56, qp_type 60. `struct ibv_cq`:
//! channel 8, cqe 28. `struct ibv_qp_init_attr` and, up to there alike, `_ex`: send_cq 8, recv_cq 16, srq 24,
//! cap 32 (five u32), qp_type 52, sq_sig_all 56. `struct ibv_cq_init_attr_ex`: cqe 0, channel 16.
//! `struct ibv_srq_init_attr` and `_ex`: max_wr 8.

use probe_common::Layout;

use crate::frames::Frame;
use crate::user::{half, read, word};

/// Before `ibv_destroy_qp`, which frees the object.
#[inline(always)]
pub fn enter_destroy_qp(frame: &mut Frame) {
    let qp = frame.args[0];
    frame.payload[0] = qp;
    of_qp(frame, qp);
}

/// After a creation: the attributes now hold what was granted, not what was asked for.
#[inline(always)]
pub fn leave_create_qp(layout: u8, frame: &mut Frame, value: u64, failed: bool) {
    let args = &frame.args;
    let (qp, attr) = if layout == Layout::CreateQp as u8 || layout == Layout::CreateQpEx as u8 {
        (value, args[1])
    } else {
        (args[1], args[2])
    };
    frame.payload[0] = qp;
    if let Some(init) = read::<[u64; 8]>(attr) {
        frame.payload[3] = init[1];
        frame.payload[4] = init[2];
        frame.payload[5] = init[3];
        // cap: max_send_wr, max_recv_wr | max_send_sge, max_recv_sge | max_inline_data, then qp_type | sq_sig_all.
        frame.payload[6] = init[4];
        frame.payload[7] = init[5];
        let sq_sig_all = (init[7] as u32 != 0) as u64;
        frame.payload[8] = (init[6] & 0xffff_ffff) | sq_sig_all << 32;
        frame.payload[2] = init[6] & 0xffff_ffff_0000_0000;
    }
    if layout != Layout::CmdCreateQpEx as u8 && layout != Layout::CreateQpEx as u8 {
        frame.payload[1] = args[0];
    }
    if !failed {
        frame.payload[1] = word(qp.wrapping_add(16)).unwrap_or(0);
        let qpn = half(qp.wrapping_add(52)).unwrap_or(0) as u64;
        frame.payload[2] |= qpn;
    }
}

#[inline(always)]
fn of_qp(frame: &mut Frame, qp: u64) {
    frame.payload[1] = word(qp.wrapping_add(16)).unwrap_or(0);
    let qpn = half(qp.wrapping_add(52)).unwrap_or(0) as u64;
    let kind = half(qp.wrapping_add(60)).unwrap_or(0) as u64;
    frame.payload[2] = kind << 32 | qpn;
    frame.payload[3] = word(qp.wrapping_add(24)).unwrap_or(0);
    frame.payload[4] = word(qp.wrapping_add(32)).unwrap_or(0);
    frame.payload[5] = word(qp.wrapping_add(40)).unwrap_or(0);
}

/// Before a call on a CQ that may free it.
#[inline(always)]
pub fn enter_cq(frame: &mut Frame) {
    let cq = frame.args[0];
    frame.payload[0] = cq;
    frame.payload[1] = half(cq.wrapping_add(28)).unwrap_or(0) as u64;
    frame.payload[2] = word(cq.wrapping_add(8)).unwrap_or(0);
}

/// After a creation.
#[inline(always)]
pub fn leave_create_cq(layout: u8, frame: &mut Frame, value: u64, failed: bool) {
    let args = &frame.args;
    let (cq, asked, channel) = if layout == Layout::CreateCq as u8 {
        (value, args[1], args[3])
    } else if layout == Layout::CmdCreateCq as u8 {
        (args[4], args[1], args[2])
    } else {
        let attr = args[1];
        let cq = if layout == Layout::CmdCreateCqEx as u8 {
            args[2]
        } else if layout == Layout::CmdCreateCqEx2 as u8 {
            args[3]
        } else {
            value
        };
        (cq, half(attr).unwrap_or(0) as u64, word(attr.wrapping_add(16)).unwrap_or(0))
    };
    frame.payload[0] = cq;
    frame.payload[1] = asked & 0xffff_ffff;
    frame.payload[2] = channel;
    if !failed {
        // The size granted; commands of the lower layer fill it in only later.
        let granted = half(cq.wrapping_add(28)).unwrap_or(0) as u64;
        if granted != 0 {
            frame.payload[1] = granted;
        }
    }
}

/// After a creation.
#[inline(always)]
pub fn leave_create_srq(layout: u8, frame: &mut Frame, value: u64) {
    let args = &frame.args;
    let (srq, attr) = if layout == Layout::CreateSrq as u8 { (value, args[1]) } else { (args[1], args[2]) };
    frame.payload[0] = srq;
    frame.payload[1] = half(attr.wrapping_add(8)).unwrap_or(0) as u64;
}
