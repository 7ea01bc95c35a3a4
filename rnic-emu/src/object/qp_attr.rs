//! Attribute values of a QP: which are possible, and how a modify_qp takes them over.

use crate::abi::{consts::*, *};
use crate::device::attr::MAX_RD_ATOMIC;

/// Refuses values no port or QP of the device can have.
///
/// # Errors
/// EINVAL.
pub fn check(new: &ibv_qp_attr, mask: i32) -> Result<(), i32> {
    let given = |bit| mask & bit != 0;
    let bad = given(IBV_QP_PORT) && new.port_num != 1
        || given(IBV_QP_PKEY_INDEX) && new.pkey_index != 0
        || given(IBV_QP_PATH_MTU) && !(IBV_MTU_256..=IBV_MTU_4096).contains(&new.path_mtu)
        || given(IBV_QP_MAX_QP_RD_ATOMIC) && new.max_rd_atomic > MAX_RD_ATOMIC
        || given(IBV_QP_MAX_DEST_RD_ATOMIC) && new.max_dest_rd_atomic > MAX_RD_ATOMIC
        || given(IBV_QP_TIMEOUT) && new.timeout > 31
        || given(IBV_QP_RETRY_CNT) && new.retry_cnt > 7
        || given(IBV_QP_RNR_RETRY) && new.rnr_retry > 7
        || given(IBV_QP_MIN_RNR_TIMER) && new.min_rnr_timer > 31
        || given(IBV_QP_DEST_QPN) && new.dest_qp_num >> 24 != 0
        || given(IBV_QP_AV) && !address_ok(&new.ah_attr)
        || given(IBV_QP_ALT_PATH) && !address_ok(&new.alt_ah_attr);
    if bad { Err(libc::EINVAL) } else { Ok(()) }
}

/// Whether an address can be reached from the port: on RoCE, only global ones from our one GID.
pub fn address_ok(ah: &ibv_ah_attr) -> bool {
    ah.is_global != 0 && ah.grh.sgid_index == 0 && (ah.port_num == 1)
}

/// Takes the attributes named in `mask` over into `current`.
pub fn take_over(current: &mut ibv_qp_attr, new: &ibv_qp_attr, mask: i32) {
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)+) => {
            $(if mask & $bit != 0 { $(current.$field = new.$field;)+ })+
        };
    }
    take! {
        IBV_QP_EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_PATH_MIG_STATE: path_mig_state;
        IBV_QP_DEST_QPN: dest_qp_num;
    }
    current.rq_psn &= PSN_MASK;
    current.sq_psn &= PSN_MASK;
}

/// Packet sequence numbers have 24 bits.
pub const PSN_MASK: u32 = 0xff_ffff;

/// Distance from `b` to `a` on the circle of sequence numbers: negative if `a` is older.
#[inline]
pub fn psn_distance(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8) as i32) >> 8
}

/// Bytes of a path MTU code; 4096 before one is set.
#[inline]
pub fn mtu_bytes(code: u32) -> u32 {
    if (IBV_MTU_256..=IBV_MTU_4096).contains(&code) { 128 << code } else { 4096 }
}

/// Packets of a message: at least one.
#[inline]
pub fn packets(len: u32, mtu_code: u32) -> u32 {
    len.div_ceil(mtu_bytes(mtu_code)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        assert_eq!(psn_distance(0, PSN_MASK), 1);
        assert_eq!(psn_distance(PSN_MASK, 0), -1);
        assert_eq!(psn_distance(5, 3), 2);
    }

    #[test]
    fn packets_of_a_message() {
        assert_eq!(packets(0, 3), 1);
        assert_eq!(packets(1024, 3), 1);
        assert_eq!(packets(1025, 3), 2);
        assert_eq!(packets(1 << 30, 1), 1 << 22);
    }

    #[test]
    fn impossible_values_are_refused() {
        let a =
            ibv_qp_attr { port_num: 2, timeout: 32, path_mtu: 6, dest_qp_num: 1 << 24, ..Default::default() };
        for bit in [IBV_QP_PORT, IBV_QP_TIMEOUT, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_AV] {
            assert_eq!(check(&a, bit), Err(libc::EINVAL));
        }
        assert_eq!(check(&a, 0), Ok(()));
    }

    #[test]
    fn only_named_attributes_are_taken_over() {
        let mut current = ibv_qp_attr { qkey: 1, timeout: 2, ..Default::default() };
        let new = ibv_qp_attr { qkey: 3, timeout: 4, sq_psn: u32::MAX, ..Default::default() };
        take_over(&mut current, &new, IBV_QP_QKEY | IBV_QP_SQ_PSN);
        assert_eq!((current.qkey, current.timeout, current.sq_psn), (3, 2, PSN_MASK));
    }
}
