//! Every figure on screen is the report's: same trace, same moment, same number.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::path::Path;

use probe_user::doctor;
use probe_user::replay::{Window, replay};
use probe_user::report::{self, Filter, Report};
use probe_user::trace::Reader;
use rdma_tui::app::world::World;
use rdma_tui::feed;
use rdma_tui::output::json;
use serde_json::Value;

fn report_of(path: &Path) -> Report {
    let model = replay(Reader::open(path).unwrap(), Window::default()).unwrap();
    report::build(&model, None, &Filter::default())
}

fn table<'a>(shown: &'a Value, name: &str) -> &'a Vec<Value> {
    shown["tables"][name].as_array().unwrap()
}

fn row_of(rows: &[Value], pid: u32) -> &Value {
    rows.iter().find(|row| row["pid"] == pid).unwrap_or_else(|| panic!("pid {pid} is not shown"))
}

/// The findings on screen are those of `doctor --json` of the same trace, one for one.
fn check_findings(path: &Path, world: &World) {
    let model = replay(Reader::open(path).unwrap(), Window::default()).unwrap();
    let document =
        doctor::Document::new(doctor::examine(&model, &doctor::Settings::default()), model.duration_ns());
    let told = serde_json::to_value(&document).unwrap();
    assert_eq!(serde_json::to_value(world.findings()).unwrap(), told["findings"]);
}

/// Registrations by call site are those of `report --by call-site`.
fn check_sites(path: &Path, world: &World) {
    let model = replay(Reader::open(path).unwrap(), Window::default()).unwrap();
    let told = report::by_site(&model, &Filter::default()).sites;
    let mut told: Vec<_> = told
        .iter()
        .filter(|site| rdma_tui::app::history::registers(site.call))
        .map(|s| {
            serde_json::json!([
                s.pid,
                s.site,
                s.count,
                s.failed,
                s.mean_ns,
                s.total_ns,
                s.bytes,
                s.live,
                s.live_bytes
            ])
        })
        .collect();
    let keys = [
        "pid",
        "site",
        "site.count",
        "site.failed",
        "site.mean",
        "site.total",
        "site.bytes",
        "site.live",
        "site.live_bytes",
    ];
    let shown = json::everything(world);
    let row = |row: &Value| Value::from(keys.map(|key| row[key].clone()).to_vec());
    let mut shown: Vec<Value> = table(&shown, "sites").iter().map(row).collect();
    told.sort_by_key(ToString::to_string);
    shown.sort_by_key(ToString::to_string);
    assert_eq!(shown, told);
}

fn check(path: &Path) {
    let report = serde_json::to_value(report_of(path)).unwrap();
    let world = feed::replay::load(path, None).unwrap();
    check_findings(path, &world);
    check_sites(path, &world);
    let shown = json::everything(&world);
    let processes = report["processes"].as_array().unwrap();
    assert!(!processes.is_empty());

    for of_report in processes {
        let pid = u32::try_from(of_report["pid"].as_u64().unwrap()).unwrap();
        let process = row_of(table(&shown, "processes"), pid);
        let (reg, queues) = (&of_report["registration"], &of_report["queues"]);
        for (field, figure) in [
            ("comm", &of_report["comm"]),
            ("reg.count", &reg["count"]),
            ("mr.live", &reg["live"]),
            ("mr.bytes", &reg["live_bytes"]),
            ("qps", &queues["qp_live"]),
            ("cqs", &queues["cq_live"]),
        ] {
            assert_eq!(&process[field], figure, "processes, pid {pid}: {field}");
        }
        if reg["count"].as_u64().unwrap_or(0) > 0 {
            let registrant = row_of(table(&shown, "registration"), pid);
            for (field, figure) in [
                ("reg.count", &reg["count"]),
                ("reg.failed", &reg["failed"]),
                ("reg.p50", &reg["latency_ns"]["p50"]),
                ("reg.p99", &reg["latency_ns"]["p99"]),
                ("reg.max", &reg["latency_ns"]["max"]),
                ("reg.kernel", &reg["split"]["kernel_share"]),
                ("mr.live", &reg["live"]),
                ("mr.bytes", &reg["live_bytes"]),
                ("mr.peak", &reg["peak_bytes"]),
                ("reg.bytes", &reg["bytes"]),
            ] {
                assert_eq!(&registrant[field], figure, "registration, pid {pid}: {field}");
            }
            let per_page = (registrant["reg.page"].as_f64(), reg["pages"]["mean_ns_per_page"].as_f64());
            assert_eq!(per_page.0, per_page.1, "pid {pid}: per page");
        }
        check_queues(&shown, of_report, pid);
        check_completion_queues(&shown, of_report, pid);
        check_posting(&shown, of_report, pid);
    }
    check_totals(&shown, &report);
}

fn check_queues(shown: &Value, of_report: &Value, pid: u32) {
    let reported: Vec<&Value> =
        of_report["queues"]["qps"].as_array().unwrap().iter().filter(|qp| qp["gone"] == false).collect();
    let rows: Vec<&Value> = table(shown, "qps").iter().filter(|row| row["pid"] == pid).collect();
    assert_eq!(rows.len(), reported.len(), "pid {pid}: queue pairs");
    for qp in reported {
        let row = rows.iter().find(|row| row["qpn"] == qp["qpn"]).expect("every QP of the report is shown");
        let known = !qp["created_ns"].is_null();
        for (field, figure) in [
            ("qp.type", &qp["qp_type"]),
            ("qp.state", &qp["state"]),
            ("qp.mtu", &qp["path_mtu_bytes"]),
            ("qp.rnr_retry", &qp["rnr_retry"]),
            ("qp.retry", &qp["retry_cnt"]),
        ] {
            assert_eq!(&row[field], figure, "QP {}: {field}", qp["qpn"]);
        }
        let path = &qp["data_path"];
        for (field, figure) in [
            ("qp.signalled", &path["signaled_share"]),
            ("qp.batch", &path["wrs_per_post"]),
            ("qp.refused", &path["post_failed"]),
            ("qp.outstanding", &path["shape"]["most_outstanding"]),
        ] {
            assert_eq!(row[field].as_f64(), figure.as_f64(), "QP {}: {field}", qp["qpn"]);
        }
        if known {
            assert_eq!(row["qp.depth"], qp["max_send_wr"]);
            assert_eq!(row["qp.inline"], qp["max_inline_bytes"]);
            assert_eq!(row["qp.signal_all"] == "yes", qp["sq_sig_all"] == true);
        }
    }
}

fn check_completion_queues(shown: &Value, of_report: &Value, pid: u32) {
    let rows: Vec<&Value> = table(shown, "cqs").iter().filter(|row| row["pid"] == pid).collect();
    let listed = of_report["queues"]["cqs"].as_array().unwrap().iter().filter(|cq| cq["gone"] == false);
    for cq in listed {
        let row =
            rows.iter().find(|row| row["cq"] == cq["cq"]).expect("every live CQ of the report is shown");
        let path = &cq["data_path"];
        for (field, figure) in [
            ("cqe.count", &path["cqes"]),
            ("cq.empty", &path["empty_share"]),
            ("cq.batch", &path["cqes_per_poll"]),
            ("cq.errors", &path["cqe_errors"]),
        ] {
            assert_eq!(row[field].as_f64(), figure.as_f64(), "CQ {}: {field}", cq["cq"]);
        }
    }
}

fn check_posting(shown: &Value, of_report: &Value, pid: u32) {
    let path = &of_report["data_path"];
    let rows = table(shown, "posting").iter().filter(|row| row["pid"] == pid);
    let sum = |field: &str| rows.clone().filter_map(|row| row[field].as_u64()).sum::<u64>();
    if path["unavailable"].is_null() {
        // Destroyed queue pairs are in the report's list and in its totals, not on the screen.
        let qps = of_report["queues"]["qps"].as_array().unwrap();
        let live = |key: &str| -> u64 {
            let live = qps.iter().filter(|qp| qp["gone"] == false);
            live.filter_map(|qp| qp["data_path"][key].as_u64()).sum()
        };
        assert_eq!(sum("wr.count"), live("wrs"), "pid {pid}: work requests");
        assert_eq!(sum("wr.bytes"), live("bytes"), "pid {pid}: bytes");
        let all: u64 = qps.iter().filter_map(|qp| qp["data_path"]["wrs"].as_u64()).sum();
        assert_eq!(all, path["wrs"].as_u64().unwrap(), "pid {pid}: no queue pair is left out");
    } else {
        assert_eq!(rows.count(), 0, "pid {pid}");
    }
}

fn check_totals(shown: &Value, report: &Value) {
    let sum = |section: &str, key: &str| -> u64 {
        report["processes"].as_array().unwrap().iter().filter_map(|p| p[section][key].as_u64()).sum()
    };
    let totals = &shown["totals"];
    assert_eq!(totals["registration"]["count"], sum("registration", "count"));
    assert_eq!(totals["registration"]["failed"], sum("registration", "failed"));
    assert_eq!(totals["registration"]["bytes"], sum("registration", "bytes"));
    assert_eq!(totals["deregistration"]["count"], sum("deregistration", "count"));
    assert_eq!(totals["mr_bytes_live"], sum("registration", "live_bytes"));
    assert_eq!(totals["qps_live"], sum("queues", "qp_live"));
    assert_eq!(shown["lost"]["ring_events"], report["lost"]["ring_events"]);
    assert_eq!(shown["source"]["duration_ns"], report["trace"]["duration_ns"]);
    assert_eq!(table(shown, "probes").len(), report["probes"].as_array().unwrap().len());
}

#[test]
fn a_made_trace_shows_the_figures_of_its_report() {
    let folder = tempfile::tempdir().unwrap();
    check(&common::file(folder.path(), "troubled.trace", &common::made::troubled_host()));
}

#[test]
fn recorded_traces_show_the_figures_of_their_reports() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/traces")).unwrap() {
        check(&entry.unwrap().path());
    }
}

#[test]
fn a_moment_in_the_middle_is_the_trace_cut_there() {
    let folder = tempfile::tempdir().unwrap();
    let records = common::made::troubled_host();
    let path = common::file(folder.path(), "whole.trace", &records);
    let middle = feed::replay::load(&path, Some(60)).unwrap();
    assert_eq!(middle.source.moment, 60);

    let mut cut = Vec::new();
    let mut samples = 0;
    for record in records {
        samples += u64::from(matches!(record, probe_user::sample::Record::Sample(_)));
        cut.push(record);
        if samples == 60 {
            break;
        }
    }
    check_findings(&common::file(folder.path(), "cut.trace", &cut), &middle);
    let cut = common::world(&cut);
    assert_eq!(middle.model, cut.model);
    assert_eq!(middle.history.last(), cut.history.last());
}
