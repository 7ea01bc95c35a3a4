//! What the tests of recordings share: running the recorder, and reading what it wrote.
#![allow(dead_code, reason = "each test program uses its own part")]

pub mod announced;
pub mod steady;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use probe_user::sample::{Call, CallCount, Event, Footer, Header, Process, ProcessId, ProcessSample, Record};
use probe_user::trace::Reader;

/// The recorder under test.
pub const RECORDER: &str = env!("CARGO_BIN_EXE_rdma-probe");

/// Every recording ends within this, or has hung.
const LIMIT_SECONDS: &str = "400";

/// A trace, read.
#[derive(Debug, Default)]
pub struct Trace {
    pub header: Header,
    pub processes: BTreeMap<ProcessId, Process>,
    pub last: BTreeMap<ProcessId, ProcessSample>,
    pub events: Vec<Event>,
    pub probes: Vec<probe_user::sample::Probe>,
    pub footer: Option<Footer>,
}

impl Trace {
    pub fn read(path: &Path) -> Self {
        let mut trace = Self::default();
        for record in Reader::open(path).expect("a trace") {
            match record.expect("a record") {
                Record::Header(header) => trace.header = header,
                Record::Process(process) => {
                    trace.processes.insert(process.id, process);
                }
                Record::Sample(sample) => sample.processes.into_iter().for_each(|of| trace.take(of)),
                Record::Event(event) => trace.events.push(event),
                Record::Probe(probe) => trace.probes.push(probe),
                Record::Footer(footer) => trace.footer = Some(footer),
                _ => {}
            }
        }
        trace
    }

    /// A sample tells what changed: calls are in it only where there were some since the one before.
    fn take(&mut self, mut sample: ProcessSample) {
        if let Some(before) = self.last.remove(&sample.id).filter(|_| sample.calls.is_empty()) {
            (sample.calls, sample.latency_ns) = (before.calls, before.latency_ns);
        }
        self.last.insert(sample.id, sample);
    }

    /// Counts of a call in one process.
    pub fn of(&self, id: ProcessId, call: Call) -> CallCount {
        self.last.get(&id).and_then(|sample| sample.calls.get(&call)).copied().unwrap_or_default()
    }

    /// Counts of a call over all processes.
    pub fn total(&self, call: Call) -> CallCount {
        let mut total = CallCount::default();
        for sample in self.last.values() {
            let Some(count) = sample.calls.get(&call) else { continue };
            total.entered += count.entered;
            total.returned += count.returned;
            total.failed += count.failed;
            total.bytes += count.bytes;
            total.total_ns += count.total_ns;
        }
        total
    }

    /// Events of a call.
    pub fn events_of(&self, call: Call) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.call == call)
    }

    /// Nothing was lost, and the recording was closed.
    pub fn assert_whole(&self) {
        let footer = self.footer.as_ref().expect("a footer");
        assert_eq!(footer.lost, Default::default(), "{footer:?}");
    }
}

/// What came of a recording.
#[derive(Debug)]
pub struct Recording {
    pub trace: Trace,
    pub output: Output,
}

impl Recording {
    /// What the command printed.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).trim().to_owned()
    }
}

/// Records a command.
pub fn record(options: &[&str], command: &[&str]) -> Recording {
    record_searching(None, options, command)
}

/// Records a command with a folder in the search path for libraries: the recorder then knows them beforehand.
pub fn record_searching(search: Option<&Path>, options: &[&str], command: &[&str]) -> Recording {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    let output = Command::new("timeout")
        .args(["-k", "5", LIMIT_SECONDS, RECORDER, "record", "--quiet", "--output"])
        .arg(&path)
        .args(options)
        .arg("--")
        .args(command)
        .envs(search.map(|folder| ("LD_LIBRARY_PATH", folder)))
        .output()
        .expect("the recorder runs");
    Recording { trace: Trace::read(&path), output }
}

/// True as root; else says why the test does nothing.
pub fn is_root() -> bool {
    // SAFETY: the call has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: attaching probes needs root");
    }
    root
}

/// Compiles a program of `tests/programs` into a folder.
pub fn compile(folder: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let target = folder.join(name);
    let compiler = if source.ends_with(".cc") { "c++" } else { "cc" };
    let status = Command::new(compiler)
        .args(["-O2", "-g0", "-o"])
        .arg(&target)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source))
        .args(flags)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "{source} does not compile");
    target
}
