//! Rules on how queue pairs are connected, and how long that takes.

use std::collections::BTreeMap;

use probe_user::doctor::Severity;
use probe_user::sample::{Call, Detail, Gid, Opcode, QpAttributes, QueueCounts};

use super::case::{Case, SECOND, busy, nic, qp, with_nic};

#[test]
fn a_peer_that_does_not_resolve_is_told_from_a_refused_attribute() {
    let to_rtr = QpAttributes { qp: 10, qpn: 17, to: Some("RTR".into()), ..QpAttributes::default() };
    let fails = |errno| {
        Case::new().queues().failed(Call::ModifyQp, errno, Detail::ModifyQp(to_rtr.clone())).findings()
    };
    let found = fails(libc::ETIMEDOUT);
    assert_eq!((found[0].id, found.len()), ("peer-unresolved", 1));
    let found = fails(libc::EINVAL);
    assert_eq!((found[0].id, found.len()), ("qp-change-failed", 1));
}

#[test]
fn path_mtu_against_the_ports() {
    let mtu = |bytes| {
        with_nic(nic(&[])).rtr(QpAttributes { path_mtu_bytes: Some(bytes), ..QpAttributes::default() })
    };
    mtu(1024).has("path-mtu-small");
    mtu(4096).lacks("path-mtu-small");
    mtu(4096).lacks("path-mtu-large");
    let mut slow = nic(&[]);
    slow.ports[0].active_mtu_bytes = 1024;
    with_nic(slow)
        .rtr(QpAttributes { path_mtu_bytes: Some(4096), ..QpAttributes::default() })
        .has("path-mtu-large");
}

#[test]
fn a_gid_that_is_not_routed() {
    let gid = |index, gid: &str, kind: &str| Gid { index, gid: gid.into(), gid_type: kind.into() };
    let goes_out = |index| {
        let mut device = nic(&[]);
        device.ports[0].gids = vec![
            gid(0, "fe80:0000::1", "IB/RoCE v1"),
            gid(1, "fe80:0000::1", "RoCE v2"),
            gid(3, "0000::ffff:0a00:0001", "RoCE v2"),
        ];
        with_nic(device).rtr(QpAttributes {
            sgid_index: Some(index),
            port: Some(1),
            ..QpAttributes::default()
        })
    };
    assert!(goes_out(0).has("gid-wrong-type").title.contains("RoCE v1"));
    assert!(goes_out(1).has("gid-wrong-type").title.contains("link-local"));
    goes_out(3).lacks("gid-wrong-type");
}

#[test]
fn one_read_at_a_time_is_told_where_more_were_posted() {
    let reads = |most| {
        let (mut qp, cq) = busy();
        qp.opcodes = BTreeMap::from([(Opcode::RdmaRead, qp.wrs)]);
        qp.detail.as_mut().unwrap().most_outstanding = most;
        let one = QpAttributes { max_rd_atomic: Some(1), ..QpAttributes::default() };
        with_nic(nic(&[])).rtr(one).counts(qp, cq)
    };
    let found = reads(Some(32)).has("reads-one-at-a-time");
    assert!(found.evidence[1].text.contains("up to 32 requests posted at a time"), "{found:#?}");
    reads(None).has("reads-one-at-a-time");
    // Who posts one and waits for it loses nothing.
    reads(Some(1)).lacks("reads-one-at-a-time");
}

#[test]
fn what_the_longest_receiver_not_ready_timer_cost_is_told_and_polling_meanwhile_is_not() {
    let met = |events: u64, timer| {
        let polls = QueueCounts { polls: 5_000_000, empty_polls: 4_999_900, cqes: 100, ..Default::default() };
        let few = QueueCounts { wrs: 500, post_calls: 500, signalled: 100, ..Default::default() };
        with_nic(nic(&[("rnr_nak_retry_err", 1)]))
            .rtr(QpAttributes { min_rnr_timer: Some(timer), ..QpAttributes::default() })
            .devices(vec![nic(&[("rnr_nak_retry_err", 1 + events)])])
            .counts(few, polls)
    };
    let found = met(10, 0).has("rnr-timer-zero");
    assert_eq!(found.severity, Severity::Problem);
    assert_eq!(found.title, "1 queue pair waits 655 ms for each receive that is late");
    assert!(found.cost.text.contains("6.55 s of waiting in 10"), "{found:#?}");
    met(10, 0).lacks("busy-poll-idle");
    met(10, 12).has("busy-poll-idle");
    let possible = met(0, 0).has("rnr-timer-zero");
    assert_eq!((possible.severity, possible.cost.text.as_str()), (Severity::Warning, ""));
}

#[test]
fn waits_for_receives_are_weighed_by_the_timer_they_take() {
    let met = |timer| {
        let (qp, cq) = busy();
        with_nic(nic(&[("rnr_nak_retry_err", 1)]))
            .rtr(QpAttributes { min_rnr_timer: Some(timer), ..QpAttributes::default() })
            .devices(vec![nic(&[("rnr_nak_retry_err", 1001)])])
            .counts(qp, cq)
            .has("receiver-not-ready")
    };
    // A thousand waits of 10 µs in ten seconds, and of 0.64 ms.
    let (short, long) = (met(1), met(12));
    assert_eq!((short.severity, long.severity), (Severity::Note, Severity::Warning));
    assert!(long.cost.text.contains("640 ms of waiting in 10"), "{long:#?}");
}

#[test]
fn one_queue_pair_outside_the_traffic_class() {
    let classes = |last: u8| {
        (0..10).fold(Case::new(), |case, i| {
            let attributes = QpAttributes {
                qp: 10 + i,
                qpn: i as u32,
                to: Some("RTR".into()),
                traffic_class: Some(if i == 9 { last } else { 106 }),
                ..QpAttributes::default()
            };
            case.event(3 + i, 1, Call::CreateQp, qp(10 + i, i as u32)).event(
                20 + i,
                1,
                Call::ModifyQp,
                Detail::ModifyQp(attributes),
            )
        })
    };
    let found = classes(0).has("traffic-class-mixed");
    assert_eq!(found.evidence[1].qpns, [9]);
    classes(106).lacks("traffic-class-mixed");
}

#[test]
fn connections_that_take_long_or_are_refused() {
    let connects = |after_ns, kind, status| {
        let cm = |event, status| Detail::Cm { id: 9, event, status };
        Case::new().event(10, 5, Call::CmConnect, cm(0, 0)).event(
            10 + after_ns,
            5,
            Call::CmGetEvent,
            cm(kind, status),
        )
    };
    connects(SECOND, 9, 0).has("connect-slow");
    connects(1_000_000, 9, 0).lacks("connect-slow");
    connects(1_000_000, 8, 28).has("connect-failed");
}

#[test]
fn queue_pairs_that_come_and_go_are_told_from_a_program_that_ends() {
    let lives = |n: u64, at_once: u64, takes: u64| {
        (0..n).fold(Case::new(), |case, i| {
            let born = 1000 + i * SECOND / n * 9;
            let dies = born + SECOND / n * 9 * at_once;
            let made = case.event(born, takes, Call::CreateQp, qp(100 + i % at_once, 20 + i as u32));
            made.event(dies, takes, Call::DestroyQp, Detail::Object { object: 100 + i % at_once })
        })
    };
    lives(400, 1, 5_000_000).has("qp-churn");
    lives(400, 1, 50_000).lacks("qp-churn");
    lives(30, 1, 5_000_000).lacks("qp-churn");
    // Made one after the other, and destroyed by a program that ends.
    let together = (0..400).fold(Case::new(), |case, i| {
        case.event(1000 + i, 5_000_000, Call::CreateQp, qp(100 + i, 20 + i as u32))
    });
    (0..400)
        .fold(together, |case, i| {
            case.event(9 * SECOND + i, 5_000_000, Call::DestroyQp, Detail::Object { object: 100 + i })
        })
        .lacks("qp-churn");
}
