//! `rdma-workload` as a child: its list, and one comparison at a time.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Shared;
use super::collector::{ask_to_end, program};
use crate::app::workload::{Board, Comparison, Listing, Running, Workload};

/// Longest answer read: a list or one comparison has a few ten thousand bytes.
const MAX_ANSWER: u64 = 16 << 20;

/// Most that is read of what it says while it runs: a few lines a second.
const MAX_SAID: u64 = 64 << 20;

const MISSING: &str =
    "cannot find 'rdma-workload' beside this program or in PATH: build it with `cargo build -p workloads`";

/// The workloads of this machine.
#[derive(Debug, Clone)]
pub struct Workloads {
    shared: Shared,
    child: Arc<Mutex<Option<u32>>>,
}

impl Workloads {
    /// Asks for the list, on a thread of its own.
    pub fn start(shared: Shared) -> Self {
        let workloads = Self::idle(shared);
        let asking = workloads.clone();
        let started = thread::Builder::new().name("workloads".to_owned()).spawn(move || asking.ask());
        if let Err(error) = started {
            workloads.change(|board| board.listing = Listing::Unavailable(error.to_string()));
        }
        workloads
    }

    /// The workloads, nothing asked yet.
    pub fn idle(shared: Shared) -> Self {
        Self { shared, child: Arc::default() }
    }

    /// Asks for the list and waits for it.
    pub fn ask(&self) {
        let (listing, list) = match list() {
            Ok(list) => (Listing::Known, list),
            Err(why) => (Listing::Unavailable(why), Vec::new()),
        };
        self.change(|board| (board.listing, board.list) = (listing, list));
    }

    fn change(&self, change: impl FnOnce(&mut Board)) {
        self.shared.change(|world| change(&mut world.workloads));
    }

    /// Compares baseline and optimised variant of one workload; progress and result go to the board.
    pub fn run(&self, name: String) {
        let mut arguments = vec!["compare", &name, "--json", "--progress=json"];
        // Without privilege the probes see nothing.
        if is_root() {
            arguments.push("--probe");
        }
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        self.begin(name, arguments, |board, name, answer| {
            board.results.insert(name, answer.and_then(|answer| parse(&answer)));
        });
    }

    /// Measures one workload's variants over its parameter.
    pub fn sweep(&self, name: String) {
        let arguments = ["run", &name, "--json", "--progress=json"].map(str::to_owned).into();
        self.begin(name, arguments, |board, name, answer| {
            let sweep = answer.and_then(|answer| serde_json::from_str(&answer).map_err(not_understood));
            board.sweeps.insert(name, sweep);
        });
    }

    /// Runs the program on a thread of its own, and keeps its answer.
    fn begin(
        &self,
        name: String,
        arguments: Vec<String>,
        keep: impl Fn(&mut Board, String, Result<String, String>) + Copy + Send + 'static,
    ) {
        self.change(|board| board.running = Some(Running { name: name.clone(), ..Running::default() }));
        let running = self.clone();
        let begun = thread::Builder::new().name("workload".to_owned()).spawn(move || {
            let answer = running.answer(&arguments);
            running.change(|board| {
                board.running = None;
                keep(board, name, answer);
            });
        });
        if let Err(error) = begun {
            self.change(|board| {
                if let Some(running) = board.running.take() {
                    keep(board, running.name, Err(error.to_string()));
                }
            });
        }
    }

    /// Stops what runs.
    pub fn stop(&self) {
        if let Some(pid) = *self.child.lock().unwrap_or_else(PoisonError::into_inner) {
            ask_to_end(pid);
        }
    }

    fn answer(&self, arguments: &[String]) -> Result<String, String> {
        let program = program("rdma-workload").ok_or(MISSING)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run 'rdma-workload': {error}"))?;
        self.remember(Some(child.id()));
        let result = self.watch(&mut child);
        self.remember(None);
        result
    }

    fn remember(&self, pid: Option<u32>) {
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = pid;
    }

    /// Shows what it prints while it runs, and takes its answer.
    fn watch(&self, child: &mut Child) -> Result<String, String> {
        let begun = Instant::now();
        let reading = child.stderr.take().map(|errors| {
            let workloads = self.clone();
            thread::spawn(move || workloads.listen(errors))
        });
        let output = child.stdout.take().ok_or("its output cannot be read")?;
        let answer = thread::spawn(move || {
            let mut answer = String::new();
            output.take(MAX_ANSWER).read_to_string(&mut answer).map(|_| answer)
        });
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            let seconds = begun.elapsed().as_secs();
            self.change(|board| {
                if let Some(running) = &mut board.running {
                    running.seconds = seconds;
                }
            });
            thread::sleep(Duration::from_millis(250));
        };
        let said = reading.and_then(|reading| reading.join().ok()).unwrap_or_default();
        let answer =
            answer.join().map_err(|_| "its output cannot be read")?.map_err(|error| error.to_string())?;
        if !status.success() {
            let said = said.strip_prefix("rdma-workload: ").unwrap_or(&said).to_owned();
            return Err(if said.is_empty() { status.to_string() } else { said });
        }
        Ok(answer)
    }

    /// Passes on what it says while it runs; returns the last line that was no step.
    fn listen(&self, errors: ChildStderr) -> String {
        let mut last = String::new();
        for line in BufReader::new(errors.take(MAX_SAID)).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            if line.is_empty() {
                continue;
            }
            self.change(|board| {
                if let Some(running) = &mut board.running {
                    running.hear(&line);
                }
            });
            if !line.starts_with('{') {
                last = line;
            }
        }
        last
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn list() -> Result<Vec<Workload>, String> {
    let program = program("rdma-workload").ok_or(MISSING)?;
    let output = Command::new(program)
        .args(["list", "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run 'rdma-workload': {error}"))?;
    if !output.status.success() {
        return Err(format!("rdma-workload: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(not_understood)
}

fn parse(answer: &str) -> Result<Comparison, String> {
    let comparison: Comparison = serde_json::from_str(answer).map_err(not_understood)?;
    // Every key may be missing, as versions differ; but an answer without a name is none.
    if comparison.name.is_empty() { Err(not_understood("it names no workload")) } else { Ok(comparison) }
}

fn not_understood(error: impl std::fmt::Display) -> String {
    format!("rdma-workload's answer cannot be understood: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_read_with_or_without_latencies() {
        let answer = r#"{"name":"inline","claim":"c","device":{"name":"emu0","kind":"emulated"},
            "baseline":{"variant":"sge","label":"by SGE","ops_per_s":2.0,"latency_ns":{"p50":7,"p99":9}},
            "optimised":{"variant":"inline","label":"inline","ops_per_s":3.0,"latency_ns":null},
            "ratio":{"median":1.5,"low":1.4,"high":1.6},"verdict":"v","ground_truth":{"posts":3}}"#;
        let comparison = parse(answer).unwrap();
        assert_eq!(comparison.baseline.name, "by SGE");
        assert_eq!(comparison.baseline.latency_ns.as_ref().map(|l| l["p99"]), Some(9.0));
        assert!(comparison.optimised.latency_ns.is_none());
        assert!(parse("[]").unwrap_err().contains("cannot be understood"));
    }
}
