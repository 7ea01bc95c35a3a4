//! Posts and polls from a trace to report, comparison and exports.

use std::collections::BTreeMap;

use probe_user::export::{Csv, Exporter, MetricsFormat, Perfetto, write_metrics};
use probe_user::model::Model;
use probe_user::replay::{Window, replay};
use probe_user::report::{
    Filter, Layout, Outcome, Report, build, by_cq, by_qp, diff, write_groups, write_text,
};
use probe_user::sample::{
    Call, Counting, DataPath, Detail, ObservedBy, Process, ProcessId, QueueCounts, QueueKind, QueueSample,
    Record,
};
use serde_json::Value;

use crate::common::*;

const SECOND: u64 = 1_000_000_000;

fn queue(kind: QueueKind, object: u64, pointer: u64, number: u32, counts: QueueCounts) -> QueueSample {
    QueueSample { queue: kind, object, pointer, number, counts, ..QueueSample::default() }
}

fn qp(object: u64, pointer: u64, qpn: u32, calls: u64) -> QueueSample {
    queue(QueueKind::Qp, object, pointer, qpn, posted(calls))
}

fn model(records: Vec<Record>) -> Model {
    let all = [Record::Header(header()), process(ALICE, "alice")].into_iter().chain(records);
    replay(all.map(Ok::<_, ()>), Window::default()).unwrap()
}

fn report(records: Vec<Record>) -> Report {
    build(&model(records), None, &Filter::default())
}

fn json(records: Vec<Record>) -> Value {
    serde_json::to_value(report(records)).unwrap()
}

fn created(t_ns: u64, qp: u64, qpn: u32) -> Record {
    Record::Event(event(ALICE, t_ns, 1, Call::CreateQp, crate::common::qp(qp, qpn, 16)))
}

fn destroyed(t_ns: u64, qp: u64) -> Record {
    Record::Event(event(ALICE, t_ns, 1, Call::DestroyQp, Detail::Object { object: qp }))
}

#[test]
fn a_report_has_every_figure_under_its_key() {
    let report = json(vec![queues_sample(ALICE, SECOND, every_figure_of_the_data_path())]);
    let path = &report["processes"][0]["data_path"];
    for (key, value) in [
        ("post_calls", 12),
        ("post_failed", 2),
        ("wrs", 40),
        ("signaled", 10),
        ("inline", 8),
        ("bytes", 2560),
        ("recv_posted", 14),
        ("polls", 20),
        ("empty_polls", 10),
        ("cqes", 10),
        ("cqe_errors", 2),
        ("uncounted", 1),
    ] {
        assert_eq!(path[key], value, "{key}");
    }
    assert_eq!(path["opcodes"]["rdma_write"], 40);
    assert_eq!(path["post_failures"][0]["errno"], "ENOMEM");
    assert_eq!((&path["wrs_per_post"], &path["signaled_share"]), (&4.0.into(), &0.25.into()));
    let error = &path["errors"][0];
    assert_eq!(
        (&error["status"], &error["qpn"], &error["count"]),
        (&"WR_FLUSH_ERR".into(), &17.into(), &2.into())
    );
    assert_eq!(path["errors"].as_array().unwrap().len(), 1, "what is named with its QP is not told twice");
    assert_eq!(path["shape"]["sizes"][0]["up_to_bytes"], 64);
    assert_eq!(path["shape"]["post_to_reap_ns"][0]["opcode"], "rdma_write");
    let queues = &report["processes"][0]["queues"];
    assert_eq!((&queues["qps"][0]["qpn"], &queues["qps"][0]["data_path"]["wrs"]), (&17.into(), &40.into()));
    assert_eq!(queues["cqs"][0]["data_path"]["most_cqes_per_poll"], 4);
}

#[test]
fn where_nothing_watched_the_figures_are_null_and_the_reason_is_told() {
    let count = probe_user::sample::CallCount::default();
    let report = json(vec![sample(ALICE, 1, Call::RegMr, count, &[])]);
    let path = &report["processes"][0]["data_path"];
    assert!(path["wrs"].is_null() && path["polls"].is_null() && path["observed"].is_null());
    assert!(path["unavailable"].as_str().unwrap().contains("--tap"));
    let mut denied = DataPath::default();
    denied.observed.why = "denied: CAP_BPF".into();
    let report = json(vec![sample(ALICE, 1, Call::RegMr, count, &[]), queues_sample(ALICE, 2, denied)]);
    assert_eq!(report["processes"][0]["data_path"]["unavailable"], "denied: CAP_BPF");
}

#[test]
fn what_a_queue_counted_that_came_and_went_between_samples_is_in_the_totals() {
    let mut path = exact(vec![qp(1, 10, 17, 5)]);
    path.totals.add(&posted(100));
    let report = report(vec![queues_sample(ALICE, SECOND, path)]);
    let process = &report.processes[0];
    assert_eq!(process.data_path.posts.wrs, Some(420));
    assert_eq!(process.queues.qps[0].data_path.as_ref().unwrap().posts.wrs, Some(20));
}

#[test]
fn queue_pairs_that_had_one_pointer_and_number_after_another_keep_their_own_counts() {
    let gone = |object, calls| QueueSample { gone: true, ..qp(object, 10, 17, calls) };
    let report = report(vec![
        created(1, 10, 17),
        queues_sample(ALICE, 2, exact(vec![qp(1, 10, 17, 1)])),
        destroyed(3, 10),
        created(4, 10, 17),
        destroyed(5, 10),
        created(6, 10, 17),
        queues_sample(ALICE, SECOND, exact(vec![gone(1, 2), gone(2, 20), qp(3, 10, 17, 200)])),
    ]);
    let qps = &report.processes[0].queues.qps;
    let calls: Vec<_> = qps
        .iter()
        .map(|qp| (qp.gone, qp.created_ns, qp.data_path.as_ref().unwrap().posts.post_calls))
        .collect();
    let expected = [(false, Some(6), Some(200)), (true, Some(1), Some(2)), (true, Some(4), Some(20))];
    assert_eq!(calls, expected);
}

#[test]
fn a_queue_pair_without_posts_takes_no_others_and_one_known_by_posts_alone_is_listed() {
    let report = report(vec![
        created(1, 10, 17),
        created(2, 11, 18),
        queues_sample(ALICE, SECOND, exact(vec![qp(1, 10, 17, 3), qp(2, 99, 40, 4)])),
    ]);
    let qps = &report.processes[0].queues.qps;
    let told: Vec<_> =
        qps.iter().map(|qp| (qp.qpn, qp.data_path.is_some(), qp.created_ns.is_some())).collect();
    assert_eq!(told, [(40, true, false), (17, true, true), (18, false, true)]);
    assert_eq!(report.processes[0].queues.qp_live, Some(2));
}

#[test]
fn a_sample_that_comes_before_the_event_of_a_creation_makes_no_second_queue_pair() {
    let report = report(vec![
        queues_sample(ALICE, SECOND, exact(vec![qp(1, 10, 17, 3)])),
        created(SECOND - 1, 10, 17),
        queues_sample(ALICE, 2 * SECOND, exact(vec![QueueSample { gone: true, ..qp(1, 10, 17, 4) }])),
        destroyed(2 * SECOND - 1, 10),
    ]);
    let queues = &report.processes[0].queues;
    assert_eq!((queues.qps.len(), queues.qp_live, queues.destroyed_of_unknown), (1, Some(0), 0));
    let qp = &queues.qps[0];
    assert_eq!((qp.gone, qp.data_path.as_ref().unwrap().posts.post_calls), (true, Some(4)));
}

#[test]
fn a_queue_that_nothing_but_its_posts_told_of_is_gone_when_they_say_so() {
    let cq = |gone| QueueSample { gone, ..queue(QueueKind::Cq, 2, 5, 3, polled(1)) };
    let gone = QueueSample { gone: true, ..qp(1, 10, 17, 4) };
    let model = model(vec![
        queues_sample(ALICE, SECOND, exact(vec![qp(1, 10, 17, 3), cq(false)])),
        queues_sample(ALICE, 2 * SECOND, exact(vec![gone, cq(true)])),
    ]);
    let queues = &model.processes[&ALICE].queues;
    assert!(queues.qps().is_empty() && queues.cqs().is_empty());
    let report = build(&model, None, &Filter::default());
    let queues = &report.processes[0].queues;
    assert_eq!((queues.qps.len(), queues.cqs.len(), queues.qps[0].gone), (1, 1, true));
}

#[test]
fn samples_are_incremental_and_queues_not_repeated_keep_their_counts() {
    let mut second = exact(vec![qp(2, 11, 18, 7)]);
    second.totals.add(&posted(5));
    let model = model(vec![
        queues_sample(ALICE, SECOND, exact(vec![qp(1, 10, 17, 5), qp(2, 11, 18, 1)])),
        queues_sample(ALICE, 2 * SECOND, second),
    ]);
    let path = &model.processes[&ALICE].data_path;
    let wrs: Vec<_> = path.queues().map(|queue| queue.tally.counts().wrs).collect();
    assert_eq!((wrs, path.totals.counts().wrs), (vec![20, 28], 48));
    let (idle, busy) = (path.at(QueueKind::Qp, 10).unwrap(), path.at(QueueKind::Qp, 11).unwrap());
    assert!(idle.tally.interval(model.interval.1).is_none());
    assert_eq!(busy.tally.interval(model.interval.1).unwrap().per_second(|c| c.wrs), 24.0);
    assert_eq!(path.totals.interval(model.interval.1).unwrap().per_second(|c| c.wrs), 24.0);
}

#[test]
fn a_window_counts_what_was_posted_inside_it() {
    let records = [
        Record::Header(header()),
        process(ALICE, "alice"),
        queues_sample(ALICE, SECOND, exact(vec![qp(1, 10, 17, 5)])),
        queues_sample(ALICE, 2 * SECOND, exact(vec![qp(1, 10, 17, 9)])),
    ];
    let window = Window { from_ns: Some(SECOND + 1), to_ns: None };
    let model = replay(records.into_iter().map(Ok::<_, ()>), window).unwrap();
    let report = build(&model, None, &Filter::default());
    let process = &report.processes[0];
    assert_eq!(process.data_path.posts.post_calls, Some(4));
    assert_eq!(process.queues.qps[0].data_path.as_ref().unwrap().posts.wrs, Some(16));
}

#[test]
fn exec_ends_the_queues_and_the_totals_stand() {
    let mut after = exact(vec![qp(2, 10, 17, 1)]);
    after.totals.add(&posted(5));
    let other =
        Process { id: ALICE, t_ns: 2, comm: "bob".into(), exe: "/usr/bin/bob".into(), ..Process::default() };
    let report = report(vec![
        queues_sample(ALICE, SECOND, exact(vec![qp(1, 10, 17, 5)])),
        Record::Process(other),
        queues_sample(ALICE, 2 * SECOND, after),
    ]);
    let process = &report.processes[0];
    assert_eq!(process.data_path.posts.post_calls, Some(6));
    let gone: Vec<_> = process.queues.qps.iter().map(|qp| qp.gone).collect();
    assert_eq!(gone, [false, true]);
}

#[test]
fn memory_is_bounded_by_the_destroyed_queues_kept_and_the_dropped_are_counted() {
    let mut model = model(vec![]);
    for object in 1..=10_000 {
        let gone = QueueSample { gone: true, ..qp(object, 10, 17, 1) };
        model.push(&queues_sample(ALICE, object, exact(vec![gone])));
    }
    let path = &model.processes[&ALICE].data_path;
    assert_eq!((path.queues().count(), path.dropped), (8192, 10_000 - 8192));
    assert_eq!(model.objects(), 8192);
}

fn text(report: &Report, width: usize) -> String {
    let mut out = Vec::new();
    write_text(report, Layout { width, rows: 16 }, &mut anstream::StripStream::new(&mut out)).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_text_says_how_work_was_posted_what_failed_and_how_far_to_trust_it() {
    let mut path = every_figure_of_the_data_path();
    let report = report(vec![queues_sample(ALICE, SECOND, path.clone())]);
    let wide = text(&report, 160);
    for expected in [
        "posts              12  40 WRs  4.0 a post  2.50 KiB  64 B a WR",
        "25 % signalled (longest run without: 3)  20 % inline  rdma_write 40",
        "2 calls refused  ENOMEM 2",
        "14 posted in 4 calls",
        "20  10 completions  1.1 a poll that found any  50 % of the polls empty",
        "2 completions with an error  WR_FLUSH_ERR on QP 17 2",
        "posts and polls by the tap, every call",
        "1 calls could not be counted",
        "a second libibverbs in the process",
        "4 not 64-byte aligned",
        "77 % sequential",
        "(polling delay included)",
    ] {
        assert!(wide.contains(expected), "{expected:?} is not in\n{wide}");
    }
    assert!(text(&report, 80).lines().all(|line| line.chars().count() <= 80));
    path.observed.counting = Counting::Estimated;
    path.observed.share = 0.5;
    let report = self::report(vec![queues_sample(ALICE, SECOND, path)]);
    assert!(text(&report, 160).contains("50 % of the calls: counts are ESTIMATES"));
}

#[test]
fn queue_pairs_and_completion_queues_are_ranked_over_all_processes() {
    let bob = ProcessId { pid: 200, start_ns: 9 };
    let cq = |cqes| queue(QueueKind::Cq, 5, 5, 3, polled(cqes));
    let model = model(vec![
        process(bob, "bob"),
        queues_sample(ALICE, SECOND, exact(vec![qp(1, 10, 17, 5), cq(5)])),
        queues_sample(bob, SECOND, exact(vec![qp(1, 10, 18, 50), cq(50)])),
    ]);
    let (qps, cqs) = (by_qp(&model, &Filter::default()), by_cq(&model, &Filter::default()));
    assert_eq!(qps.qps.iter().map(|q| (q.pid, q.qp.qpn)).collect::<Vec<_>>(), [(200, 18), (100, 17)]);
    assert_eq!(cqs.cqs.iter().map(|q| q.pid).collect::<Vec<_>>(), [200, 100]);
    for (groups, expected) in [(qps, "25 %"), (cqs, "50 %")] {
        let mut out = Vec::new();
        write_groups(&groups, Layout { width: 120, rows: 1 }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(expected) && text.ends_with("and 1 more (--all lists them)\n"), "{text}");
    }
}

#[test]
fn a_destroyed_completion_queue_is_listed_for_its_polls_and_the_next_at_its_pointer_has_its_own() {
    let made = |t_ns| {
        Record::Event(event(ALICE, t_ns, 1, Call::CreateCq, Detail::Cq { cq: 5, cqe: 64, channel: 0 }))
    };
    let ended = Record::Event(event(ALICE, 3, 1, Call::DestroyCq, Detail::Object { object: 5 }));
    let cq = |object, cqes, gone| QueueSample { gone, ..queue(QueueKind::Cq, object, 5, 3, polled(cqes)) };
    let queues = vec![cq(1, 10, true), cq(2, 30, false)];
    let report = report(vec![made(1), ended, made(4), queues_sample(ALICE, SECOND, exact(queues))]);
    let queues = &report.processes[0].queues;
    let told: Vec<_> =
        queues.cqs.iter().map(|cq| (cq.gone, cq.cqe, cq.data_path.as_ref().unwrap().polls.cqes)).collect();
    assert_eq!(told, [(false, Some(64), Some(30)), (true, None, Some(10))]);
    assert_eq!(queues.cq_live, Some(1));
    assert!(text(&report, 120).contains("0x5 destroyed"));
}

#[test]
fn a_comparison_judges_failures_tells_ratios_and_does_not_compare_counts_of_a_sample() {
    let side = |calls: u64, failed, counting| {
        let mut path = exact(vec![qp(1, 10, 17, calls)]);
        path.totals.post_failed = failed;
        path.totals.signalled = 4 * calls;
        path.observed.counting = counting;
        model(vec![queues_sample(ALICE, SECOND, path)])
    };
    let before = side(10, 0, Counting::Every);
    let find = |b: &Model, name: &str| {
        let metrics = diff(&before, b).metrics;
        metrics.into_iter().find(|m| m.name == name).map(|m| (m.a, m.b, m.outcome))
    };
    let after = side(20, 1, Counting::Every);
    assert_eq!(find(&after, "data_path.posts_failed"), Some((Some(0), Some(1), Outcome::Worse)));
    assert_eq!(find(&after, "data_path.wrs"), Some((Some(40), Some(80), Outcome::Changed)));
    assert_eq!(find(&after, "data_path.signaled_permille"), Some((Some(1000), Some(1000), Outcome::Same)));
    let sampled = side(20, 1, Counting::Ratios);
    assert_eq!(find(&sampled, "data_path.wrs"), None);
    assert!(find(&sampled, "data_path.signaled_permille").is_some());
}

#[test]
fn exports_carry_the_same_counts() {
    let path = every_figure_of_the_data_path();
    let records = vec![queues_sample(ALICE, SECOND, path.clone())];
    let folder = tempfile::tempdir().unwrap();
    let mut csv = Csv::create(folder.path(), false).unwrap();
    records.iter().for_each(|record| csv.record(record).unwrap());
    csv.finish().unwrap();
    let rows = |name: &str| -> Vec<BTreeMap<String, String>> {
        let mut reader = csv::Reader::from_path(folder.path().join(name)).unwrap();
        reader.deserialize().map(Result::unwrap).collect()
    };
    let queues = rows("queues.csv");
    let kinds: Vec<_> = queues.iter().map(|row| row["queue"].as_str()).collect();
    assert_eq!(kinds, ["all", "qp", "cq", "srq"]);
    assert_eq!((queues[1]["wrs"].as_str(), queues[1]["by"].as_str()), ("40", "tap"));
    assert_eq!((queues[3]["share"].as_str(), queues[3]["counting"].as_str()), ("0.25", "estimated"));
    let figures = rows("queue_figures.csv");
    let opcode = figures.iter().find(|row| row["figure"] == "opcodes" && row["queue"] == "qp").unwrap();
    assert_eq!((opcode["key"].as_str(), opcode["value"].as_str()), ("rdma_write", "40"));
    assert!(
        rows("queue_latencies.csv")
            .iter()
            .any(|row| row["figure"] == "post_to_reap_ns" && row["count"] == "10")
    );

    let mut text = Vec::new();
    write_metrics(&model(records.clone()), MetricsFormat::OpenMetrics, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for line in [
        "rdma_wrs_total{pid=\"100\",comm=\"alice\"} 40",
        "rdma_wrs_by_opcode_total{pid=\"100\",comm=\"alice\",opcode=\"rdma_write\"} 40",
        "rdma_cqe_errors_total{pid=\"100\",comm=\"alice\"} 2",
        "# UNIT rdma_wr_bytes bytes",
        "rdma_data_path_share{pid=\"100\",comm=\"alice\"} 1.0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn rates_in_perfetto_hold_for_their_interval_and_fall_to_nothing() {
    let mut out = Vec::new();
    let mut perfetto = Perfetto::new(&mut out);
    let other = ProcessId { pid: 7, start_ns: 1 };
    for record in [
        Record::Header(header()),
        process(ALICE, "alice"),
        queues_sample(ALICE, SECOND, exact(vec![qp(1, 10, 17, 5)])),
        queues_sample(ALICE, 2 * SECOND, exact(vec![qp(1, 10, 17, 15)])),
        queues_sample(other, 3 * SECOND, exact(vec![])),
    ] {
        perfetto.record(&record).unwrap();
    }
    perfetto.finish().unwrap();
    drop(perfetto);
    let entries: Vec<Value> = serde_json::from_slice(&out).unwrap();
    let posts: Vec<_> = entries
        .iter()
        .filter(|e| e["name"] == "posts/s")
        .map(|e| (e["ts"].as_f64().unwrap(), e["args"]["value"].as_u64().unwrap()))
        .collect();
    assert_eq!(posts, [(0.0, 5), (1e6, 10), (2e6, 0)]);
}

#[test]
fn a_source_of_a_newer_version_is_read_and_never_taken_for_nothing() {
    let line = r#"{"kind":"sample","t_ns":1,"processes":[{"pid":100,"start_ns":5,"data_path":{"observed":
        {"by":"telepathy","counting":"guessed"},"totals":{"wrs":3,"opcodes":{"warp":3}},"queues":
        [{"queue":"ring","object":1,"pointer":1,"number":1,"counts":{}}]}}]}"#;
    let record: Record = serde_json::from_str(line).unwrap();
    let model = model(vec![record]);
    let path = &model.processes[&ALICE].data_path;
    assert_eq!((path.observed.by, path.queues().count()), (ObservedBy::Unknown, 0));
    assert_eq!(path.totals.counts().wrs, 3);
}
