//! What watching must not do to what is watched: its results stay right and its exit status its own, however often the
//! profiler comes, goes, and is killed. On the emulated device; attaching probes needs root.

mod data_path;
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use data_path::{
    Case, PLAIN, attach_to_running, can_run, check, check_one_after_the_other, check_posts, count,
    count_script_with, perftest, posts, rounds,
};
use support::compile;
use testkit::Held;

/// The emulated device, to be preloaded.
fn device() -> PathBuf {
    testkit::built("rnic-emu-preload", "librnic_emu.so")
}

/// A program that posts and checks what it does, in a loop until `stop` exists; says how often it went round.
fn posting_until(stop: &Path, program: &Path, how: &str) -> Child {
    let script = format!(
        "n=0; while [ ! -e {} ]; do {} {how} >/dev/null || exit 9; n=$((n+1)); done; echo $n; exit 7",
        stop.display(),
        program.display()
    );
    // What is done to it takes turns with it: without the nice, most of the time goes into the load.
    let mut shell = Command::new("nice");
    shell
        .args(["timeout", "-k", "5", "3000", "sh", "-c", &script])
        .env("LD_PRELOAD", device())
        .stdout(Stdio::piped());
    shell.spawn().expect("a shell")
}

/// Its exit status is its own, and every round of it went well.
fn ends_well(shell: Child, stop: &Path) -> u32 {
    std::fs::write(stop, "").expect("a file");
    let output = shell.wait_with_output().expect("its end");
    assert_eq!(output.status.code(), Some(7), "a program failed under watch");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

/// A perftest of ten seconds or so that is alone with its messages.
fn perftest_under_load(port: &str) -> (Held, Held) {
    let start = |peer: Option<&str>| {
        let mut command = Command::new("nice");
        command
            .args([
                "ib_send_bw",
                "-d",
                "emu0",
                "-p",
                port,
                "-s",
                "64",
                "-n",
                "5000",
                "--run_infinitely",
                "-D",
                "1",
            ])
            .args(peer);
        let command = command.env("LD_PRELOAD", device()).stdout(Stdio::null()).stderr(Stdio::null());
        Held(command.spawn().expect("perftest"))
    };
    let server = start(None);
    let listening = |port: &str| {
        let port = format!(":{:04X} ", port.parse::<u16>().expect("a port"));
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
        tables
            .iter()
            .flat_map(|table| table.lines())
            .any(|line| line.contains(&port) && line.contains(" 0A "))
    };
    while !listening(port) {
        thread::yield_now();
    }
    (start(Some("127.0.0.1")), server)
}

#[test]
fn profilers_that_come_and_go_and_are_killed_leave_programs_under_load_as_they_were() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = posts(folder.path());
    let stops = ["classic", "extended"].map(|how| folder.path().join(how));
    let shells = ["classic 3", "extended 3 fork"].map(|how| {
        let stop = &stops[usize::from(how.starts_with('e'))];
        posting_until(stop, &program, how)
    });
    let (mut client, _server) = perftest_under_load("19701");
    let pids: Vec<u32> = shells.iter().map(Child::id).chain([client.0.id()]).collect();
    // At each target one after the other, at all of them at once: most of a round is waiting for the kernel.
    let (next, all) = (AtomicU32::new(0), rounds(6));
    thread::scope(|scope| {
        for pid in pids {
            let (next, folder) = (&next, folder.path());
            scope.spawn(move || {
                loop {
                    let round = next.fetch_add(1, Relaxed);
                    if round >= all {
                        break;
                    }
                    // Some are killed at once, some detach in good order, and some while they look.
                    let signal = [libc::SIGKILL, libc::SIGINT, libc::SIGTERM][round as usize % 3];
                    count(pid, folder).end(signal);
                    if round % 50 == 49 {
                        println!("{} rounds", round + 1);
                    }
                }
            });
        }
    });
    assert!(client.0.try_wait().expect("a status").is_none(), "perftest has ended");
    for (shell, stop) in shells.into_iter().zip(&stops) {
        assert!(ends_well(shell, stop) > 0);
    }
}

#[test]
fn targets_that_are_killed_end_by_that_signal_and_the_profiler_goes_on() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    // Killed at moments that differ: while it loads, posts, or has ended.
    let script = "for i in $(seq 20); do $0 classic 40 >/dev/null & p=$!; sleep 0.0$i; kill -9 $p; wait $p; \
                  s=$?; [ $s = 137 ] || [ $s = 0 ] || exit 9; done 2>/dev/null; $0 classic 3; exit 7";
    let record = Command::new("timeout")
        .args(["-k", "5", "250", data_path::PROBE, "record", "--quiet", "--output"])
        .arg(&trace)
        .args(["--", "sh", "-c", script])
        .arg(posts(folder.path()))
        .env("LD_PRELOAD", device())
        .output()
        .expect("it runs");
    assert_eq!(record.status.code(), Some(7), "{}", String::from_utf8_lossy(&record.stderr));
    assert!(
        String::from_utf8_lossy(&record.stdout).contains("\"post_calls\""),
        "the last one did not finish"
    );
}

#[test]
fn a_hundred_processes_at_once_and_what_they_become_by_exec_are_counted_each() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = posts(folder.path()).display().to_string();
    // Each is a shell that becomes the program.
    let script = format!("for i in $(seq 100); do sh -c 'exec {program} classic 2' & done; wait");
    let told = count_script_with(&script, &[("LD_PRELOAD", &device())]);
    check_posts(&told, 100, &["aborted"]);
}

#[test]
fn a_library_that_is_opened_and_closed_over_and_over_is_counted_on_and_each_queue_pair_by_itself() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "comes_and_goes.c", "comes_and_goes", &[]);
    // The emulated device holds on to the library.
    let arguments = ["libibverbs.so.1", &rounds(20).to_string(), "stays"];
    let device = device();
    let told = attach_to_running(&program, &arguments, &[("LD_PRELOAD", device.to_str().expect("a path"))]);
    check_one_after_the_other(&told);
}

#[test]
fn two_thousand_queue_pairs_are_counted_to_the_last_request() {
    if !can_run() {
        return;
    }
    let case = Case { qps: 2000, iterations: 5, moderation: 1, ..PLAIN };
    // What the shell has loaded is probed before its first command.
    let script = perftest(&[case], "", "-t 1", "127.0.0.1", 19_710);
    let told = count_script_with(&script, &[("LD_PRELOAD", &device())]);
    check(&[case], &told, false);
}
