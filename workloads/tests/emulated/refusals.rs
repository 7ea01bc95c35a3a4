//! Bad input and interrupted runs: one line naming the fix, the right exit status, nothing left behind.

use crate::kit::{emulated, huge_pages, refusal, run};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

/// The machine has one pool of huge pages: tests that look at its size take turns.
static POOL: Mutex<()> = Mutex::new(());

#[test]
fn usage_errors_name_the_bad_value_and_the_fix_and_exit_with_2() {
    for (arguments, expected) in [
        (vec!["compare", "teleport"], "\"teleport\""),
        (vec!["run", "inline", "--variant", "outline"], "\"outline\""),
        (vec!["run", "alignment", "--values", "3"], "--values"),
        (vec!["run", "inline", "--values", "0"], "out of range"),
        (vec!["compare", "inline", "--size", "0"], "--size 0"),
        (vec!["compare", "inline", "--size", "99999999999"], "--size 99999999999"),
        (vec!["compare", "inline", "--region", "0"], "--region 0"),
        (vec!["compare", "inline", "--window", "0"], "--window 0"),
        (vec!["compare", "inline", "--seconds", "0"], "--seconds 0"),
        (vec!["compare", "inline", "--pairs", "0"], "--pairs 0"),
        (vec!["compare", "inline", "--device", "mlx5_99"], "\"mlx5_99\""),
        (vec!["compare", "inline", "--device", "emu9"], "\"emu9\""),
        (vec!["compare", "inline", "--profile", "cx9-like"], "cx5-like"),
        (vec!["compare", "inline", "--speed", "warp"], "\"warp\""),
        (vec!["compare", "inline", "--comparison", "9"], "--comparison 9"),
        (vec!["compare", "all", "--comparison", "1"], "--comparison"),
        (vec!["compare", "all", "--plot", "x.svg"], "--plot"),
        (vec!["compare", "inline", "--probe", "--client", "h"], "--probe"),
        (
            vec![
                "run",
                "multi-qp",
                "--variant",
                "several",
                "--values",
                "4",
                "--region",
                "8",
                "--device",
                "emu0",
            ],
            "region",
        ),
    ] {
        let (status, text) = refusal(&run(&arguments));
        assert_eq!(status, 2, "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn more_memory_than_there_is_is_refused_before_it_is_touched() {
    let output = run(&["compare", "hugepages", "--region", "1099511627776", "--device", "emu0"]);
    let (status, text) = refusal(&output);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("available") && text.contains("--region"), "{text}");
}

#[test]
fn an_interrupted_run_gives_huge_pages_back_and_exits_as_a_shell_expects() {
    let _alone = POOL.lock();
    let before = huge_pages();
    for (signal, status) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let mut command = emulated();
        command.args([
            "compare",
            "hugepages",
            "--region",
            "33554432",
            "--reserve-hugepages",
            "--seconds",
            "60",
        ]);
        let child =
            command.args(["--device", "emu0"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        // SAFETY: our own child, not waited for yet.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let output = child.wait_with_output().unwrap();
        let (code, text) = refusal(&output);
        assert_eq!(code, status, "{text}");
        assert!(text.contains("interrupted"), "{text}");
    }
    assert_eq!(huge_pages(), before);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = emulated().arg("list").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn huge_pages_of_a_run_that_was_killed_are_given_back_by_the_next() {
    let _alone = POOL.lock();
    let Some(before) = huge_pages() else { return };
    let arguments =
        ["compare", "hugepages", "--region", "33554432", "--reserve-hugepages", "--device", "emu0"];
    let mut command = emulated();
    command.args(arguments).args(["--speed", "1/64", "--seconds", "60"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = std::time::Instant::now();
    while huge_pages() == Some(before) && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let reserved = huge_pages().unwrap();
    let next = emulated()
        .args(arguments)
        .args(["--comparison", "1", "--seconds", "0.1", "--draws", "1"])
        .output()
        .unwrap();
    assert!(next.status.success());
    assert_eq!(huge_pages(), Some(before), "{reserved} after the kill");
    // Where the machine may not reserve pages, there was nothing to give back.
    if reserved > before {
        assert!(String::from_utf8_lossy(&next.stderr).contains("gave back"), "{next:?}");
    }
}
