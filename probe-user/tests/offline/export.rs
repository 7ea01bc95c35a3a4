//! Exported files: what other tools require of them, and the same figures as the report.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use probe_user::export::{Csv, Exporter, Folded, MetricsFormat, Perfetto, Weight, write_metrics};
use probe_user::model::Model;
use probe_user::sample::{Call, CallCount, Detail, ProcessId, Record};
use serde_json::Value;

use crate::common::*;

fn perfetto(records: &[Record]) -> Vec<Value> {
    let mut out = Vec::new();
    let mut exporter = Perfetto::new(&mut out);
    records.iter().for_each(|record| exporter.record(record).unwrap());
    exporter.finish().unwrap();
    drop(exporter);
    serde_json::from_slice(&out).unwrap()
}

/// What Perfetto's importer and chrome://tracing ask of every file.
pub fn assert_well_formed(entries: &[Value]) {
    let mut open: BTreeMap<(String, String, u64), u64> = BTreeMap::new();
    let mut ids = HashSet::new();
    let mut slices: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<(String, String), u64> = BTreeMap::new();
    for entry in entries {
        let ns = |key: &str| {
            let micros = entry[key].as_f64().unwrap();
            assert!(micros >= 0.0, "{entry}");
            let ns = (micros * 1000.0).round();
            assert!((micros * 1000.0 - ns).abs() < 1e-3, "{key} is not a whole number of ns: {entry}");
            ns as u64
        };
        let (pid, tid) = (entry["pid"].as_u64().unwrap(), entry["tid"].as_u64().unwrap());
        assert!(!entry["name"].as_str().unwrap().is_empty());
        match entry["ph"].as_str().unwrap() {
            "X" => slices.entry((pid, tid)).or_default().push((ns("ts"), ns("ts") + ns("dur"))),
            ph @ ("b" | "e") => {
                let key = |k: &str| entry[k].as_str().unwrap().to_owned();
                assert!(u64::from_str_radix(key("id").strip_prefix("0x").unwrap(), 16).is_ok());
                let span = (key("cat"), key("id") + &key("name"), pid);
                if ph == "b" {
                    assert!(ids.insert(span.clone()), "an id is used twice: {entry}");
                    assert!(
                        open.insert(span, ns("ts")).is_none(),
                        "two overlapping spans of one id: {entry}"
                    );
                } else {
                    assert!(open.remove(&span).is_some_and(|began| began <= ns("ts")), "{entry}");
                }
            }
            ph @ ("s" | "f") => {
                let key = |k: &str| entry[k].as_str().unwrap().to_owned();
                let at = ns("ts");
                let around = slices.get(&(pid, tid)).into_iter().flatten();
                let inside = around.filter(|(begin, end)| (*begin..=*end).contains(&at)).count();
                assert!(inside > 0, "an arrow's end is in no slice before it: {entry}");
                let arrow = (key("cat"), key("id"));
                if ph == "s" {
                    assert!(arrows.insert(arrow, at).is_none(), "an id is used twice: {entry}");
                } else {
                    assert_eq!(entry["bp"], "e");
                    assert!(arrows.remove(&arrow).is_some_and(|began| began <= at), "{entry}");
                }
            }
            "C" => assert!(entry["args"].as_object().unwrap().values().all(Value::is_number), "{entry}"),
            "i" => assert_eq!(entry["s"], "t"),
            "M" => assert!(["process_name", "thread_name"].contains(&entry["name"].as_str().unwrap())),
            other => panic!("{other}: {entry}"),
        }
    }
    assert!(arrows.is_empty(), "arrows without an end: {arrows:?}");
    assert!(open.is_empty(), "spans without an end: {open:?}");
    for slices in slices.values_mut() {
        slices.sort_unstable_by_key(|(begin, end)| (*begin, std::cmp::Reverse(*end)));
        let mut stack: Vec<u64> = Vec::new();
        for (begin, end) in slices {
            while stack.last().is_some_and(|outer| outer <= begin) {
                stack.pop();
            }
            assert!(stack.last().is_none_or(|outer| *end <= *outer), "slices of one thread cross");
            stack.push(*end);
        }
    }
}

#[test]
fn a_perfetto_file_is_well_formed_and_has_one_slice_per_call() {
    let records = every_kind_of_record();
    let entries = perfetto(&records);
    assert_well_formed(&entries);
    let events =
        records.iter().filter(|r| matches!(r, Record::Event(_) | Record::Post(_) | Record::Poll(_))).count();
    assert_eq!(entries.iter().filter(|e| e["ph"] == "X").count(), events);
    let registration =
        entries.iter().find(|e| e["name"] == "reg_mr" && e["args"]["addr"].is_string()).unwrap();
    assert_eq!((registration["ts"].as_f64(), registration["dur"].as_f64()), (Some(4.0), Some(0.1)));
    assert_eq!(registration["args"]["addr"], "0x1000");
    assert_eq!(registration["args"]["kernel_ns"], 80);
    let failed = entries.iter().find(|e| e["args"]["errno"] == 12).unwrap();
    assert_eq!(failed["name"], "reg_mr");
}

#[test]
fn a_perfetto_file_shows_each_request_in_flight_and_an_arrow_to_the_poll_that_reaped_it() {
    let entries = perfetto(&every_kind_of_record());
    let of = |ph: &str, cat: &str| entries.iter().filter(|e| e["ph"] == ph && e["cat"] == cat).count();
    // Six requests; three have completions of their own; one message.
    assert_eq!((of("b", "work request"), of("e", "work request")), (6, 6));
    assert_eq!((of("s", "reaped"), of("f", "reaped"), of("s", "message"), of("f", "message")), (3, 3, 1, 1));
    let in_flight = |wr_id: &str| {
        let name = |e: &&Value| e["cat"] == "work request" && e["args"]["wr_id"] == wr_id;
        let begun = entries.iter().find(name).unwrap();
        let ended = entries.iter().find(|e| e["ph"] == "e" && e["id"] == begun["id"]).unwrap();
        (begun["args"].clone(), begun["ts"].as_f64().unwrap(), ended["ts"].as_f64().unwrap())
    };
    let (implied, from, to) = in_flight("0x1");
    assert_eq!((&implied["done"], from, to), (&"by a later completion".into(), 66.2, 67.09));
    assert_eq!(in_flight("0x3").0["status"], 12);
    assert_eq!(in_flight("0x4").0["done"], "not seen");
}

#[test]
fn an_empty_trace_is_an_empty_array() {
    assert!(perfetto(&[]).is_empty());
}

#[test]
fn a_pid_used_again_is_shown_as_another_process() {
    let second = ProcessId { pid: ALICE.pid, start_ns: 99 };
    let entries = perfetto(&[
        Record::Header(header()),
        process(ALICE, "first"),
        Record::Event(event(ALICE, 1, 1, Call::RegMr, mr(1, 0, 1))),
        process(second, "second"),
        Record::Event(event(second, 9, 1, Call::RegMr, mr(1, 0, 1))),
    ]);
    assert_well_formed(&entries);
    let pids: BTreeSet<_> = entries.iter().filter(|e| e["ph"] == "X").map(|e| e["pid"].as_u64()).collect();
    assert_eq!(pids.len(), 2);
    assert!(entries.iter().any(|e| e["args"]["name"] == "second (pid 100)"));
}

#[test]
fn a_qp_is_a_span_and_its_states_are_spans_within_even_when_a_destruction_was_missed() {
    let created = |qpn| {
        let Record::Event(e) = every_kind_of_record()
            .into_iter()
            .find(|r| matches!(r, Record::Event(e) if e.call == Call::CreateQp))
            .unwrap()
        else {
            unreachable!()
        };
        let mut e = e;
        if let Detail::Qp { qpn: n, .. } = &mut e.detail {
            *n = qpn;
        }
        Record::Event(e)
    };
    let changed = || {
        every_kind_of_record()
            .into_iter()
            .find(|r| matches!(r, Record::Event(e) if e.call == Call::ModifyQp))
            .unwrap()
    };
    let entries =
        perfetto(&[Record::Header(header()), created(17), changed(), created(18), changed(), changed()]);
    assert_well_formed(&entries);
    let begun: Vec<_> =
        entries.iter().filter(|e| e["ph"] == "b").map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(begun, ["QP 17 RC", "RTR", "QP 18 RC", "RTR", "RTR"]);
}

#[test]
fn csv_tables_have_a_row_per_record_and_empty_fields_for_what_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let mut csv = Csv::create(folder.path(), false).unwrap();
    let records = every_kind_of_record();
    records.iter().for_each(|record| csv.record(record).unwrap());
    csv.finish().unwrap();
    let rows = |name: &str| -> Vec<BTreeMap<String, String>> {
        let mut reader = csv_reader(&folder.path().join(name));
        reader.deserialize().map(Result::unwrap).collect()
    };
    let events = records.iter().filter(|r| matches!(r, Record::Event(_))).count();
    assert_eq!(rows("events.csv").len(), events);
    let registration = &rows("registrations.csv")[0];
    assert_eq!((registration["addr"].as_str(), registration["kernel_ns"].as_str()), ("0x1000", "80"));
    assert_eq!(rows("qp_changes.csv")[0]["to"], "RTR");
    assert_eq!(rows("samples.csv")[0]["entered"], "2");
    assert_eq!(rows("latencies.csv")[0]["count"], "2");
    assert_eq!(rows("counters.csv").len(), 2);
    let findings: Vec<_> = records
        .iter()
        .filter_map(|record| if let Record::Finding(finding) = record { Some(finding) } else { None })
        .collect();
    let table = rows("findings.csv");
    assert_eq!(table.len(), findings.len());
    assert_eq!((&table[0]["id"], &table[0]["pid"][..]), (&findings[0].text(&["id"]), "100"));
    assert_eq!(rows("probes.csv")[3]["reason"], "CAP_BPF");
    assert!(rows("trace.csv").iter().any(|row| row["key"] == "ended" && row["value"] == "target exited"));

    assert!(Csv::create(folder.path(), false).is_err(), "existing tables are not overwritten unasked");
    assert!(Csv::create(folder.path(), true).is_ok());
}

fn csv_reader(path: &std::path::Path) -> csv::Reader<std::fs::File> {
    csv::Reader::from_path(path).unwrap()
}

#[test]
fn folded_stacks_are_summed_outermost_first_and_names_cannot_break_a_line() {
    let mut records = vec![process(ALICE, "my app;x")];
    for _ in 0..3 {
        let mut e = event(ALICE, 1, 10, Call::RegMr, mr(1, 0, 4096));
        e.stack = vec![0xa, 0xb];
        records.push(Record::Event(e));
    }
    records.push(Record::Event(event(ALICE, 1, 10, Call::CreateQp, Detail::None)));
    for (weight, n) in [(Weight::Calls, 3), (Weight::Time, 30), (Weight::Bytes, 12_288)] {
        let mut out = Vec::new();
        let mut folded = Folded::new(&mut out, weight, vec![Call::RegMr]);
        records.iter().for_each(|record| folded.record(record).unwrap());
        folded.finish().unwrap();
        drop(folded);
        assert_eq!(String::from_utf8(out).unwrap(), format!("my_app_x;0xb;0xa;reg_mr {n}\n"));
    }
}

#[test]
fn openmetrics_totals_are_the_counts_and_each_series_appears_once() {
    let again = ProcessId { pid: ALICE.pid, start_ns: 99 };
    let count = CallCount { entered: 3, returned: 3, bytes: 10, total_ns: 3_000, ..CallCount::default() };
    let mut model = Model::new();
    for record in [
        Record::Header(header()),
        process(ALICE, "we\"ird\\"),
        process(again, "we\"ird\\"),
        sample(ALICE, 1, Call::RegMr, count, &[(probe_user::model::bucket_of(1000), 3)]),
        sample(again, 2, Call::RegMr, count, &[(probe_user::model::bucket_of(2000), 3)]),
    ] {
        model.push(&record);
    }
    let mut out = Vec::new();
    write_metrics(&model, MetricsFormat::OpenMetrics, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with("# EOF\n"));
    let labels = r#"{pid="100",comm="we\"ird\\",call="reg_mr"}"#;
    assert!(text.contains(&format!("rdma_calls_total{labels} 6\n")), "{text}");
    assert!(text.contains("le=\"1.023e-6\"} 3\n") && text.contains("le=\"4.095e-6\"} 6\n"), "{text}");
    assert!(text.contains(&format!("rdma_call_duration_seconds_sum{labels} 6e-6\n")), "{text}");
    let mut series = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(series.insert(name), "twice: {line}");
    }
}
