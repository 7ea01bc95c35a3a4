//! Recording where it must not hurt: killed at any moment, on a disk that is full, for ever, and only when it matters.
//! Attaching probes needs root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::sample::{Call, Record};
use probe_user::trace::Reader;
use support::{RECORDER, Trace, compile, is_root};
use testkit::Held;

/// A program that registers without end, ended with the test.
struct Target {
    child: Held,
    folder: tempfile::TempDir,
}

impl Target {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = compile(folder.path(), "verbs.c", "libibverbs.so.1", &["-shared", "-fPIC"]);
        let user = compile(folder.path(), "user.c", "user", &["-pthread", "-ldl"]);
        let child =
            Command::new(user).args(["forever", "0"]).arg(library).stdout(Stdio::null()).spawn().unwrap();
        Self { child: Held(child), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn record(&self, output: &Path, options: &[&str]) -> Child {
        Command::new(RECORDER)
            .args(["record", "--no-kernel", "--quiet", "--pid", &self.child.id().to_string(), "--output"])
            .arg(output)
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn assert_unharmed(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "the target has ended");
    }
}

fn send(child: &Child, signal: i32) {
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(child.id().cast_signed(), signal) };
}

fn ended(recorder: Child) -> (Option<i32>, String) {
    let output = recorder.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Waits until a file is there and has something in it.
fn appears(path: &Path) {
    let until = Instant::now() + Duration::from_secs(60);
    while !std::fs::metadata(path).is_ok_and(|meta| meta.len() > 0) {
        assert!(Instant::now() < until, "'{}' does not appear", path.display());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn killed_at_any_moment_a_recording_reads_back_to_its_last_whole_line() {
    if !is_root() {
        return;
    }
    let mut target = Target::start();
    for round in 0..16_u64 {
        let path = target.path(if round % 2 == 0 { "trace" } else { "trace.zst" });
        let mut recorder = target.record(&path, &["--interval", "10ms"]);
        appears(&path);
        // From before anything is attached to well into the recording, at no round number.
        thread::sleep(Duration::from_millis(round * 97 % 1500 + round));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        let mut reader = match Reader::open(&path) {
            Ok(reader) => reader,
            // Not even the header had reached the disk.
            Err(error) => {
                assert!(error.to_string().contains("line 1"), "{error}");
                continue;
            }
        };
        let mut records = 0;
        for record in reader.by_ref() {
            record.unwrap_or_else(|error| panic!("round {round}: {error}"));
            records += 1;
        }
        assert!(records > 0 && reader.notes().no_footer, "round {round}: {:?}", reader.notes());
        std::fs::remove_file(&path).unwrap();
    }
    target.assert_unharmed();
}

/// A small file system of its own, gone with the test.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: &Path, options: &str) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).status().unwrap();
        assert!(done.success());
        Self(at.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_ends_the_recording_with_a_footer_and_leaves_the_target_alone() {
    if !is_root() {
        return;
    }
    let mut target = Target::start();
    let disk = Tmpfs::mount(&target.path("small"), "size=1m");
    let path = disk.0.join("trace");
    let (status, said) = ended(target.record(&path, &["--duration", "60s", "--interval", "10ms"]));
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("disk full"), "{said}");
    let trace = Trace::read(&path);
    assert_eq!(trace.footer.as_ref().unwrap().reason, "disk full");
    assert!(trace.events_of(Call::RegMr).count() > 100);
    target.assert_unharmed();
}

#[test]
fn a_folder_that_cannot_be_written_is_named_before_anything_is_attached() {
    if !is_root() {
        return;
    }
    let target = Target::start();
    let disk = Tmpfs::mount(&target.path("fixed"), "ro");
    let (status, said) = ended(target.record(&disk.0.join("trace"), &[]));
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("fixed/trace") && said.contains("Read-only file system"), "{said}");
}

#[test]
fn what_memory_holds_is_written_on_a_signal_and_on_nothing_else() {
    if !is_root() {
        return;
    }
    let mut target = Target::start();
    let path = target.path("kept.trace.zst");
    let first = target.path("kept.0001.trace.zst");
    let recorder =
        target.record(&path, &["--ring", "2s", "--on", "SIGUSR1", "--after", "500ms", "--interval", "200ms"]);
    thread::sleep(Duration::from_secs(6));
    assert!(!path.exists() && !first.exists());
    send(&recorder, libc::SIGUSR1);
    thread::sleep(Duration::from_secs(3));
    send(&recorder, libc::SIGTERM);
    let (status, said) = ended(recorder);
    assert_eq!(status, Some(0), "{said}");
    let trace = Trace::read(&first);
    assert_eq!(trace.footer.as_ref().unwrap().reason, "trigger SIGUSR1");
    assert!(trace.header.continued);
    let times: Vec<_> = trace
        .events_of(Call::RegMr)
        .filter(|event| event.t_ns + event.duration_ns > trace.header.t_ns)
        .map(|event| event.t_ns)
        .collect();
    let (from, to) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    assert!((1_000_000_000..4_000_000_000).contains(&(to - from)), "{} ms", (to - from) / 1_000_000);
    assert!(!target.path("kept.0002.trace.zst").exists());
    target.assert_unharmed();
}

#[test]
fn failed_registrations_fire_a_trigger_that_asks_for_them() {
    if !is_root() {
        return;
    }
    // The target fails two registrations in ten.
    let target = Target::start();
    let path = target.path("kept.trace");
    let first = target.path("kept.0001.trace");
    let recorder = target.record(
        &path,
        &[
            "--ring",
            "30s",
            "--on",
            "reg_failed>=2 and reg_rate>1/s",
            "--after",
            "100ms",
            "--interval",
            "200ms",
        ],
    );
    appears(&first);
    send(&recorder, libc::SIGTERM);
    let (status, said) = ended(recorder);
    assert_eq!(status, Some(0), "{said}");
    let reason = Trace::read(&first).footer.unwrap().reason;
    assert!(reason.starts_with("trigger reg_failed>=2 and reg_rate>1/s (reg_failed "), "{reason}");
    assert!(!target.path("kept.0002.trace").exists(), "once in thirty seconds is enough");
}

#[test]
fn a_rotated_recording_keeps_its_latest_files_and_each_reads_by_itself() {
    if !is_root() {
        return;
    }
    let target = Target::start();
    let path = target.path("run.trace");
    let recorder = target.record(&path, &["--rotate", "1s", "--keep", "2", "--interval", "200ms"]);
    appears(&target.path("run.0004.trace"));
    send(&recorder, libc::SIGTERM);
    let (status, said) = ended(recorder);
    assert_eq!(status, Some(0), "{said}");
    let mut left: Vec<_> = std::fs::read_dir(target.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("run."))
        .collect();
    left.sort();
    assert_eq!(left.len(), 2, "{left:?}");
    for file in &left {
        let records: Vec<_> = Reader::open(file).unwrap().map(Result::unwrap).collect();
        assert!(matches!(records.last(), Some(Record::Footer(_))));
        assert!(records.iter().any(|r| matches!(r, Record::Process(p) if p.comm == "user")), "{file:?}");
    }
}

#[test]
fn triggers_that_make_no_sense_are_answered_with_the_bad_piece() {
    for (trigger, piece) in
        [("reg_latency_p98>1ms", "reg_latency_p98"), ("lost>1parsec", "1parsec"), ("SIGKILL", "SIGKILL")]
    {
        let output =
            Command::new(RECORDER).args(["record", "--ring", "1m", "--on", trigger]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("'{piece}'")), "{said}");
    }
}
