//! Where calls come from: the stacks of a program on this machine, by name. Attaching probes needs root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{RECORDER, compile, is_root};

/// Records `sites`, built with these flags, and reports it by call site.
fn by_call_site(flags: &[&str]) -> (tempfile::TempDir, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    let library = compile(folder.path(), "verbs.c", "libibverbs.so.1", &["-shared", "-fPIC"]);
    let user = compile(folder.path(), "sites.c", "sites", &[&["-ldl"], flags].concat());
    let trace = folder.path().join("trace");
    let run = Command::new("timeout")
        .args(["-k", "5", "120", RECORDER, "record", "--quiet", "--output"])
        .arg(&trace)
        .arg("--")
        .args([&user, &library])
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let groups = output(&["report", "--by", "call-site", "--json"], &trace);
    (folder, serde_json::from_str(&groups).unwrap())
}

fn output(arguments: &[&str], trace: &Path) -> String {
    let run = Command::new(RECORDER).args(arguments).arg(trace).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

fn registrations(groups: &serde_json::Value) -> Vec<&serde_json::Value> {
    groups["sites"].as_array().unwrap().iter().filter(|site| site["call"] == "reg_mr").collect()
}

#[test]
fn a_program_with_frame_pointers_shows_who_registers_and_who_leaks() {
    if !is_root() {
        return;
    }
    let (folder, groups) = by_call_site(&["-g", "-fno-omit-frame-pointer"]);
    let sites = registrations(&groups);
    assert_eq!(sites.len(), 2, "{groups:#}");
    for site in &sites {
        let stack: Vec<_> = site["stack"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
        assert!(stack[0].starts_with("pool_grow (sites.c:"), "{stack:?}");
        let (count, live, bytes) = if stack[1].starts_with("open_connection (sites.c:") {
            (7, 7, 7 * 65_536)
        } else {
            assert!(stack[1].starts_with("send_one_message (sites.c:"), "{stack:?}");
            (50, 0, 0)
        };
        assert!(stack[2].starts_with("main (sites.c:"), "{stack:?}");
        assert_eq!((site["count"].as_u64(), site["live"].as_u64()), (Some(count), Some(live)), "{site:#}");
        assert_eq!(site["live_bytes"].as_u64(), Some(bytes));
    }
    let folded = output(&["export", "--format", "folded"], &folder.path().join("trace"));
    let line = |frames: &str| folded.lines().any(|line| line.ends_with(frames));
    assert!(line("main;send_one_message;pool_grow;reg_mr 50"), "{folded}");
    assert!(line("main;open_connection;pool_grow;reg_mr 7"), "{folded}");
}

#[test]
fn without_frame_pointers_the_caller_itself_is_still_right() {
    if !is_root() {
        return;
    }
    let (_folder, groups) = by_call_site(&["-fomit-frame-pointer"]);
    let sites = registrations(&groups);
    let counted: u64 = sites.iter().filter_map(|site| site["count"].as_u64()).sum();
    assert_eq!(counted, 57, "{groups:#}");
    assert!(
        sites.iter().all(|site| site["site"].as_str().is_some_and(|s| s.starts_with("pool_grow"))),
        "{groups:#}"
    );
}
