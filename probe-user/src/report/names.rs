//! Numbers of the verbs and the system as names.

/// `ENOMEM` for 12; the number where it has no name.
pub fn errno(number: i32) -> String {
    match nix::errno::Errno::from_raw(number) {
        _ if number < 0 => "unknown".to_owned(),
        nix::errno::Errno::UnknownErrno => number.to_string(),
        errno => format!("{errno:?}"),
    }
}

/// `enum ibv_event_type` of verbs.h, without its common prefix.
const ASYNC_EVENTS: [&str; 20] = [
    "CQ_ERR",
    "QP_FATAL",
    "QP_REQ_ERR",
    "QP_ACCESS_ERR",
    "COMM_EST",
    "SQ_DRAINED",
    "PATH_MIG",
    "PATH_MIG_ERR",
    "DEVICE_FATAL",
    "PORT_ACTIVE",
    "PORT_ERR",
    "LID_CHANGE",
    "PKEY_CHANGE",
    "SM_CHANGE",
    "SRQ_ERR",
    "SRQ_LIMIT_REACHED",
    "QP_LAST_WQE_REACHED",
    "CLIENT_REREGISTER",
    "GID_CHANGE",
    "WQ_FATAL",
];

/// An async event's name; the number where it has none.
pub fn async_event(number: u32) -> String {
    ASYNC_EVENTS.get(number as usize).map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

/// `enum ibv_wc_status` of verbs.h, without its common prefix.
const WC_STATUSES: [&str; 24] = [
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    "TM_ERR",
    "TM_RNDV_INCOMPLETE",
];

/// The name of a completion's status, where it has one.
pub fn known_wc_status(number: u32) -> Option<&'static str> {
    WC_STATUSES.get(number as usize).copied()
}

/// The name of a completion's status; the number where it has none.
pub fn wc_status(number: u32) -> String {
    known_wc_status(number).map_or_else(|| number.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_have_names_and_others_stay_numbers() {
        assert_eq!(errno(12), "ENOMEM");
        assert_eq!(errno(-1), "unknown");
        assert_eq!(errno(4000), "4000");
        assert_eq!(
            (async_event(10), async_event(19), async_event(77)),
            ("PORT_ERR".into(), "WQ_FATAL".into(), "77".into())
        );
        assert_eq!(
            (wc_status(5), wc_status(12), wc_status(99)),
            ("WR_FLUSH_ERR".into(), "RETRY_EXC_ERR".into(), "99".into())
        );
    }
}
