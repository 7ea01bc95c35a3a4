//! From records to the report: which figures come out, and what is said where records are missing.

use crate::common::*;
use probe_user::model::Model;
use probe_user::replay::{Window, replay};
use probe_user::report::{Filter, Layout, Report, build, by_call, by_peer, write_groups, write_text};
use probe_user::sample::{
    Call, CallCount, Detail, Device, Footer, Lost, Probe, Process, ProcessId, QpAttributes, Record,
    RegistrationSplit, Sample, Verdict,
};

fn model(records: &[Record]) -> Model {
    let mut model = Model::new();
    model.push(&Record::Header(header()));
    records.iter().for_each(|record| model.push(record));
    model
}

fn report(records: &[Record]) -> Report {
    build(&model(records), None, &Filter::default())
}

fn text(report: &Report, width: usize) -> String {
    let mut out = anstream::StripStream::new(Vec::new());
    write_text(report, Layout { width, rows: 16 }, &mut out).unwrap();
    String::from_utf8(out.into_inner()).unwrap()
}

fn created(qp: u64, qpn: u32, cq: u64) -> Detail {
    Detail::Qp {
        qp,
        pd: 1,
        qpn,
        qp_type: "RC".into(),
        send_cq: cq,
        recv_cq: cq,
        srq: 0,
        max_send_wr: 128,
        max_recv_wr: 64,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_bytes: 0,
        sq_sig_all: false,
    }
}

fn to(qp: u64, qpn: u32, state: &str) -> QpAttributes {
    QpAttributes { qp, qpn, to: Some(state.into()), ..QpAttributes::default() }
}

#[test]
fn counts_are_the_kernels_even_where_events_were_lost_and_the_report_says_what_is_incomplete() {
    let mut records = vec![process(ALICE, "alice")];
    for i in 0..3 {
        records.push(Record::Event(event(ALICE, i, 1000, Call::RegMr, mr(i + 1, i * 4096, 4096))));
    }
    let count = CallCount { entered: 10, returned: 10, failed: 1, bytes: 9 * 4096, total_ns: 10_000 };
    let Record::Sample(mut last) = sample(ALICE, 100, Call::RegMr, count, &[(200, 10)]) else {
        unreachable!()
    };
    last.lost.ring_events = 7;
    records.push(Record::Sample(last));
    let report = report(&records);
    let r = &report.processes[0].registration;
    assert_eq!((r.calls.count, r.calls.failed, r.bytes), (Some(10), Some(1), Some(9 * 4096)));
    assert_eq!((r.live, r.exact, report.processes[0].calls_without_event), (Some(3), false, 7));
    assert_eq!((report.lost.total, report.lost.ring_events), (7, 7));
    let text = text(&report, 100);
    assert!(text.contains("7 events found the ring buffer full"), "{text}");
    assert!(text.contains("7 calls left no event"), "{text}");
}

#[test]
fn events_after_the_last_sample_are_counted_when_the_recorder_was_killed() {
    let count = CallCount { entered: 1, returned: 1, bytes: 4096, total_ns: 1000, ..CallCount::default() };
    let mut records = vec![sample(ALICE, 100, Call::RegMr, count, &[(200, 1)])];
    for i in 0..3 {
        records.push(Record::Event(event(ALICE, 50 + i * 100, 1000, Call::RegMr, mr(i + 1, 0, 4096))));
    }
    let r = report(&records).processes.remove(0).registration;
    assert_eq!((r.calls.count, r.bytes, r.live, r.exact), (Some(3), Some(3 * 4096), Some(3), true));
}

#[test]
fn what_no_probe_could_see_is_unavailable_and_never_zero() {
    let probe = |name: &str, call, verdict| {
        Record::Probe(Probe {
            name: name.into(),
            place: String::new(),
            call: Some(call),
            t_ns: 0,
            late_ns: None,
            verdict,
        })
    };
    let report = report(&[
        probe("ibv_reg_mr_iova2", Call::RegMr, Verdict::Live),
        probe("ibv_dereg_mr", Call::DeregMr, Verdict::Live),
        probe("kernel:ib_umem_get", Call::KernelPin, Verdict::Denied { missing: "CAP_SYS_ADMIN".into() }),
        Record::Event(event(ALICE, 1, 2, Call::RegMr, mr(1, 0, 4096))),
    ]);
    let p = &report.processes[0];
    assert_eq!(p.registration.calls.count, Some(1));
    assert_eq!(p.deregistration.calls.count, Some(0), "watched, and it did not happen");
    assert_eq!((p.kernel_pin.calls.count, p.kernel_pin.bytes), (None, None));
    let why = p.kernel_pin.calls.unavailable.as_deref().unwrap();
    assert!(why.contains("kernel:ib_umem_get") && why.contains("CAP_SYS_ADMIN"), "{why}");
    assert!(text(&report, 100).contains("unavailable: kernel:ib_umem_get is denied: CAP_SYS_ADMIN"));
}

#[test]
fn a_queue_pairs_life_is_told_from_creation_to_destruction() {
    let rtr = QpAttributes {
        path_mtu_bytes: Some(1024),
        dest_qpn: Some(77),
        dgid: Some("::ffff:10.0.0.2".into()),
        min_rnr_timer: Some(12),
        ..to(0xa, 17, "RTR")
    };
    let rts =
        QpAttributes { timeout: Some(14), retry_cnt: Some(7), rnr_retry: Some(7), ..to(0xa, 17, "RTS") };
    let mut failed = event(ALICE, 60, 5, Call::ModifyQp, Detail::ModifyQp(to(0xa, 17, "SQD")));
    failed.errno = 22;
    let report = report(&[
        Record::Event(event(ALICE, 5, 5, Call::CreateCq, Detail::Cq { cq: 0xc, cqe: 256, channel: 0 })),
        Record::Event(event(ALICE, 10, 5, Call::CreateQp, created(0xa, 17, 0xc))),
        Record::Event(event(ALICE, 11, 5, Call::CreateQp, created(0xb, 18, 0xc))),
        Record::Event(event(ALICE, 30, 5, Call::ModifyQp, Detail::ModifyQp(to(0xa, 17, "INIT")))),
        Record::Event(event(ALICE, 40, 5, Call::ModifyQp, Detail::ModifyQp(rtr))),
        Record::Event(event(ALICE, 50, 5, Call::ModifyQp, Detail::ModifyQp(rts))),
        Record::Event(failed),
        Record::Event(event(ALICE, 70, 5, Call::DestroyQp, Detail::Object { object: 0xb })),
    ]);
    let q = &report.processes[0].queues;
    assert_eq!((q.qp_created, q.qp_live, q.qp_peak, q.qp_destroyed), (Some(2), Some(1), Some(2), Some(1)));
    assert_eq!((q.cq_created, q.cq_live, q.qps_per_cq_max), (Some(1), Some(1), Some(2)));
    assert_eq!(q.cqs[0].qpns, [17]);
    let qp = &q.qps[0];
    assert_eq!((qp.state.as_deref(), qp.dest_qpn, qp.path_mtu_bytes), (Some("RTS"), Some(77), Some(1024)));
    assert_eq!((qp.timeout, qp.min_rnr_timer, qp.failed_changes), (Some(14), Some(12), 1));
    assert_eq!(
        qp.transitions.iter().map(|t| t.to.as_str()).collect::<Vec<_>>(),
        ["INIT", "RTR", "RTS", "SQD"]
    );
    assert_eq!(q.qps[1].destroyed_ns, Some(70));
    assert_eq!(report.processes[0].modify_qp.reached["RTS"], 1);
    let text = text(&report, 140);
    assert!(text.contains("77 @ ::ffff:10.0.0.2") && text.contains("EINVAL 1"), "{text}");
}

#[test]
fn objects_older_than_the_recording_never_make_live_negative() {
    let report = report(&[
        Record::Event(event(ALICE, 1, 5, Call::DeregMr, mr(9, 0, 0))),
        Record::Event(event(ALICE, 2, 5, Call::ModifyQp, Detail::ModifyQp(to(0xa, 17, "ERR")))),
        Record::Event(event(ALICE, 3, 5, Call::DestroyQp, Detail::Object { object: 0xa })),
        Record::Event(event(ALICE, 4, 5, Call::DestroyCq, Detail::Object { object: 0xc })),
        Record::Event(event(ALICE, 5, 5, Call::CreateQp, created(0xe, 18, 0xd))),
    ]);
    let p = &report.processes[0];
    assert_eq!((p.registration.live, p.deregistration.of_unknown), (Some(0), Some(1)));
    assert_eq!((p.queues.qp_live, p.queues.cq_live, p.queues.destroyed_of_unknown), (Some(1), Some(0), 2));
    assert_eq!(p.queues.qps_per_cq_max, Some(1), "a CQ older than the recording is known from its QPs");
}

#[test]
fn exec_ends_every_object_and_the_pid_goes_on() {
    let described = |exe: &str, t_ns| {
        Record::Process(Process { id: ALICE, t_ns, comm: "x".into(), exe: exe.into(), ..Process::default() })
    };
    let report = report(&[
        described("/bin/sh", 0),
        Record::Event(event(ALICE, 1, 5, Call::RegMr, mr(1, 0, 4096))),
        Record::Event(event(ALICE, 2, 5, Call::CreateQp, created(0xa, 17, 0xc))),
        described("/bin/app", 10),
        Record::Event(event(ALICE, 11, 5, Call::RegMr, mr(1, 0, 8192))),
    ]);
    let p = &report.processes[0];
    assert_eq!((p.registration.live, p.registration.live_bytes), (Some(1), Some(8192)));
    assert_eq!((p.queues.qp_live, p.queues.qp_created), (Some(0), Some(1)));
    assert_eq!(p.exe, "/bin/app");
}

#[test]
fn rates_are_over_the_last_interval_and_gone_when_nothing_changed() {
    let count = |n| CallCount { entered: n, returned: n, ..CallCount::default() };
    let second = 1_000_000_000;
    let mut m = model(&[
        sample(ALICE, second, Call::RegMr, count(100), &[(5, 100)]),
        sample(ALICE, 3 * second, Call::RegMr, count(300), &[(5, 100), (9, 200)]),
    ]);
    let stats = m.processes[&ALICE].calls[&Call::RegMr].clone();
    let interval = m.interval_of(&stats).unwrap();
    assert_eq!((interval.calls_per_second(), interval.latency.quantile(0.5)), (100.0, Some(9)));
    m.push(&Record::Sample(Sample { t_ns: 4 * second, ..Sample::default() }));
    assert!(m.interval_of(&m.processes[&ALICE].calls[&Call::RegMr]).is_none());
}

#[test]
fn a_window_counts_only_what_happened_inside_but_knows_the_objects_from_before() {
    let count = |n| CallCount { entered: n, returned: n, bytes: n * 4096, ..CallCount::default() };
    let mut m = model(&[
        Record::Event(event(ALICE, 1, 5, Call::RegMr, mr(1, 0, 4096))),
        Record::Event(event(ALICE, 2, 5, Call::RegMr, mr(2, 4096, 4096))),
        sample(ALICE, 10, Call::RegMr, count(2), &[(5, 2)]),
    ]);
    m.start_window(10);
    m.push(&Record::Event(event(ALICE, 11, 5, Call::RegMr, mr(3, 0, 4096))));
    m.push(&Record::Event(event(ALICE, 12, 5, Call::DeregMr, mr(1, 0, 0))));
    m.push(&sample(ALICE, 20, Call::RegMr, count(3), &[(5, 3)]));
    let p = build(&m, None, &Filter::default()).processes.remove(0);
    assert_eq!((p.registration.calls.count, p.registration.bytes), (Some(1), Some(4096)));
    assert_eq!((p.registration.live, p.registration.peak), (Some(2), Some(3)));
    assert_eq!(p.deregistration.of_unknown, Some(0));
    assert_eq!(p.registration.repeated.count, Some(1), "the same range was registered before the window");
}

#[test]
fn a_window_counts_the_calls_that_returned_inside_it() {
    let records: Vec<Result<Record, ()>> = std::iter::once(Record::Header(header()))
        .chain(
            (0..100).map(|i| Record::Event(event(ALICE, i * 10, 5, Call::RegMr, mr(i + 1, i * 4096, 4096)))),
        )
        .chain([sample(
            ALICE,
            500,
            Call::RegMr,
            CallCount { entered: 50, returned: 50, ..CallCount::default() },
            &[(5, 50)],
        )])
        .chain([Record::Footer(Footer {
            lost: Lost { ring_events: 3, ..Lost::default() },
            ..footer("interrupted")
        })])
        .map(Ok)
        .collect();
    let counted = |from_ns, to_ns| {
        let model = replay(records.clone().into_iter(), Window { from_ns, to_ns }).unwrap();
        let report = build(&model, None, &Filter::default());
        let r = &report.processes[0].registration;
        (r.calls.count.unwrap(), r.live.unwrap(), report.lost.total)
    };
    assert_eq!(counted(None, None), (100, 100, 3));
    assert_eq!(counted(Some(505), Some(604)), (10, 60, 0));
    assert_eq!(counted(Some(0), Some(u64::MAX)), (100, 100, 0));
    assert_eq!(counted(None, Some(104)), (10, 10, 0));
    assert_eq!(counted(Some(5_000), None), (0, 100, 0));
}

#[test]
fn the_time_of_registrations_is_split_as_far_as_it_was_seen() {
    let with = |split: RegistrationSplit, t_ns| {
        let mut detail = mr(t_ns, 0, 4096);
        if let Detail::Mr { split: inside, .. } = &mut detail {
            *inside = split;
        }
        Record::Event(event(ALICE, t_ns, 100, Call::RegMr, detail))
    };
    let known = RegistrationSplit {
        kernel_ns: Some(80),
        pin_ns: Some(60),
        page_faults: Some(3),
        ..Default::default()
    };
    let report = report(&[with(known, 1), with(RegistrationSplit::default(), 2)]);
    let s = report.processes[0].registration.split;
    assert_eq!((s.kernel_share, s.pin_share, s.driver_share), (Some(0.8), Some(0.6), None));
    assert_eq!(s.page_faults, Some(3));
}

#[test]
fn connection_steps_last_from_the_call_to_its_answer() {
    let cm = |t_ns, call, kind, status| {
        Record::Event(event(ALICE, t_ns, 1, call, Detail::Cm { id: 0xd, event: kind, status }))
    };
    let report = report(&[
        cm(100, Call::CmConnect, 0, 0),
        cm(199, Call::CmGetEvent, 9, 0),
        cm(300, Call::CmConnect, 0, 0),
        cm(399, Call::CmGetEvent, 8, 28),
    ]);
    let c = &report.processes[0].connections;
    assert_eq!((c.established, c.connect_ns.p50), (Some(1), Some(101)));
    assert_eq!((c.failures[0].step.as_str(), c.failures[0].status, c.failures[0].count), ("connect", 28, 1));
}

#[test]
fn processes_without_rdma_are_counted_and_a_filter_takes_names_and_pids() {
    let bob = ProcessId { pid: 200, start_ns: 1 };
    let m = model(&[
        process(ALICE, "alice"),
        process(bob, "bob"),
        process(ProcessId { pid: 300, start_ns: 1 }, "cat"),
        Record::Event(event(ALICE, 1, 5, Call::RegMr, mr(1, 0, 4096))),
        Record::Event(event(bob, 1, 500, Call::RegMr, mr(1, 0, 4096))),
    ]);
    let shown = |filter: &[&str]| {
        let filter = Filter(filter.iter().map(|s| (*s).to_owned()).collect());
        let report = build(&m, None, &filter);
        (report.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), report.processes_not_shown)
    };
    assert_eq!(shown(&[]), (vec![200, 100], 1));
    assert_eq!(shown(&["alice"]), (vec![100], 2));
    assert_eq!(shown(&["200", "nobody"]), (vec![200], 2));
}

#[test]
fn text_fits_the_terminal_and_says_first_what_was_missed() {
    let mut records = vec![process(ALICE, "alice")];
    for i in 0..40_u64 {
        records.push(Record::Event(event(
            ALICE,
            i,
            1000 * (i + 1),
            Call::RegMr,
            mr(i + 1, 0, 4096 << (i % 8)),
        )));
        records.push(Record::Event(event(ALICE, i, 1000, Call::CreateQp, created(i + 1, i as u32, 0xc0))));
    }
    records.push(Record::Sample(Sample {
        t_ns: 100,
        lost: Lost { ring_events: 1, ..Lost::default() },
        devices: vec![Device { name: "rxe0".into(), driver: "rdma_rxe".into(), ..Device::default() }],
        ..Sample::default()
    }));
    let report = report(&records);
    for width in [60, 100, 200] {
        let text = text(&report, width);
        let missed = text.find("missed").unwrap();
        assert!(missed < text.find("alice").unwrap());
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line:?}");
        }
        assert!(text.contains("and 24 more QPs"));
    }
}

#[test]
fn an_empty_trace_gives_an_empty_report_and_no_division_by_zero() {
    let report = report(&[]);
    assert!(report.processes.is_empty());
    assert_eq!(report.lost.total, 0);
    assert!(text(&report, 80).contains("No process made an RDMA call"));
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], "rdma-report/1");
    assert_eq!(json["processes"], serde_json::json!([]));
}

#[test]
fn peers_gather_the_qps_that_talk_to_them_and_calls_are_sorted_by_their_time() {
    let bob = ProcessId { pid: 200, start_ns: 1 };
    let connected = |id, qp: u64, gid: &str| {
        let rtr = QpAttributes {
            dest_qpn: Some(5),
            dgid: Some(gid.into()),
            path_mtu_bytes: Some(1024 * qp as u32),
            ..to(qp, qp as u32, "RTR")
        };
        [
            Record::Event(event(id, 1, 5, Call::CreateQp, created(qp, qp as u32, 0xc))),
            Record::Event(event(id, 2, 50, Call::ModifyQp, Detail::ModifyQp(rtr))),
        ]
    };
    let records = [connected(ALICE, 1, "::1"), connected(bob, 2, "::1"), connected(bob, 3, "::2")].concat();
    let m = model(&records);
    let peers = by_peer(&m, &Filter::default()).peers;
    assert_eq!(
        peers.iter().map(|p| (p.peer.as_deref(), p.qps)).collect::<Vec<_>>(),
        [(Some("::1"), 2), (Some("::2"), 1)]
    );
    assert_eq!(peers[0].pids, [100, 200].into());
    assert_eq!(peers[0].path_mtu_bytes, [1024, 2048].into(), "a mixed MTU shows");
    let calls = by_call(&m, &Filter(vec!["200".into()])).calls;
    assert_eq!(
        calls.iter().map(|c| (c.call, c.count)).collect::<Vec<_>>(),
        [(Call::ModifyQp, 2), (Call::CreateQp, 2)]
    );
    for groups in [by_peer(&m, &Filter::default()), by_call(&m, &Filter::default())] {
        let mut out = Vec::new();
        write_groups(&groups, Layout { width: 100, rows: 1 }, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains(" more (--all lists them)"));
    }
}
