//! Recordings of programs on this machine, with a library that exports verbs but needs no device: exact counts, and
//! that nobody notices. They attach probes, so they need root.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::sample::{Call, Verdict};
use support::{RECORDER, Trace, compile, is_root, record, record_searching};
use testkit::Held;

struct Programs {
    folder: tempfile::TempDir,
    library: PathBuf,
    user: PathBuf,
}

fn programs() -> Programs {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = ["-shared", "-fPIC", "-fexceptions", "-fasynchronous-unwind-tables"];
    let library = compile(folder.path(), "verbs.c", "libibverbs.so.1", &flags);
    let user = compile(folder.path(), "user.c", "user", &["-pthread", "-ldl"]);
    Programs { folder, library, user }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Records a running process.
fn recorder(pid: &str, path: &Path) -> Held {
    let arguments = ["record", "--quiet", "--pid", pid, "--output", text(path)];
    Held(Command::new(RECORDER).args(arguments).spawn().expect("the recorder"))
}

impl Programs {
    /// Registers until it is ended.
    fn forever(&self) -> Held {
        let mut user = Command::new(&self.user);
        user.args(["forever", "0"]).arg(&self.library).stdout(Stdio::null());
        Held(user.spawn().expect("the program"))
    }

    /// Records `user WHAT N`, with the library in the search path: what is in there is attached to beforehand.
    fn record(&self, what: &str, n: &str) -> support::Recording {
        let (user, library) = (text(&self.user), text(&self.library));
        record_searching(Some(self.folder.path()), &[], &[user, what, n, library])
    }
}

#[test]
fn counts_bytes_and_errnos_are_exact() {
    if !is_root() {
        return;
    }
    let done = programs().record("regions", "1000");
    assert_eq!(done.output.status.code(), Some(3), "{}", String::from_utf8_lossy(&done.output.stderr));
    assert_eq!(done.stdout(), "800 200");
    let trace = done.trace;
    trace.assert_whole();
    let registrations = trace.total(Call::RegMr);
    assert_eq!((registrations.entered, registrations.returned, registrations.failed), (1000, 1000, 200));
    // i mod 10 is 3 or 7 in the failures; of the others, each ten have (1+2+3+5)+(1+2+4+5) pages.
    assert_eq!(registrations.bytes, 100 * 4096 * (11 + 12));
    assert_eq!(trace.total(Call::DeregMr).entered, 800);
    assert_eq!(trace.total(Call::DeregMr).bytes, registrations.bytes);
    let of_errno = |errno| trace.events_of(Call::RegMr).filter(|event| event.errno == errno).count();
    assert_eq!((of_errno(libc::ENOMEM), of_errno(libc::EFAULT), of_errno(0)), (100, 100, 800));
    assert_eq!(trace.footer.unwrap().exit_status, Some(3));
}

#[test]
fn a_file_size_limit_ends_the_recording_with_a_footer_and_not_the_command() {
    if !is_root() {
        return;
    }
    let programs = programs();
    let path = programs.folder.path().join("trace");
    let (user, library) = (text(&programs.user), text(&programs.library));
    // 2,048 blocks of 512 bytes; the events of ten thousand registrations take more than twice as much.
    let script = format!(
        "ulimit -f 2048; exec {RECORDER} record --quiet --no-kernel --output {} -- {user} regions 10000 {library}",
        path.display()
    );
    let output =
        Command::new("timeout").args(["100", "sh", "-c", &script]).output().expect("the recorder runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "8000 2000", "{said}");
    assert_eq!(
        Trace::read(&path).footer.map(|footer| footer.reason),
        Some("size limit".to_owned()),
        "{said}"
    );
    assert!(path.metadata().expect("a trace").len() <= 1 << 20);
}

#[test]
fn two_hundred_threads_at_once_lose_nothing() {
    if !is_root() {
        return;
    }
    let done = programs().record("threads", "50");
    assert_eq!(done.stdout(), "8000 2000");
    done.trace.assert_whole();
    let registrations = done.trace.total(Call::RegMr);
    assert_eq!((registrations.entered, registrations.returned, registrations.failed), (10_000, 10_000, 2000));
    assert_eq!(done.trace.events_of(Call::RegMr).count(), 10_000);
}

#[test]
fn five_hundred_short_lived_processes_are_all_seen() {
    if !is_root() {
        return;
    }
    let done = programs().record("processes", "500");
    done.trace.assert_whole();
    let registrations = done.trace.total(Call::RegMr);
    assert_eq!((registrations.entered, registrations.returned, registrations.failed), (5000, 5000, 1000));
    let each = done.trace.last.values().filter(|sample| sample.calls.contains_key(&Call::RegMr));
    assert_eq!(each.count(), 500);
    let named = done.trace.processes.values().filter(|process| process.comm == "user").count();
    assert_eq!(named, 501, "every child keeps its name");
}

#[test]
fn calls_left_by_longjmp_do_not_disturb_those_after_them() {
    if !is_root() {
        return;
    }
    let done = programs().record("jumps", "70");
    assert_eq!(done.output.status.code(), Some(3));
    done.trace.assert_whole();
    let waits = done.trace.total(Call::GetCqEvent);
    assert_eq!((waits.entered, waits.returned), (70, 0));
    let registrations = done.trace.total(Call::RegMr);
    assert_eq!((registrations.entered, registrations.returned), (70, 70));
}

#[test]
fn cancelling_a_thread_inside_a_call_unwinds_its_callers() {
    if !is_root() {
        return;
    }
    let done = programs();
    let cancel = compile(done.folder.path(), "cancel.cc", "cancel", &["-pthread", "-ldl"]);
    let library = done.library.to_str().unwrap();
    let search = Some(done.folder.path());
    let done = record_searching(search, &[], &[cancel.to_str().unwrap(), library]);
    assert_eq!(done.stdout(), "20 20 20", "cancelled, destroyed, cleaned up");
    assert_eq!(done.trace.total(Call::GetCqEvent).entered, 20);
}

#[test]
fn a_library_opened_late_is_found() {
    if !is_root() {
        return;
    }
    let done = programs();
    let (user, library) = (done.user.to_str().unwrap(), done.library.to_str().unwrap());
    let elsewhere = done.folder.path().join("late.so");
    std::fs::copy(library, &elsewhere).unwrap();
    let library = elsewhere.to_str().unwrap();
    let done = record(&[], &[user, "late", "100", library]);
    assert_eq!(done.trace.total(Call::RegMr).entered, 100);
    let probe = done.trace.probes.iter().find(|probe| probe.place.starts_with(library)).expect("attached");
    assert_eq!(probe.verdict, Verdict::Live);
    assert!(probe.late_ns.is_some(), "it was mapped before it could be known");
}

#[test]
fn a_killed_command_gives_its_status_and_a_whole_trace() {
    if !is_root() {
        return;
    }
    let done = programs().record("killed", "0");
    assert_eq!(done.output.status.code(), Some(128 + libc::SIGKILL));
    done.trace.assert_whole();
    assert_eq!(done.trace.total(Call::RegMr).entered, 10);
    assert_eq!(done.trace.footer.unwrap().exit_status, Some(128 + libc::SIGKILL));
}

#[test]
fn a_time_limit_ends_the_command_and_says_so() {
    if !is_root() {
        return;
    }
    let began = Instant::now();
    let done = record(&["--duration", "1s"], &["sleep", "100"]);
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(done.output.status.code(), Some(124));
    assert_eq!(done.trace.footer.unwrap().reason, "duration");
    // A command that ends by itself keeps its own status.
    let done = record(&["--duration", "100s"], &["sh", "-c", "exit 5"]);
    assert_eq!(done.output.status.code(), Some(5));
}

#[test]
fn a_running_process_is_joined_and_left_running() {
    if !is_root() {
        return;
    }
    let done = programs();
    let mut user = done.forever();
    thread::sleep(Duration::from_millis(300));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let pid = user.id().to_string();
    let mut recorder = recorder(&pid, &path);
    thread::sleep(Duration::from_secs(4));
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(recorder.id().cast_signed(), libc::SIGTERM) };
    let status = recorder.wait().unwrap();
    let alive = user.try_wait().unwrap().is_none();
    assert_eq!(status.code(), Some(0));
    assert!(alive, "the target must not notice");
    let trace = Trace::read(&path);
    trace.assert_whole();
    assert_eq!(trace.footer.as_ref().unwrap().reason, "interrupted");
    let registrations = trace.total(Call::RegMr);
    assert!(registrations.entered > 20, "{registrations:?}");
    // A call may be in progress at the moment of attaching or detaching.
    assert!(registrations.entered.abs_diff(registrations.returned) <= 1, "{registrations:?}");
}

#[test]
fn a_recorder_killed_outright_leaves_the_target_running_and_nothing_attached() {
    if !is_root() {
        return;
    }
    let done = programs();
    let mut user = done.forever();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let pid = user.id().to_string();
    let mut recorder = recorder(&pid, &path);
    thread::sleep(Duration::from_secs(4));
    let while_recording = programs_of_ours();
    let _ = recorder.kill();
    let _ = recorder.wait();
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut left = programs_of_ours();
    // Other recordings may be going on; ours has gone when there are fewer.
    while left >= while_recording && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
        left = programs_of_ours();
    }
    thread::sleep(Duration::from_millis(200));
    let alive = user.try_wait().unwrap().is_none();
    assert!(while_recording > 0, "the recorder had attached");
    assert!(left < while_recording, "{left} programs are still loaded");
    assert!(alive);
    // What had been written until then can be read.
    let trace = Trace::read(&path);
    assert!(trace.footer.is_none());
    assert!(trace.total(Call::RegMr).entered > 0);
}

/// BPF programs of the recorder's that are loaded now.
fn programs_of_ours() -> usize {
    let loaded = aya::programs::loaded_programs().filter_map(Result::ok);
    loaded.filter(|program| program.name_as_str() == Some("library_enter")).count()
}

#[test]
fn wrong_arguments_are_answered_with_the_bad_value() {
    for (arguments, part) in [
        (&["record", "--pid", "4000000000"][..], "'4000000000'"),
        (&["record", "--duration", "5x", "--", "true"][..], "5x"),
        (&["record", "--interval", "1ms", "--", "true"][..], "1ms"),
    ] {
        let output = Command::new(RECORDER).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(part), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t");
    let output = Command::new(RECORDER)
        .args(["record", "-q", "-o", trace.to_str().unwrap(), "--", "/nonexistent/program"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("'/nonexistent/program'"));
}
