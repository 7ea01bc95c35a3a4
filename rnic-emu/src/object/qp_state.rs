//! Which state transitions a QP may make, and with which attributes.
//!
//! The table is that of the InfiniBand specification (volume 1, 11.2.5.2) as the kernel enforces it for every device
//! in `ib_modify_qp_is_ok`.

use crate::abi::consts::*;

/// Attributes a transition needs and accepts, besides the state itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    /// Must be given.
    pub required: i32,
    /// May be given.
    pub optional: i32,
}

const NONE: Masks = Masks { required: 0, optional: 0 };

/// Checks a call of modify_qp against the table.
///
/// # Errors
/// EINVAL for a transition that does not exist, a missing attribute or one too many.
pub fn check(kind: u32, from: u32, to: u32, mask: i32) -> Result<(), i32> {
    let m = masks(kind, from, to).ok_or(libc::EINVAL)?;
    let given = mask & !IBV_QP_STATE;
    if given & m.required != m.required || given & !(m.required | m.optional) != 0 {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// The masks of a transition, `None` if there is no such transition.
pub fn masks(kind: u32, from: u32, to: u32) -> Option<Masks> {
    let by_kind = |rc, uc, ud| match kind {
        IBV_QPT_RC => rc,
        IBV_QPT_UC => uc,
        _ => ud,
    };
    let optional = |rc, uc, ud| Masks { required: 0, optional: by_kind(rc, uc, ud) };
    let connected_moves = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
    let datagram_moves = IBV_QP_CUR_STATE | IBV_QP_QKEY;
    let moves = (connected_moves | IBV_QP_MIN_RNR_TIMER, connected_moves, datagram_moves);
    let init = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    let (init_c, init_d) = (init | IBV_QP_ACCESS_FLAGS, init | IBV_QP_QKEY);
    Some(match (from, to) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) if from <= IBV_QPS_ERR => NONE,
        (IBV_QPS_RESET, IBV_QPS_INIT) => Masks { required: by_kind(init_c, init_c, init_d), optional: 0 },
        (IBV_QPS_INIT, IBV_QPS_INIT) => optional(init_c, init_c, init_d),
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            let uc = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            let extra = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
            Masks {
                required: by_kind(uc | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, uc, 0),
                optional: by_kind(extra, extra, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
            }
        }
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            let rc = IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC;
            Masks {
                required: by_kind(rc, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN),
                optional: by_kind(moves.0, moves.1, moves.2),
            }
        }
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => optional(moves.0, moves.1, moves.2),
        (IBV_QPS_RTS, IBV_QPS_SQD) => Masks { required: 0, optional: IBV_QP_EN_SQD_ASYNC_NOTIFY },
        (IBV_QPS_SQD, IBV_QPS_SQD) => {
            let uc =
                IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;
            let rc = uc
                | IBV_QP_PORT
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER;
            optional(rc, uc, IBV_QP_PKEY_INDEX | IBV_QP_QKEY)
        }
        (IBV_QPS_SQE, IBV_QPS_RTS) if kind != IBV_QPT_RC => {
            optional(0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS, datagram_moves)
        }
        _ => return None,
    })
}

/// What happens to a send posted in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPost {
    /// Not accepted.
    Refused,
    /// Queued and worked on.
    Runs,
    /// Queued until the QP leaves SQD.
    Waits,
    /// Completed at once as flushed.
    Flushes,
}

/// What a QP in `state` does with posted sends.
pub fn send_post(state: u32) -> SendPost {
    match state {
        IBV_QPS_RTS => SendPost::Runs,
        IBV_QPS_SQD => SendPost::Waits,
        IBV_QPS_SQE | IBV_QPS_ERR => SendPost::Flushes,
        _ => SendPost::Refused,
    }
}

/// Whether a QP in `state` serves incoming requests.
#[inline]
pub fn receives(state: u32) -> bool {
    matches!(state, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 7] =
        [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR];

    #[test]
    fn the_usual_path_of_an_rc_qp_is_allowed_with_exactly_its_attributes() {
        let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        let rtr = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let rts = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        for (from, to, mask) in [
            (IBV_QPS_RESET, IBV_QPS_INIT, init),
            (IBV_QPS_INIT, IBV_QPS_RTR, rtr),
            (IBV_QPS_RTR, IBV_QPS_RTS, rts),
        ] {
            assert_eq!(check(IBV_QPT_RC, from, to, mask), Ok(()));
            for bit in 1..26 {
                if mask & (1 << bit) != 0 {
                    assert_eq!(
                        check(IBV_QPT_RC, from, to, mask & !(1 << bit)),
                        Err(libc::EINVAL),
                        "without {bit}"
                    );
                }
            }
            assert_eq!(check(IBV_QPT_RC, from, to, mask | IBV_QP_CAP), Err(libc::EINVAL));
        }
    }

    #[test]
    fn every_state_can_go_to_reset_and_error() {
        for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
            for from in ALL {
                assert_eq!(check(kind, from, IBV_QPS_RESET, IBV_QP_STATE), Ok(()));
                assert_eq!(check(kind, from, IBV_QPS_ERR, IBV_QP_STATE), Ok(()));
            }
        }
    }

    #[test]
    fn no_state_is_skipped() {
        for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
            for (from, to) in [
                (IBV_QPS_RESET, IBV_QPS_RTR),
                (IBV_QPS_RESET, IBV_QPS_RTS),
                (IBV_QPS_INIT, IBV_QPS_RTS),
                (IBV_QPS_RTR, IBV_QPS_RTR),
                (IBV_QPS_RTR, IBV_QPS_SQD),
                (IBV_QPS_ERR, IBV_QPS_RTS),
                (IBV_QPS_RTS, IBV_QPS_INIT),
                (IBV_QPS_RTS, IBV_QPS_SQE),
                (IBV_QPS_RTS, 17),
            ] {
                assert_eq!(masks(kind, from, to), None, "{kind} {from} {to}");
            }
        }
        assert_eq!(masks(IBV_QPT_RC, IBV_QPS_SQE, IBV_QPS_RTS), None);
        assert!(masks(IBV_QPT_UD, IBV_QPS_SQE, IBV_QPS_RTS).is_some());
    }

    #[test]
    fn the_timeout_cannot_be_changed_in_rts() {
        assert_eq!(
            check(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_TIMEOUT),
            Err(libc::EINVAL)
        );
    }
}
