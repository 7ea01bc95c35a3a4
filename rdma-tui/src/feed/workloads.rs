//! `rdma-workload` as a child: its list, and one comparison at a time.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Shared;
use super::collector::{ask_to_end, program};
use crate::app::workload::{Board, Comparison, Listing, Running, Workload};

/// Longest answer read: a list or one comparison has a few ten thousand bytes.
const MAX_ANSWER: u64 = 16 << 20;

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
        self.change(|board| board.running = Some(Running { name: name.clone(), ..Running::default() }));
        let running = self.clone();
        let begun = thread::Builder::new().name("workload".to_owned()).spawn(move || {
            let result = running.compare(&name);
            running.change(|board| {
                board.running = None;
                board.results.insert(name, result);
            });
        });
        if let Err(error) = begun {
            self.change(|board| {
                if let Some(running) = board.running.take() {
                    board.results.insert(running.name, Err(error.to_string()));
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

    fn compare(&self, name: &str) -> Result<Comparison, String> {
        let program = program("rdma-workload").ok_or(MISSING)?;
        let mut child = Command::new(program)
            .args(["compare", name, "--json"])
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
    fn watch(&self, child: &mut Child) -> Result<Comparison, String> {
        let begun = Instant::now();
        let last = Arc::new(Mutex::new(String::new()));
        let reading = child.stderr.take().map(|errors| {
            let last = Arc::clone(&last);
            thread::spawn(move || {
                for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).trim().to_owned();
                    if !line.is_empty() {
                        *last.lock().unwrap_or_else(PoisonError::into_inner) = line;
                    }
                }
            })
        });
        let output = child.stdout.take().ok_or("its output cannot be read")?;
        let answer = thread::spawn(move || {
            let mut answer = String::new();
            output.take(MAX_ANSWER).read_to_string(&mut answer).map(|_| answer)
        });
        let latest = || last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            let (progress, seconds) = (latest(), begun.elapsed().as_secs());
            self.change(|board| {
                if let Some(running) = &mut board.running {
                    (running.seconds, running.progress) = (seconds, progress);
                }
            });
            thread::sleep(Duration::from_millis(250));
        };
        if let Some(reading) = reading {
            let _ = reading.join();
        }
        let answer =
            answer.join().map_err(|_| "its output cannot be read")?.map_err(|error| error.to_string())?;
        if !status.success() {
            let said = latest();
            let said = said.strip_prefix("rdma-workload: ").unwrap_or(&said).to_owned();
            return Err(if said.is_empty() { status.to_string() } else { said });
        }
        parse(&answer)
    }
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
