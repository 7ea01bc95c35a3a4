//! The manual's examples for pandas and DuckDB, run as they stand there.

use std::path::Path;
use std::process::Command;

use probe_user::export::{Csv, Exporter};
use probe_user::sample::{Call, DataPath, Event, ProcessSample, QueueCounts, Record, Sample, Symbol};
use probe_user::trace::{Options, Reader, Writer};

use crate::common::{ALICE, event, footer, header, mr, process};

/// Python blocks of the manual, in order.
fn examples() -> Vec<String> {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/working-with-traces.md");
    let text = std::fs::read_to_string(manual).unwrap();
    text.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// A Python that has a module; `RDMA_PROBE_PYTHON` names another than the system's.
fn python_with(module: &str) -> Option<String> {
    let python = std::env::var("RDMA_PROBE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if there.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    eprintln!(
        "skipped: {python} has no module {module} (pip install {module}; RDMA_PROBE_PYTHON names a Python that has)"
    );
    None
}

fn trace(folder: &Path) {
    let path = folder.join("trace.jsonl");
    let mut writer = Writer::create(&path, &header(), Options::default()).unwrap();
    writer.push(&process(ALICE, "alice")).unwrap();
    for (addr, name) in [(0x100, "pool_grow"), (0x200, "send_one")] {
        let symbol = Symbol { id: ALICE, addr, name: name.into(), module: "/a".into(), ..Symbol::default() };
        writer.push(&Record::Symbol(symbol)).unwrap();
    }
    for n in 0..10_u64 {
        let (caller, ns) = if n < 8 { (0x200, 1000) } else { (0x100, 50) };
        let call = event(ALICE, 1000 + n, ns, Call::RegMr, mr(n + 1, n << 12, 4096));
        writer.push(&Record::Event(Event { stack: vec![caller, 0x300], ..call })).unwrap();
    }
    let totals = QueueCounts { wrs: 4, ..QueueCounts::default() };
    let data_path = Some(DataPath { totals, ..DataPath::default() });
    let processes = vec![ProcessSample { id: ALICE, data_path, ..ProcessSample::default() }];
    writer.push(&Record::Sample(Sample { t_ns: 9000, processes, ..Sample::default() })).unwrap();
    writer.finish(footer("done")).unwrap();
    let tables = folder.join("tables");
    std::fs::create_dir(&tables).unwrap();
    let mut csv = Csv::create(&tables, false).unwrap();
    Reader::open(&path).unwrap().for_each(|record| csv.record(&record.unwrap()).unwrap());
    csv.finish().unwrap();
}

fn run(python: &str, example: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    trace(folder.path());
    let output = Command::new(python).args(["-c", example]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pandas_answers_which_call_site_registers_most_per_message() {
    let Some(python) = python_with("pandas") else { return };
    let said = run(&python, &examples()[0]);
    let first: Vec<_> = said.lines().nth(1).unwrap().split_whitespace().collect();
    // send_one: 8 registrations of 4 KiB in 8 µs, two for each message.
    assert_eq!(&first[first.len() - 5..], ["send_one", "8", "32768", "8000", "2.0"], "{said}");
}

#[test]
fn duckdb_answers_the_same_from_the_tables() {
    let Some(python) = python_with("duckdb") else { return };
    let said = run(&python, &examples()[1]);
    assert!(said.starts_with("[('send_one', 8, 32768, 8000), ('pool_grow', 2, 8192, 100)]"), "{said}");
}
