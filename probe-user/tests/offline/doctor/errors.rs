//! Errors traced to queue pair, peer and region; what nobody reaps.

use std::collections::BTreeMap;

use probe_user::doctor::{Finding, Severity};
use probe_user::sample::{
    Call, Detail, FailedCqes, FailedRequest, Known, Observed, ObservedBy, Opcode, ProcessId, QpAttributes,
    QueueCounts, QueueDetail, Record, WorkRequest,
};

use super::case::{Case, SECOND, busy, qp};
use crate::common::{ALICE, event, mr, process};

#[test]
fn a_completion_queue_that_ran_over() {
    let told = |kind| Case::new().event(5, 1, Call::GetAsyncEvent, Detail::Wait { object: 1, value: kind });
    told(0).has("cq-overrun");
    told(9).lacks("cq-overrun");
}

#[test]
fn an_error_is_traced_to_its_queue_pair_and_peer() {
    let (qp, mut cq) = busy();
    cq.statuses = BTreeMap::from([(0, 10), (12, 1), (5, 30)]);
    cq.detail = Some(Box::new(QueueDetail {
        failed_by_qp: vec![FailedCqes { status: 12, qpn: 17, count: 1, first: None }],
        ..QueueDetail::default()
    }));
    let peer =
        QpAttributes { dest_qpn: Some(99), dgid: Some("::ffff:10.0.0.7".into()), ..QpAttributes::default() };
    let findings = Case::new().queues().rtr(peer).counts(qp, cq).findings();
    assert_eq!((findings[0].id, findings[0].severity), ("retry-exceeded", Severity::Problem));
    assert!(findings[0].evidence[0].text.contains("QPN 17 (to QPN 99 at ::ffff:10.0.0.7)"), "{findings:#?}");
    // What is flushed after the first error is no news.
    assert!(!findings.iter().any(|f| f.id == "requests-flushed"));
}

/// A queue pair goes to RTR, connected with the peer's of that number.
fn to_rtr(qp: u64, qpn: u32, dest_qpn: u32) -> Detail {
    Detail::ModifyQp(QpAttributes {
        qp,
        qpn,
        to: Some("RTR".into()),
        dest_qpn: Some(dest_qpn),
        ..QpAttributes::default()
    })
}

/// A process beside ALICE: the other end of her queue pairs.
const BOB: ProcessId = ProcessId { pid: 200, start_ns: 9 };

/// ALICE's QP 17 and BOB's QP 18 connected with each other, BOB with a region of that access, and ALICE's request for it
/// refused at 5 s.
fn refused(access: u32, more: impl FnOnce(Case) -> Case) -> Finding {
    refused_as(access, None, more)
}

/// The same, with what is known of the request.
fn refused_as(access: u32, first: Option<FailedRequest>, more: impl FnOnce(Case) -> Case) -> Finding {
    let of = |id, t_ns, call, detail| Record::Event(event(id, t_ns, 10, call, detail));
    let mut case = Case::new().queues();
    case.0.push(&process(BOB, "server"));
    let Detail::Mr { mr, pd, addr, length_bytes, lkey, rkey, split, .. } = mr(7, 1 << 30, 1 << 21) else {
        unreachable!("a region")
    };
    let region = Detail::Mr { mr, pd, addr, length_bytes, access, lkey, rkey, split };
    for record in [
        of(ALICE, 10, Call::ModifyQp, to_rtr(10, 17, 18)),
        of(BOB, 10, Call::CreateQp, qp(10, 18)),
        of(BOB, 20, Call::RegMr, region),
        of(BOB, 30, Call::ModifyQp, to_rtr(10, 18, 17)),
    ] {
        case.0.push(&record);
    }
    let (sends, mut cq) = busy();
    cq.statuses = BTreeMap::from([(0, 10), (10, 1)]);
    cq.detail = Some(Box::new(QueueDetail {
        failed_by_qp: vec![FailedCqes { status: 10, qpn: 17, count: 1, first: first.map(Box::new) }],
        ..QueueDetail::default()
    }));
    more(case).counts(sends, cq).has("remote-access-error")
}

#[test]
fn refused_access_is_traced_to_the_regions_of_the_other_end() {
    let text = |finding: &Finding| {
        finding.evidence.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
    };
    let dereg = |t_ns| {
        move |mut case: Case| {
            case.0.push(&Record::Event(event(BOB, t_ns, 10, Call::DeregMr, Detail::Object { object: 7 })));
            case
        }
    };
    let found = refused(7, dereg(3 * SECOND));
    assert!(found.cause.contains("deregistered at the other end"), "{found:#?}");
    assert!(text(&found).contains("3.00 s after RTR: 0x40000000 + 2 MiB (rkey 0x7)"), "{found:#?}");
    let found = refused(1, |case| case);
    assert!(found.cause.contains("registered without IBV_ACCESS_REMOTE_WRITE"), "{found:#?}");
    let found = refused(7, |case| case);
    assert!(found.cause.contains("reaches beyond the region"), "{found:#?}");
    assert!(text(&found).contains("QPN 18 of server, pid 200"), "{found:#?}");
    // What the other end's queue pair forbids is refused whatever its regions allow.
    let flags = |qp_access_flags| {
        move |mut case: Case| {
            let init = QpAttributes {
                qp: 10,
                qpn: 18,
                to: Some("INIT".into()),
                qp_access_flags: Some(qp_access_flags),
                ..QpAttributes::default()
            };
            case.0.push(&Record::Event(event(BOB, 25, 10, Call::ModifyQp, Detail::ModifyQp(init))));
            case
        }
    };
    let found = refused(7, flags(4));
    assert!(
        text(&found).contains("qp_access_flags of QPN 18, as set at INIT, lack IBV_ACCESS_REMOTE_WRITE"),
        "{found:#?}"
    );
    assert!(found.cause.contains("forbid such requests"), "{found:#?}");
    let found = refused(7, flags(7));
    assert!(found.cause.contains("its queue pair allows them too"), "{found:#?}");
    // Given back long after the failure, at the end of the program.
    let found = refused(7, dereg(20 * SECOND));
    assert!(found.cause.contains("reaches beyond the region"), "{found:#?}");
}

#[test]
fn an_error_of_unknown_queue_pair_is_looked_for_among_those_that_lived_then() {
    // BOB's region is given back, ALICE's requests fail, and she connects anew, again and again, on one completion queue.
    let of = |id, t_ns, call, detail| Record::Event(event(id, t_ns, 10, call, detail));
    let mut case = Case::new().event(2, 10, Call::CreateCq, Detail::Cq { cq: 5, cqe: 4096, channel: 0 });
    case.0.push(&process(BOB, "server"));
    case.0.push(&of(BOB, 20, Call::RegMr, mr(7, 1 << 30, 1 << 21)));
    case.0.push(&of(BOB, 9 * SECOND, Call::RegMr, mr(8, 1 << 30, 1 << 22)));
    case.0.push(&of(BOB, 9 * SECOND + 5, Call::DeregMr, Detail::Object { object: 7 }));
    for i in 0..3 {
        let at = if i == 0 { 30 } else { 9 * SECOND + 100 * i };
        let (here, there) = (17 + i as u32, 117 + i as u32);
        for record in [
            of(ALICE, at, Call::CreateQp, qp(10 + i, here)),
            of(BOB, at, Call::CreateQp, qp(110 + i, there)),
            of(ALICE, at + 20, Call::ModifyQp, to_rtr(10 + i, here, there)),
            of(BOB, at + 30, Call::ModifyQp, to_rtr(110 + i, there, here)),
        ] {
            case.0.push(&record);
        }
        if i < 2 {
            let gone = 9 * SECOND + 100 * i + 50;
            case.0.push(&of(ALICE, gone, Call::DestroyQp, Detail::Object { object: 10 + i }));
            case.0.push(&of(BOB, gone, Call::DestroyQp, Detail::Object { object: 110 + i }));
        }
    }
    let (sends, mut cq) = busy();
    cq.statuses = BTreeMap::from([(0, 10), (10, 3)]);
    let found = case.counts(sends, cq).has("remote-access-error");
    assert!(found.evidence[0].text.contains("of QPN 17, 18, 19"), "{found:#?}");
    assert!(found.cause.contains("deregistered at the other end"), "{found:#?}");
    let told: Vec<_> = found.evidence.iter().filter(|line| line.text.contains("(rkey 0x7)")).collect();
    assert_eq!(told.len(), 1, "given back, and not alive as well: {found:#?}");
}

#[test]
fn a_key_kept_over_a_reconnect_may_be_that_of_a_region_given_back_before() {
    let of = |id, t_ns, call, detail| Record::Event(event(id, t_ns, 10, call, detail));
    let reconnects = |case: Case, given_back: bool| {
        let mut case = case;
        case.0.push(&of(BOB, 40, Call::CreateQp, qp(9, 16)));
        case.0.push(&of(BOB, 50, Call::ModifyQp, to_rtr(9, 16, 15)));
        case.0.push(&of(BOB, 60, Call::RegMr, mr(8, 1 << 31, 4096)));
        if given_back {
            case.0.push(&of(BOB, 2 * SECOND, Call::DeregMr, Detail::Object { object: 8 }));
        }
        case.0.push(&of(BOB, 3 * SECOND, Call::CreateQp, qp(10, 18)));
        case.0.push(&of(BOB, 3 * SECOND + 10, Call::ModifyQp, to_rtr(10, 18, 17)));
        case
    };
    let found = refused(7, |case| reconnects(case, true));
    assert!(found.cause.contains("keeps an rkey over a reconnect"), "{found:#?}");
    let text = found.evidence.iter().find(|line| line.text.contains("(rkey 0x8)")).unwrap();
    assert!(text.text.starts_with("deregistered 1.00 s before it was connected"), "{found:#?}");
    let found = refused(7, |case| reconnects(case, false));
    assert!(found.cause.contains("none was given back"), "{found:#?}");
}

#[test]
fn messages_that_lie_in_a_queue_nobody_drains_show_though_the_wait_itself_is_not_seen() {
    let sent = |messages: u64| {
        let sends = QueueCounts {
            wrs: messages,
            post_calls: messages,
            opcodes: BTreeMap::from([(Opcode::Send, messages)]),
            ..QueueCounts::default()
        };
        let cq = QueueCounts { notifies: 100, polls: 100, cqes: 100, ..QueueCounts::default() };
        // Both queue pairs count as senders: half of it each.
        Case::new()
            .queues()
            .event(3, 10, Call::CreateQp, qp(11, 18))
            .event(5, 10, Call::ModifyQp, to_rtr(10, 17, 18))
            .event(6, 10, Call::ModifyQp, to_rtr(11, 18, 17))
            .on(2, sends, cq, Observed { by: ObservedBy::Tap, ..Observed::default() })
    };
    sent(90).has("event-lost-wakeup");
    sent(50).lacks("event-lost-wakeup");
}

/// The same refused access, of a request that is known: a write of so many bytes to an address by a key.
fn refused_write(rkey: u32, remote_addr: u64, bytes: u64, more: impl FnOnce(Case) -> Case) -> Finding {
    let request = WorkRequest {
        posted_ns: Some(4 * SECOND),
        opcode: Some(Opcode::RdmaWrite),
        bytes: Some(bytes),
        addr: Some(0x1000),
        lkey: Some(0x16),
        remote_addr: Some(remote_addr),
        rkey: Some(rkey),
        ..WorkRequest::default()
    };
    let first = FailedRequest {
        t_ns: 4 * SECOND + 1000,
        wr_id: Some(0x2a),
        known: Known::Exactly,
        request: Some(request),
        ..FailedRequest::default()
    };
    refused_as(7, Some(first), more)
}

#[test]
fn a_request_that_is_known_is_compared_with_the_region_its_key_names() {
    let text = |finding: &Finding| {
        finding.evidence.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
    };
    // BOB's region: 2 MiB at 1 GiB, rkey 7.
    let end = (1 << 30) + (1 << 21);
    let found = refused_write(7, end - 64, 72, |case| case);
    assert!(found.cause.contains("reaches 8 bytes beyond the end"), "{found:#?}");
    assert!(
        text(&found)
            .contains("wr_id 0x2a, RDMA_WRITE of 72 bytes from 0x1000 (lkey 0x16) to 0x401fffc0 (rkey 0x7)"),
        "{found:#?}"
    );
    let found = refused_write(8, end - 64, 64, |case| case);
    assert!(found.cause.contains("no region seen here has had"), "{found:#?}");
    let dereg = |mut case: Case| {
        let event = event(BOB, 3 * SECOND, 10, Call::DeregMr, Detail::Object { object: 7 });
        case.0.push(&Record::Event(event));
        case
    };
    let found = refused_write(7, 1 << 30, 64, dereg);
    assert!(found.cause.contains("given back 1.00 s before"), "{found:#?}");
    // A range inside of a living region leaves the other causes.
    let found = refused_write(7, 1 << 30, 64, |case| case);
    assert!(text(&found).contains("the range lies inside"), "{found:#?}");
}
