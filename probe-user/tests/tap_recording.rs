//! Recordings with the preloaded tap, of stock perftest on the emulated device: exact counts of posts and polls, of
//! children too, without any privilege.

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use probe_user::model::Model;
use probe_user::pairing::{Paired, Pairing, Unpaired};
use probe_user::replay::{Window, replay};
use probe_user::report::{Filter, Process, Report, build};
use probe_user::sample::{Opcode, PostedTo};
use probe_user::trace::Reader;
use serde_json::Value;
use support::{RECORDER, is_root};

struct Setting {
    folder: tempfile::TempDir,
    tap: PathBuf,
    device: PathBuf,
}

impl Setting {
    fn new() -> Self {
        let (tap, device) = (
            testkit::built("verbs-tap", "libverbs_tap.so"),
            testkit::built("rnic-emu-preload", "librnic_emu.so"),
        );
        Self { folder: tempfile::tempdir().expect("a folder"), tap, device }
    }

    fn trace(&self) -> PathBuf {
        self.folder.path().join("trace")
    }

    /// Records a shell script, without any capability: what a user without privilege has.
    fn record(&self, options: &[&str], script: &str) -> Output {
        let output = Command::new("timeout")
            .args(["-k", "5", "200", "setpriv", "--bounding-set=-all", "--inh-caps=-all"])
            .args([RECORDER, "record", "--quiet", "--tap", "--tap-library"])
            .arg(&self.tap)
            .arg("--output")
            .arg(self.trace())
            .args(options)
            .args(["--", "env"])
            .arg(format!("LD_PRELOAD={}", self.device.display()))
            .args(["sh", "-c", script])
            .output()
            .expect("the recorder runs");
        assert!(self.trace().exists(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn model(&self) -> Model {
        replay(Reader::open(&self.trace()).expect("a trace"), Window::default()).expect("its records")
    }

    fn report(&self) -> Report {
        build(&self.model(), None, &Filter::default())
    }
}

/// Server in the background, client when it listens.
fn both(tool: &str, arguments: &str, port: u16) -> String {
    format!(
        "{tool} {arguments} -p {port} >/dev/null 2>&1 &
         until grep -q ':{port:04X} ' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done
         {tool} {arguments} -p {port} 127.0.0.1 >/dev/null 2>&1
         wait; exit 7"
    )
}

fn busiest(report: &Report) -> &Process {
    report.processes.iter().max_by_key(|p| p.data_path.posts.wrs).expect("a process")
}

#[test]
fn every_post_and_poll_of_a_commands_children_is_counted_without_privilege() {
    let setting = Setting::new();
    let output = setting.record(&[], &both("ib_write_bw", "-n 1000 -s 64 -l 10", 19_310));
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no probe could be attached") && said.contains("counted by the tap"), "{said}");

    let report = setting.report();
    assert_eq!((report.lost.total, report.trace.exit_status), (0, Some(7)));
    assert!(report.devices.iter().any(|d| d.emulated && d.driver == "rnic-emu"), "{:?}", report.devices);
    let tool = report.processes.iter().filter(|p| p.comm == "ib_write_bw").count();
    assert_eq!(tool, 2, "server and client");
    let client = busiest(&report);
    let (posts, polls) = (&client.data_path.posts, &client.data_path.polls);
    let figures = [posts.post_calls, posts.wrs, posts.signaled, posts.bytes, posts.longest_unsignaled];
    assert_eq!(figures, [100, 1000, 100, 64_000, 9].map(Some));
    assert_eq!((polls.cqes, polls.cqe_errors), (Some(100), Some(0)));
    assert_eq!(posts.opcodes, [("rdma_write".to_owned(), 1000)].into());
    assert_eq!((client.data_path.uncounted, &client.data_path.unavailable), (Some(0), &None));
    assert!(client.registration.calls.unavailable.is_some(), "no probe was there to see it");
    let of_qps: u64 = client.queues.qps.iter().filter_map(|qp| qp.data_path.as_ref()?.posts.wrs).sum();
    assert_eq!(of_qps, 1000);
    assert!(client.queues.qps.iter().all(|qp| qp.gone), "perftest destroys what it makes");
}

#[test]
fn frequent_samples_add_up_to_the_same_and_each_tells_only_what_changed() {
    let setting = Setting::new();
    setting.record(&["--interval", "10ms"], &both("ib_send_bw", "-n 20000 -s 256 -q 4", 19_320));
    let client_wrs = busiest(&setting.report()).data_path.posts.wrs;
    assert_eq!(client_wrs, Some(80_000));
    let received: u64 = setting.report().processes.iter().filter_map(|p| p.data_path.posts.recv_posted).sum();
    assert!(received >= 80_000, "{received}");
    let model = setting.model();
    for process in model.processes.values().filter(|p| p.data_path.is_observed()) {
        let path = &process.data_path;
        let of_queues: u64 = path.queues().map(|queue| queue.tally.counts().wrs).sum();
        assert_eq!(of_queues, path.totals.counts().wrs);
    }
}

#[test]
fn a_command_that_uses_no_device_says_why_there_is_nothing() {
    let setting = Setting::new();
    setting.record(&[], "true");
    let model = setting.model();
    let whys: Vec<_> = model.processes.values().map(|p| p.data_path.observed.why.as_str()).collect();
    assert!(whys.iter().all(|why| why.contains("opened no RDMA device")), "{whys:?}");
}

#[test]
fn a_trace_made_under_sudo_belongs_to_its_user_and_to_nobody_else() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    let output = Command::new(RECORDER)
        .args(["record", "--quiet", "--no-kernel", "--as-root", "--output"])
        .arg(&path)
        .args(["--", "true"])
        .envs([("SUDO_UID", "65534"), ("SUDO_GID", "65533")])
        .output()
        .expect("the recorder runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = path.metadata().expect("a trace");
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (65_534, 65_533, 0o600));
}

#[test]
fn a_file_size_limit_too_small_for_a_trace_is_said_before_the_command_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, mark) = (folder.path().join("trace"), folder.path().join("mark"));
    let script = format!(
        "ulimit -f 600; exec {RECORDER} record --no-kernel --output {} -- touch {}",
        path.display(),
        mark.display()
    );
    let output =
        Command::new("timeout").args(["60", "sh", "-c", &script]).output().expect("the recorder runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ulimit -f") && !mark.exists(), "{said}");
}

#[test]
fn a_recording_ends_with_the_findings_of_its_doctor() {
    let setting = Setting::new();
    // Every request signalled, many of them under way: what there is to find.
    setting.record(&[], &both("ib_write_bw", "-n 20000 -s 64 -Q 1", 18_731));
    let doctor =
        Command::new(RECORDER).args(["doctor", "--json"]).arg(setting.trace()).output().expect("doctor runs");
    let told: Value = serde_json::from_slice(&doctor.stdout).expect("a document");
    let lines = std::fs::read_to_string(setting.trace()).expect("a trace");
    let mut records: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(records.pop().expect("records")["kind"], "footer");
    let mut written: Vec<Value> = Vec::new();
    for mut record in records.into_iter().filter(|record| record["kind"] == "finding") {
        record.as_object_mut().expect("an object").remove("kind");
        written.push(record);
    }
    assert!(written.iter().any(|finding| finding["id"] == "everything-signalled"), "{written:#?}");
    assert_eq!(Value::from(written), told["findings"]);
}

/// What became of every work request.
fn paired(setting: &Setting) -> (Vec<Paired>, Unpaired) {
    let (mut pairing, mut all) = (Pairing::default(), Vec::new());
    let records = Reader::open(&setting.trace()).expect("a trace");
    for record in records {
        pairing.take(&record.expect("a record"), |one| all.push(one));
    }
    let unpaired = pairing.unpaired();
    pairing.finish(|one| all.push(one));
    (all, unpaired)
}

/// Each work request is told, with what perftest's arguments say of it, and finds its completion; the classic API, and
/// the extended one that a model perftest knows makes it use.
#[test]
fn every_single_work_request_is_told_and_finds_its_completion() {
    for (part_id, inline, port) in [("", false, 19_330), ("RNIC_EMU_PART_ID=4119 ", true, 19_332)] {
        let setting = Setting::new();
        let script = both("ib_send_bw", "-n 2000 -s 64 -Q 5 -q 2 -I 64", port);
        let output = setting.record(&["--messages"], &format!("export X=1 {part_id}\n{script}"));
        assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
        let (all, unpaired) = paired(&setting);
        assert_eq!(unpaired, Unpaired::default());
        let sends: Vec<_> = all.iter().filter(|one| one.queue == PostedTo::Send).collect();
        let alike = sends.iter().filter(|one| {
            one.wr.opcode == Some(Opcode::Send) && one.wr.bytes == 64 && one.wr.inline == inline
        });
        assert_eq!((sends.len(), alike.count()), (4000, 4000), "{part_id}");
        assert_eq!(sends.iter().filter(|one| one.wr.signalled).count(), 800, "{part_id}");
        let reaped: Vec<_> = sends.iter().filter_map(|one| one.reaped).collect();
        assert_eq!((reaped.len(), reaped.iter().filter(|r| r.own).count()), (4000, 800), "{part_id}");
        assert!(reaped.iter().all(|r| r.status == 0), "{part_id}");
        assert!(sends.iter().all(|one| one.reaped.is_some_and(|r| r.poll_ns >= one.posted_ns)));
        let received = all.iter().filter(|one| one.queue == PostedTo::Receive && one.reaped.is_some());
        let received: Vec<_> = received.filter_map(|one| one.reaped?.bytes).collect();
        assert_eq!((received.len(), received.iter().all(|bytes| *bytes == 64)), (4000, true), "{part_id}");
        let report = setting.report();
        let client = busiest(&report).messages.as_ref().expect("its requests");
        assert_eq!((client.sends, client.failed, client.missing), (4000, 0, 0));
    }
}

/// A log far too small for what is written to it: what is missing is counted, the program and its counts are not
/// touched, and nothing is paired that does not belong together.
#[test]
fn what_a_log_cannot_hold_is_counted_as_missing() {
    let setting = Setting::new();
    let script = both("ib_write_bw", "-n 50000 -s 8 -l 50", 19_340);
    let output = setting.record(&["--messages"], &format!("export VERBS_TAP_MESSAGES=64\n{script}"));
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let report = setting.report();
    let client = busiest(&report);
    assert_eq!((client.data_path.posts.wrs, client.data_path.polls.cqes), (Some(50_000), Some(1000)));
    let messages = client.messages.as_ref().expect("some of its requests");
    assert!(messages.missing > 0 && messages.sends < 50_000, "{messages:?}");
    // Entries are the requests, the completions, and one for each call that has any.
    let entries = 50_000 + 1000 + 1000 + 1000;
    assert!(messages.sends + messages.missing <= entries, "{messages:?}");
}
