//! What `rdma-probe record` counts of a program, against what the device counted of the same run: equal, to the last one.

#[path = "../kit/mod.rs"]
mod kit;

use emu::stats::{self, CqCounter, ProcessCounter, QpCounter, Snapshot};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Figures of the report and the device's counters of the same thing.
type Pairs = Vec<(&'static str, u64)>;

/// True where a program can be probed; else says why the test does nothing.
fn can_run() -> bool {
    // SAFETY: the call has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let probes = Path::new("/sys/bus/event_source/devices/uprobe/type").exists();
    let python = Command::new("/usr/bin/python3").args(["-c", "import pyverbs.qp"]).output();
    let pyverbs = python.is_ok_and(|o| o.status.success());
    for (there, missing) in [
        (root, "attaching probes needs root"),
        (probes, "this kernel has no user probes"),
        (pyverbs, "python3-pyverbs is not installed"),
    ] {
        if !there {
            eprintln!("skipped: {missing}");
            return false;
        }
    }
    true
}

/// Runs the program under `rdma-probe record`. Returns the report and the device's counters at the program's end.
fn recorded(name: &str, options: &[&str]) -> (Value, Snapshot) {
    let probe = testkit::built("probe-user", "rdma-probe");
    let folder = std::env::temp_dir().join(format!("rnic-emu-recorded-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let trace = folder.join("trace");
    let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
    preload.push(kit::library());
    let mut record = Command::new(&probe)
        .args(["record", "--quiet", "--no-kernel", "--output"])
        .arg(&trace)
        .args(options)
        .args(["--", "env"])
        .arg(preload)
        .arg("/usr/bin/python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/program.py"))
        .arg(&folder)
        .stdin(Stdio::null())
        .spawn()
        .expect("rdma-probe starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    let pid: u32 = loop {
        if let Ok(text) = std::fs::read_to_string(folder.join("ready")) {
            break text.parse().expect("a process number");
        }
        let ended = record.try_wait().expect("own child");
        assert!(ended.is_none(), "the recording ended early: {ended:?}");
        assert!(Instant::now() < deadline, "the program never came to its end");
        std::thread::sleep(Duration::from_millis(20));
    };
    let counts = stats::read(pid).expect("the program's counters");
    std::fs::write(folder.join("go"), "").expect("writable");
    let status = record.wait().expect("own child");
    assert!(status.success(), "rdma-probe record: {status}");
    let report = Command::new(&probe).arg("report").arg(&trace).arg("--json").output().expect("it runs");
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    std::fs::remove_dir_all(&folder).expect("our own folder");
    assert_eq!(report["lost"]["total"], 0, "nothing was lost");
    let process = report["processes"].as_array().and_then(|all| all.iter().find(|p| p["pid"] == pid));
    (process.expect("the program is in the report").clone(), counts)
}

fn compare(report: &Value, pairs: Pairs) {
    for (path, counted) in pairs {
        assert_eq!(report.pointer(path), Some(&Value::from(counted)), "{path}");
    }
}

/// Calls on the control path, and how many objects of each kind there are.
fn control_path(counts: &Snapshot) -> Pairs {
    let of = |c| counts.process(c);
    vec![
        ("/registration/count", of(ProcessCounter::MrsRegistered)),
        ("/registration/bytes", of(ProcessCounter::MrBytes)),
        ("/deregistration/count", of(ProcessCounter::MrsDeregistered)),
        ("/queues/qp_created", of(ProcessCounter::QpsCreated)),
        ("/queues/cq_created", of(ProcessCounter::CqsCreated)),
        ("/objects/pd_created", of(ProcessCounter::PdsAllocated)),
        ("/objects/device_opened", of(ProcessCounter::ContextsOpened)),
    ]
}

/// Posts and polls.
fn data_path(counts: &Snapshot) -> Pairs {
    let (qp, cq) = (|c| counts.qp_total(c), |c| counts.cq_total(c));
    vec![
        ("/data_path/post_calls", qp(QpCounter::SendCalls)),
        ("/data_path/wrs", qp(QpCounter::SendWrs)),
        ("/data_path/signaled", qp(QpCounter::Signalled)),
        ("/data_path/bytes", qp(QpCounter::SendBytes)),
        ("/data_path/sges", qp(QpCounter::SendSges)),
        ("/data_path/recv_calls", qp(QpCounter::RecvCalls)),
        ("/data_path/recv_posted", qp(QpCounter::RecvWrs)),
        ("/data_path/polls", cq(CqCounter::PollCalls)),
        ("/data_path/empty_polls", cq(CqCounter::EmptyPolls)),
        ("/data_path/cqes", cq(CqCounter::Polled)),
    ]
}

#[test]
fn the_control_path_is_recorded_to_the_last_call() {
    if !can_run() {
        return;
    }
    let (report, counts) = recorded("control", &[]);
    assert_eq!(counts.process(ProcessCounter::MrsRegistered), 22, "as the program says");
    compare(&report, control_path(&counts));
}

#[test]
fn posts_and_polls_are_recorded_to_the_last_one() {
    if !can_run() {
        return;
    }
    let probe: PathBuf = testkit::built("probe-user", "rdma-probe");
    let help = Command::new(probe).args(["record", "--help"]).output().expect("it runs");
    if !String::from_utf8_lossy(&help.stdout).contains("--data-path") {
        return eprintln!("skipped: this rdma-probe records no posts and polls yet");
    }
    let (report, counts) = recorded("data", &["--data-path", "full"]);
    assert_eq!(counts.qp_total(QpCounter::SendWrs), 400, "as the program says");
    compare(&report, control_path(&counts));
    compare(&report, data_path(&counts));
}
