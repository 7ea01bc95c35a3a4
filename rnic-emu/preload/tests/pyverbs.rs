//! rdma-core's own Python tests on the emulated device, against the list of what each is known to say.

mod kit;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where Debian's python3-pyverbs puts them, and the interpreter it is built for.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
const PYTHON: &str = "/usr/bin/python3";

/// Those of the verbs any device has. The others are for one vendor's devices, GPUs, or the connection manager.
const MODULES: [&str; 18] = [
    "test_addr",
    "test_atomic",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_device",
    "test_flow",
    "test_fork",
    "test_mr",
    "test_odp",
    "test_parent_domain",
    "test_pd",
    "test_qp",
    "test_qpex",
    "test_relaxed_ordering",
    "test_rss_traffic",
    "test_shared_pd",
    "test_tag_matching",
];

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pyverbs")
}

/// Test → "pass", or the name of the reason it does not run.
fn expected(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|l| !l.starts_with(['#', '@']));
    lines.filter_map(|l| l.split_once(' ')).collect()
}

/// Reason → what it means.
fn reasons(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|l| l.strip_prefix("@ "));
    lines.filter_map(|l| l.split_once(' ')).map(|(name, why)| (name, why.trim())).collect()
}

#[test]
fn every_reason_given_is_explained_and_every_explanation_used() {
    let text = include_str!("pyverbs/expected.txt");
    let (mut used, reasons): (Vec<_>, _) = (expected(text).into_values().collect(), reasons(text));
    used.retain(|r| *r != "pass");
    used.sort_unstable();
    used.dedup();
    assert_eq!(used, reasons.into_keys().collect::<Vec<_>>());
}

#[test]
fn the_python_tests_of_rdma_core_pass_or_are_known_not_to_apply() {
    if !Path::new(TESTS).is_dir() {
        return eprintln!("not run: {TESTS} is not there (package python3-pyverbs)");
    }
    let out = Command::new("timeout")
        .args(["--kill-after=5", "300", PYTHON])
        .arg(here().join("run.py"))
        .arg(TESTS)
        .args(MODULES)
        .env("LD_PRELOAD", kit::library())
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1)");
    let printed = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "ended in {:?}:\n{printed}\n{out:?}", printed.lines().last());
    let text = include_str!("pyverbs/expected.txt");
    let (expected, reasons) = (expected(text), reasons(text));
    let (mut passed, mut wrong) = (0, Vec::new());
    let mut not_run = BTreeMap::<&str, usize>::new();
    let mut seen = Vec::new();
    for line in printed.lines().filter(|l| !l.starts_with('#')) {
        let mut fields = line.split('\t');
        let (name, outcome, said) =
            (fields.next().unwrap_or(""), fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        seen.push(name);
        match (outcome, expected.get(name)) {
            // More than was promised is no fault: a machine may have what another lacks.
            ("pass", _) => passed += 1,
            ("skip", Some(reason)) if *reason != "pass" => *not_run.entry(*reason).or_default() += 1,
            ("skip", None) => *not_run.entry("not in the list").or_default() += 1,
            _ => wrong.push(format!("{name}: {outcome}: {said}")),
        }
    }
    // Another version of rdma-core may have dropped a test.
    for name in expected.keys().filter(|n| !seen.contains(n)) {
        println!("{name}: not among these tests");
    }
    println!("{passed} pass");
    for (reason, n) in &not_run {
        println!("{n:3} do not apply: {reason}: {}", reasons.get(reason).unwrap_or(&""));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(passed >= 90, "only {passed} ran");
}
