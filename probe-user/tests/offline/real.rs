//! Traces that were really recorded, on soft-RoCE under Linux 6.1: perftest's and rdma-core's own programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use probe_user::export::{Exporter, Perfetto};
use probe_user::model::Model;
use probe_user::replay::{Window, replay};
use probe_user::report::{Filter, Report, build, diff};
use probe_user::sample::{Record, SCHEMA};
use probe_user::trace::{Options, Reader, Writer};

use crate::export::assert_well_formed;
use crate::schemas::{assert_valid, schema_of};

/// `ib_write_bw -q 4 -n 200 -s 4096`, client.
const WRITE_BW: &str = "ib_write_bw-6.1.jsonl";
/// `ibv_rc_pingpong -e`, client.
const PINGPONG: &str = "ibv_rc_pingpong-6.1.jsonl.zst";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn records(name: &str) -> Vec<Record> {
    Reader::open(&path(name)).unwrap().map(Result::unwrap).collect()
}

fn model(name: &str) -> Model {
    replay(Reader::open(&path(name)).unwrap(), Window::default()).unwrap()
}

fn report(name: &str) -> Report {
    build(&model(name), None, &Filter::default())
}

#[test]
fn real_traces_are_whole_and_every_line_keeps_to_the_schema() {
    let schema = schema_of("rdma-trace-1.json");
    for name in [WRITE_BW, PINGPONG] {
        let mut reader = Reader::open(&path(name)).unwrap();
        assert_eq!(reader.header().schema, SCHEMA);
        for record in reader.by_ref() {
            assert_valid(&schema, &serde_json::to_value(record.unwrap()).unwrap());
        }
        let notes = reader.notes();
        assert_eq!((notes.unknown_kinds, notes.cut_off_line, notes.no_footer), (0, None, false), "{name}");
    }
}

#[test]
fn the_report_of_ib_write_bw_has_the_figures_its_options_asked_for() {
    let report = report(WRITE_BW);
    assert_eq!((report.lost.total, report.trace.exit_status), (0, Some(0)));
    let p = report.processes.iter().find(|p| p.comm == "ib_write_bw").unwrap();
    let q = &p.queues;
    assert_eq!((q.qp_created, q.qp_live, q.qp_peak, q.qp_destroyed), (Some(4), Some(0), Some(4), Some(4)));
    assert_eq!((q.cq_created, q.cq_live, q.qps_per_cq_max), (Some(1), Some(0), Some(4)));
    assert_eq!(p.modify_qp.calls.count, Some(12));
    assert_eq!(["INIT", "RTR", "RTS"].map(|state| p.modify_qp.reached[state]), [4, 4, 4]);
    // One buffer for four QPs: 4 × 4096 bytes, twice (sending and receiving).
    let r = &p.registration;
    assert_eq!((r.calls.count, r.bytes, r.live, r.peak), (Some(1), Some(32_768), Some(0), Some(1)));
    assert_eq!((p.deregistration.calls.count, p.kernel_pin.calls.count), (Some(1), Some(1)));
    assert_eq!(p.kernel_pin.bytes, r.bytes);
    assert!(r.exact && q.exact && p.exited);
    for qp in &q.qps {
        assert_eq!(
            (qp.qp_type.as_deref(), qp.path_mtu_bytes, qp.timeout),
            (Some("RC"), Some(1024), Some(14))
        );
        assert!(qp.destroyed_ns > qp.created_ns && qp.dest_qpn.is_some() && qp.transitions.len() == 3);
    }
    let split = r.split;
    let inside = split.pin_share.unwrap() + split.driver_share.unwrap() + split.kernel_other_share.unwrap();
    assert!((inside - split.kernel_share.unwrap()).abs() < 1e-9);
}

#[test]
fn the_report_of_an_event_driven_pingpong_tells_its_waits() {
    let report = report(PINGPONG);
    let p = report.processes.iter().find(|p| p.comm == "ibv_rc_pingpong").unwrap();
    assert_eq!(p.waits.cq_event.count, p.waits.acknowledged);
    assert!(p.waits.cq_event.count > Some(1000));
    assert_eq!((p.queues.qp_created, p.registration.calls.count), (Some(1), Some(1)));
    assert_eq!(p.objects.comp_channel_created, Some(1));
}

#[test]
fn reports_of_real_traces_keep_to_the_report_schema() {
    for name in [WRITE_BW, PINGPONG] {
        assert_valid(&schema_of("rdma-report-1.json"), &serde_json::to_value(report(name)).unwrap());
    }
}

#[test]
fn events_alone_give_the_same_counts_as_the_kernels_counters() {
    for name in [WRITE_BW, PINGPONG] {
        let without_samples =
            records(name).into_iter().filter(|r| !matches!(r, Record::Sample(_))).map(Ok::<_, ()>);
        let from_events = replay(without_samples, Window::default()).unwrap();
        for (id, process) in &model(name).processes {
            for (call, stats) in &process.calls {
                let mut expected = stats.count();
                let found = from_events.processes[id].count(*call);
                // Only some details carry a length.
                expected.bytes = found.bytes;
                assert_eq!(found, expected, "{name} {call:?}");
                let latency = from_events.processes[id].latency(&[*call]);
                assert_eq!(latency, stats.latency(), "{name} {call:?}");
            }
        }
    }
}

#[test]
fn writing_a_real_trace_again_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in [WRITE_BW, PINGPONG] {
        let copy = folder.path().join(name);
        let records = records(name);
        let Record::Header(header) = &records[0] else { panic!("no header") };
        let mut writer = Writer::create(&copy, header, Options::default()).unwrap();
        let Some((Record::Footer(footer), middle)) = records[1..].split_last() else { panic!("no footer") };
        middle.iter().for_each(|record| writer.push(record).unwrap());
        writer.finish(footer.clone()).unwrap();
        assert_eq!(Reader::open(&copy).unwrap().map(Result::unwrap).collect::<Vec<_>>(), records);
    }
}

#[test]
fn real_traces_export_to_well_formed_perfetto_files_with_every_event() {
    for name in [WRITE_BW, PINGPONG] {
        let mut out = Vec::new();
        let mut exporter = Perfetto::new(&mut out);
        let records = records(name);
        records.iter().for_each(|record| exporter.record(record).unwrap());
        exporter.finish().unwrap();
        drop(exporter);
        let entries: Vec<serde_json::Value> = serde_json::from_slice(&out).unwrap();
        assert_well_formed(&entries);
        let Some(Record::Footer(footer)) = records.last() else { panic!("no footer") };
        assert_eq!(entries.iter().filter(|e| e["ph"] == "X").count() as u64, footer.events);
    }
}

#[test]
fn a_trace_does_not_differ_from_itself() {
    let model = model(PINGPONG);
    let diff = diff(&model, &model);
    assert!(diff.notes.is_empty(), "{:?}", diff.notes);
    assert!(diff.metrics.iter().all(|m| m.change.unwrap_or(0.0) == 0.0));
    assert!(diff.metrics.iter().any(|m| m.name == "cq_event_wait.p99_ns" && m.a_interval.is_some()));
}

#[test]
fn the_python_example_of_the_format_document_gives_the_figures_of_the_report() {
    let document = std::fs::read_to_string(path("../../../docs/trace-format.md")).unwrap();
    let code = document.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(path(WRITE_BW), folder.path().join("trace.jsonl")).unwrap();
    let Ok(run) = Command::new("python3").args(["-c", code]).current_dir(folder.path()).output() else {
        eprintln!("skipped: there is no python3");
        return;
    };
    let out = String::from_utf8(run.stdout).unwrap();
    let report = report(WRITE_BW);
    let p = &report.processes[0];
    let ms = p.registration.calls.latency_ns.total.unwrap() as f64 / 1e6;
    assert_eq!(out, format!("{}: 1 registrations, 32768 bytes, {ms:.3} ms\n", p.pid));
}
