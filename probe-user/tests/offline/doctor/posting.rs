//! Rules on posts, completion queues and what the posting thread spends its time on.

use std::collections::BTreeMap;

use probe_user::doctor::{Confidence, Severity};
use probe_user::model::bucket_of;
use probe_user::sample::{
    Call, Detail, Device, Facts, Histogram, Observed, ObservedBy, Opcode, QpAttributes, QueueCounts,
    QueueDetail, ReapLatency, Strides,
};

use super::case::{Case, SECOND, busy, changed, nic, qp, with_nic};
use crate::common::mr;

#[test]
fn what_sources_tell_of_places_and_order() {
    changed(|c, d| d.unaligned_64 = Some(c.wrs)).has("unaligned-payload");
    changed(|c, d| d.mergeable = Some(c.wrs / 16 * 15)).has("adjacent-wrs");
    changed(|c, d| {
        c.opcodes = BTreeMap::from([(Opcode::AtomicCmpAndSwp, c.wrs)]);
        d.remote_strides = Some(Strides { same: c.wrs, ..Strides::default() });
    })
    .has("atomics-hot");
    changed(|c, _| c.opcodes = BTreeMap::from([(Opcode::AtomicCmpAndSwp, c.wrs)])).lacks("atomics-hot");
    // Each record is locked and then read: half of the steps stay, and no two atomics meet. A lock that is taken by CAS and
    // given back by WRITE is one address for all.
    let with = |other, same, random| {
        changed(move |c, d| {
            c.opcodes = BTreeMap::from([(Opcode::AtomicCmpAndSwp, c.wrs / 2), (other, c.wrs / 2)]);
            d.remote_strides = Some(Strides { same, random, ..Strides::default() });
        })
    };
    with(Opcode::RdmaRead, 800_000, 800_000).lacks("atomics-hot");
    with(Opcode::RdmaWrite, 1_590_000, 10_000).has("atomics-hot");
    changed(|c, _| {
        c.opcodes = BTreeMap::from([(Opcode::RdmaRead, c.wrs / 2), (Opcode::RdmaWrite, c.wrs / 2)]);
    })
    .has("reads-and-writes-mixed");
    changed(|c, _| c.threads = Some(4)).has("threads-share-qp");
    let small = |inline: bool, outstanding: u64| {
        changed(|c, d| {
            (c.bytes, c.inline) = (c.wrs * 32, if inline { c.wrs } else { 0 });
            d.sizes = BTreeMap::from([(5, c.wrs)]);
            d.most_outstanding = Some(outstanding);
        })
    };
    small(false, 1).has("small-not-inlined");
    small(true, 1).lacks("small-not-inlined");
    small(false, 64).lacks("small-not-inlined");
    // 160,000 a second, each 1 ms under way: 160 at a time, on how many queue pairs ever.
    let lasting = |ns: u64| {
        changed(|c, d| {
            (c.bytes, c.inline) = (c.wrs * 32, 0);
            d.sizes = BTreeMap::from([(5, c.wrs)]);
            d.most_outstanding = Some(4);
            let latency_ns = Histogram(BTreeMap::from([(bucket_of(ns), c.wrs)]));
            d.post_to_reap_ns = vec![ReapLatency { opcode: Opcode::RdmaWrite, size_class: 5, latency_ns }];
        })
    };
    lasting(1_000_000).lacks("small-not-inlined");
    lasting(3_000).has("small-not-inlined");
    // Of one in sixteen a completion is asked for, and the machine stood still once: the most outstanding says little of
    // what is under way, 160,000 a second of 3 µs.
    let stalled_once = |inline| {
        changed(|c, d| {
            (c.bytes, c.post_calls, c.inline) = (c.wrs * 32, c.wrs, inline);
            d.sizes = BTreeMap::from([(5, c.wrs)]);
            d.most_outstanding = Some(95);
            let latency_ns = Histogram(BTreeMap::from([(bucket_of(3_000), c.signalled)]));
            d.post_to_reap_ns = vec![ReapLatency { opcode: Opcode::RdmaWrite, size_class: 5, latency_ns }];
        })
    };
    let found = stalled_once(0).has("small-not-inlined");
    assert!(found.evidence[1].text.starts_with("0.5 under way"), "{found:#?}");
    stalled_once(1_600_000).lacks("small-not-inlined");
    // Waking up takes longer than the message.
    small(false, 1).event(SECOND, 6 * SECOND, Call::GetCqEvent, Detail::None).lacks("small-not-inlined");
    // One that sleeps elsewhere takes its events afterwards: 100,000 completions, and an event for ten of them.
    let takes = |events: u64| {
        (0..events).fold(small(false, 1), |case, i| {
            case.event(SECOND + i * 100_000, 1000, Call::GetCqEvent, Detail::None)
        })
    };
    takes(10_000).lacks("small-not-inlined");
    takes(1000).has("small-not-inlined");
}

#[test]
fn what_a_post_costs_is_said_only_where_the_posting_thread_limits() {
    let posts = |driver: &str, qps: u32, empty_polls: u64| {
        let (qp, mut cq) = busy();
        let qp = QueueCounts { signalled: qp.wrs, post_calls: qp.wrs, ..qp };
        cq.empty_polls = empty_polls;
        cq.polls = empty_polls + cq.cqes;
        let device = Device { driver: driver.into(), ..nic(&[]) };
        with_nic(device).on(qps, qp, cq, Observed { by: ObservedBy::Tap, ..Observed::default() })
    };
    let (busy, waiting) = (0, 20_000_000);
    posts("mlx5_core", 1, busy).has("everything-signalled");
    posts("mlx5_core", 1, busy).lacks("one-wr-per-post");
    posts("mlx5_core", 1, busy).lacks("one-queue-pair");
    posts("mlx5_core", 2, busy).has("one-wr-per-post");
    posts("rdma_rxe", 1, busy).has("one-wr-per-post");
    posts("mlx5_core", 1, waiting).has("one-queue-pair");
    // An empty poll after each post, and one in vain for every other: as busy as can be.
    posts("mlx5_core", 1, 2_400_000).lacks("one-queue-pair");
    for id in ["everything-signalled", "one-wr-per-post"] {
        posts("mlx5_core", 2, waiting).lacks(id);
    }
}

#[test]
fn a_completion_queue_is_too_small_only_where_it_could_run_over() {
    let of = |cqe: u32, under_way: u64| {
        let (mut qp, cq) = busy();
        qp.detail.as_mut().unwrap().most_outstanding = Some(under_way);
        Case::new()
            .event(2, 10, Call::CreateCq, Detail::Cq { cq: 5, cqe, channel: 0 })
            .event(3, 10, Call::CreateQp, crate::common::qp(10, 17, 128))
            .counts(qp, cq)
    };
    of(64, 64).has("cq-too-small");
    of(128, 64).lacks("cq-too-small");
    of(4096, 128).lacks("cq-too-small");
}

#[test]
fn random_access_counts_only_beyond_what_translations_reach() {
    let jumps = |length: u64, facts: Facts| {
        changed(|c, d| d.remote_strides = Some(Strides { random: c.wrs, ..Strides::default() }))
            .event(20, 10, Call::RegMr, mr(1, 1 << 30, length))
            .facts(facts)
    };
    jumps(1 << 30, Facts::default()).has("random-beyond-reach");
    jumps(1 << 20, Facts::default()).lacks("random-beyond-reach");
    let huge = Facts { hugetlb_bytes: Some(1 << 30), ..Facts::default() };
    jumps(1 << 30, huge).lacks("random-beyond-reach");
}

#[test]
fn the_program_and_not_the_device_is_slow() {
    let gap = |ns: u64, wrs: u64| {
        let hist = |ns: u64| Histogram(BTreeMap::from([(bucket_of(ns), wrs)]));
        changed(|c, d| {
            (c.wrs, c.post_calls, c.signalled) = (wrs, wrs, wrs);
            d.most_outstanding = Some(1);
            d.cqe_to_post_ns = Some(hist(ns));
            d.post_to_reap_ns =
                vec![ReapLatency { opcode: Opcode::RdmaWrite, size_class: 8, latency_ns: hist(3000) }];
        })
    };
    gap(200_000, 40_000).has("host-gap-dominates");
    gap(500, 40_000).lacks("host-gap-dominates");
    // It sleeps between its requests: nothing is wrong with that.
    gap(1_000_000, 10_000).lacks("host-gap-dominates");
}

#[test]
fn a_completion_queue_for_both_ends_of_each_connection_is_one_for_each_connection() {
    let connections = |n: u64, connected: bool| {
        (0..n).fold(Case::new(), |case, i| {
            let (cq, a, b) = (1000 + i, 2000 + i, 3000 + i);
            let end = |pointer: u64| {
                let Detail::Qp { pd, qp_type, srq, max_send_wr, max_recv_wr, .. } = qp(pointer, 0) else {
                    unreachable!("a queue pair")
                };
                Detail::Qp {
                    qp: pointer,
                    pd,
                    qpn: pointer as u32,
                    qp_type,
                    send_cq: cq,
                    recv_cq: cq,
                    srq,
                    max_send_wr,
                    max_recv_wr,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_bytes: 0,
                    sq_sig_all: false,
                }
            };
            let to = |qp: u64, peer: u64| {
                let dest_qpn = Some(if connected { peer as u32 } else { 77 });
                Detail::ModifyQp(QpAttributes { qp, qpn: qp as u32, dest_qpn, ..QpAttributes::default() })
            };
            case.event(10, 1, Call::CreateCq, Detail::Cq { cq, cqe: 512, channel: 0 })
                .event(11, 1, Call::CreateQp, end(a))
                .event(12, 1, Call::CreateQp, end(b))
                .event(13, 1, Call::ModifyQp, to(a, b))
                .event(14, 1, Call::ModifyQp, to(b, a))
        })
    };
    connections(20, true).has("cq-per-qp");
    connections(20, false).lacks("cq-per-qp");
    connections(8, true).lacks("cq-per-qp");
}

#[test]
fn a_queue_that_is_armed_after_the_last_poll_loses_wakeups_where_messages_may_come() {
    let waits = |blind: u64, received: u64, cqes: u64| {
        let qp = QueueCounts { recv_wrs: received, recv_calls: received, ..QueueCounts::default() };
        let detail = QueueDetail { blind_events: Some(blind), ..QueueDetail::default() };
        let cq = QueueCounts {
            notifies: 100,
            polls: 300,
            empty_polls: 100,
            cqes,
            detail: Some(Box::new(detail)),
            ..QueueCounts::default()
        };
        with_nic(nic(&[])).counts(qp, cq)
    };
    let found = waits(99, 400, 200).has("event-lost-wakeup");
    assert_eq!((found.severity, found.confidence), (Severity::Problem, Confidence::High));
    assert!(found.remedy.contains("Arm first, then poll"), "{found:#?}");
    // One message for each time: perhaps none can come in between.
    assert_eq!(waits(99, 400, 100).has("event-lost-wakeup").confidence, Confidence::Low);
    waits(1, 400, 200).lacks("event-lost-wakeup");
    waits(40, 400, 200).lacks("event-lost-wakeup");
    // What one's own requests complete comes after they were posted.
    waits(99, 0, 200).lacks("event-lost-wakeup");
}
