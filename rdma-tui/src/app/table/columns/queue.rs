//! Columns of queue pairs, completion queues and shared receive queues.

use std::borrow::Cow;

use super::super::super::format::Unit;
use super::super::super::value::Value;
use super::super::Row;
use super::posting::{
    BATCH, CQE_BATCH, CQE_COUNT, CQE_ERRORS, CQE_RATE, EMPTY, OUTSTANDING, POLL_RATE, REFUSED, SIGNALLED,
    WR_COUNT, WR_RATE,
};
use super::{COMM, Column, PID, figure, words};

macro_rules! qp {
    ($qp:ident => $value:expr) => {
        |_, r| match *r {
            Row::Qp(_, $qp) => $value,
            _ => Value::Missing,
        }
    };
}

pub(super) const QPN: Column =
    figure("qpn", "QPN", Unit::Id, 9, 0, "queue pair number", qp!(qp => Value::count(qp.qpn.into())));

pub(super) static QPS: &[Column] = &[
    PID,
    COMM,
    QPN,
    words("qp.type", "TYPE", 5, 1, "RC, UC, UD, …", qp!(qp => Value::text(&qp.qp_type))),
    words(
        "qp.state",
        "STATE",
        6,
        0,
        "state after the last successful change",
        qp!(qp => Value::of_text(qp.state.as_deref())),
    ),
    WR_RATE,
    SIGNALLED,
    BATCH,
    WR_COUNT,
    REFUSED,
    OUTSTANDING,
    words("qp.peer", "PEER", 18, 1, "the other end: GID or LID, and QPN", qp!(qp => peer(qp))),
    figure(
        "qp.depth",
        "SENDQ",
        Unit::Count,
        6,
        2,
        "send queue depth, WRs",
        qp!(qp => known(qp.max_send_wr, qp)),
    ),
    figure(
        "qp.recv_depth",
        "RECVQ",
        Unit::Count,
        6,
        3,
        "receive queue depth, WRs",
        qp!(qp => known(qp.max_recv_wr, qp)),
    ),
    words(
        "qp.signal_all",
        "SIGALL",
        6,
        3,
        "created with sq_sig_all: every send makes a completion",
        qp!(qp => {
            if qp.created_ns.is_some() { Value::Text(Cow::Borrowed(if qp.sq_sig_all { "yes" } else { "no" })) } else { Value::Missing }
        }),
    ),
    figure(
        "qp.inline",
        "INLINE",
        Unit::Bytes,
        8,
        4,
        "longest inline send",
        qp!(qp => known(qp.max_inline_bytes, qp)),
    ),
    figure(
        "qp.mtu",
        "MTU",
        Unit::Count,
        5,
        4,
        "path MTU, bytes",
        qp!(qp => Value::of_count(qp.attributes.path_mtu_bytes.map(u64::from))),
    ),
    figure(
        "qp.rd_atomic",
        "RD",
        Unit::Count,
        4,
        5,
        "READs and atomics in flight at most (max_rd_atomic)",
        qp!(qp => Value::of_count(qp.attributes.max_rd_atomic.map(u64::from))),
    ),
    figure(
        "qp.retry",
        "RETRY",
        Unit::Count,
        5,
        5,
        "transport retries (retry_cnt)",
        qp!(qp => Value::of_count(qp.attributes.retry_cnt.map(u64::from))),
    ),
    figure(
        "qp.rnr_retry",
        "RNR",
        Unit::Count,
        4,
        5,
        "receiver-not-ready retries; 7 is for ever",
        qp!(qp => Value::of_count(qp.attributes.rnr_retry.map(u64::from))),
    ),
    figure(
        "qp.cq",
        "CQ",
        Unit::Address,
        15,
        6,
        "completion queue of its sends",
        qp!(qp => if qp.send_cq == 0 { Value::Missing } else { Value::count(qp.send_cq) }),
    ),
    figure("qp.on_cq", "ON CQ", Unit::Count, 5, 3, "QPs that share that completion queue", |_, r| match *r {
        Row::Qp(p, qp) => Value::of_count(p.queues.cqs().get(&qp.send_cq).map(|cq| cq.qps.live)),
        _ => Value::Missing,
    }),
    figure(
        "qp.age",
        "AGE",
        Unit::Nanoseconds,
        12,
        4,
        "since its creation; missing where it is older than the recording",
        |w, r| match *r {
            Row::Qp(_, qp) => Value::of_count(qp.created_ns.map(|t| w.model.now_ns.saturating_sub(t))),
            _ => Value::Missing,
        },
    ),
    figure(
        "qp.failed",
        "FAILED",
        Unit::Count,
        6,
        2,
        "state changes that failed",
        qp!(qp => Value::count(qp.failed_changes)),
    ),
];

/// A capacity, where the creation was seen.
fn known(n: u32, qp: &probe_user::model::Qp) -> Value<'static> {
    if qp.created_ns.is_some() { Value::count(n.into()) } else { Value::Missing }
}

/// The other end of a QP, as `ibv_modify_qp` named it.
fn peer(qp: &probe_user::model::Qp) -> Value<'_> {
    let a = &qp.attributes;
    let host = match (&a.dgid, a.dlid) {
        (Some(gid), _) if !gid.is_empty() => Some(short_gid(gid)),
        (_, Some(lid)) if lid != 0 => Some(format!("lid {lid}")),
        _ => None,
    };
    match (host, a.dest_qpn) {
        (Some(host), Some(qpn)) => Value::Text(format!("{host} #{qpn}").into()),
        (None, Some(qpn)) => Value::Text(format!("#{qpn}").into()),
        (Some(host), None) => Value::Text(host.into()),
        (None, None) => Value::Missing,
    }
}

/// An IPv4 address in a GID as people write it; others as they are.
fn short_gid(gid: &str) -> String {
    match gid.parse::<std::net::Ipv6Addr>() {
        Ok(address) => match address.to_ipv4_mapped() {
            Some(v4) => v4.to_string(),
            None => address.to_string(),
        },
        Err(_) => super::super::super::format::harmless(gid).into_owned(),
    }
}

pub(super) static CQS: &[Column] = &[
    PID,
    COMM,
    figure("cq", "CQ", Unit::Address, 16, 0, "the process's own pointer", |_, r| match *r {
        Row::Cq(_, cq, _) => Value::count(cq),
        _ => Value::Missing,
    }),
    figure("cq.qps", "QPs", Unit::Count, 6, 0, "queue pairs that complete into it, now", |_, r| match *r {
        Row::Cq(_, _, cq) => Value::count(cq.qps.live),
        _ => Value::Missing,
    }),
    figure("cq.peak", "PEAK", Unit::Count, 6, 2, "most queue pairs at once", |_, r| match *r {
        Row::Cq(_, _, cq) => Value::count(cq.qps.peak),
        _ => Value::Missing,
    }),
    figure("cq.depth", "ENTRIES", Unit::Count, 8, 0, "completions it holds", |_, r| match *r {
        Row::Cq(_, _, cq) if cq.created_ns.is_some() => Value::count(cq.cqe.into()),
        _ => Value::Missing,
    }),
    CQE_RATE,
    CQE_COUNT,
    POLL_RATE,
    EMPTY,
    CQE_BATCH,
    CQE_ERRORS,
    words("cq.mode", "WAITS BY", 9, 1, "completion channel (events) or polling only", |_, r| match *r {
        Row::Cq(_, _, cq) if cq.created_ns.is_some() => {
            Value::Text(Cow::Borrowed(if cq.channel == 0 { "polling" } else { "events" }))
        }
        _ => Value::Missing,
    }),
    words("cq.users", "QPNs", 30, 3, "who shares it", |_, r| match *r {
        Row::Cq(p, cq, _) => {
            let qpns = p.queues.sharers(cq);
            let mut text = qpns.iter().take(8).map(u32::to_string).collect::<Vec<_>>().join(" ");
            if qpns.len() > 8 {
                text.push_str(&format!(" +{}", qpns.len() - 8));
            }
            if text.is_empty() { Value::Missing } else { Value::Text(text.into()) }
        }
        _ => Value::Missing,
    }),
    figure(
        "cq.age",
        "AGE",
        Unit::Nanoseconds,
        12,
        2,
        "since its creation; missing where it is older than the recording",
        |w, r| match *r {
            Row::Cq(_, _, cq) => Value::of_count(cq.created_ns.map(|t| w.model.now_ns.saturating_sub(t))),
            _ => Value::Missing,
        },
    ),
];

pub(super) static SRQS: &[Column] = &[
    PID,
    COMM,
    figure("srq", "SRQ", Unit::Address, 16, 0, "the process's own pointer", |_, r| match *r {
        Row::Srq(_, srq, _) => Value::count(srq),
        _ => Value::Missing,
    }),
    figure("srq.depth", "DEPTH", Unit::Count, 7, 0, "receives it holds", |_, r| match *r {
        Row::Srq(_, _, srq) => Value::count(srq.max_wr.into()),
        _ => Value::Missing,
    }),
    figure("srq.qps", "QPs", Unit::Count, 6, 0, "queue pairs that receive from it, now", |_, r| match *r {
        Row::Srq(_, _, srq) => Value::count(srq.qps.live),
        _ => Value::Missing,
    }),
    figure("srq.peak", "PEAK", Unit::Count, 6, 2, "most queue pairs at once", |_, r| match *r {
        Row::Srq(_, _, srq) => Value::count(srq.qps.peak),
        _ => Value::Missing,
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_ipv4_gid_reads_as_an_address() {
        assert_eq!(short_gid("::ffff:10.0.0.7"), "10.0.0.7");
        assert_eq!(short_gid("0000:0000:0000:0000:0000:ffff:0a00:0007"), "10.0.0.7");
        assert_eq!(short_gid("fe80::1"), "fe80::1");
        assert_eq!(short_gid("odd\x1b"), "odd?");
    }
}
