//! Runs the real program on the emulated device.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program under test.
pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_rdma-workload"))
}

/// The program, with the emulated device's library beside it.
pub fn emulated() -> Command {
    testkit::built("rnic-emu-preload", "librnic_emu.so");
    let mut command = Command::new(program());
    command.env_remove("LD_PRELOAD");
    command
}

/// Runs the program on the emulated device with these arguments.
pub fn run(arguments: &[&str]) -> Output {
    emulated().args(arguments).output().expect("the program starts")
}

/// Runs it and parses what it prints as JSON; it must succeed.
pub fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("valid JSON")
}

/// Exit status and what was said on standard error, which must be one line naming the program.
pub fn refusal(output: &Output) -> (i32, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // A note that the emulated device is used may come first.
    let lines: Vec<_> = text.lines().filter(|line| !line.contains("using the emulated RNIC")).collect();
    assert_eq!(lines.len(), 1, "{text:?}");
    assert!(lines[0].starts_with("rdma-workload: "), "{text:?}");
    (output.status.code().expect("an exit status"), lines[0].to_owned())
}

/// Pages in the pool of 2 MiB huge pages; `None` where there is no such pool.
pub fn huge_pages() -> Option<u64> {
    let path = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
