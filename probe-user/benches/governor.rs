//! Whether watching posts and polls costs no more than what is allowed, and whether what is sampled is true.
//!
//! `cargo xtask bench governor [PAIRS]` (root; `cargo test -p probe-user --bench governor` without optimisation). Stock perftest on the emulated device, natively, in pairs of runs with and
//! without `rdma-probe record` at its default settings, in turn. Both ends share this machine with whatever else runs:
//! the ratio of rates holds its noise, that of messages per second of CPU time less of it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::Value;

static PORT: AtomicU16 = AtomicU16::new(18_700);

/// One way to run perftest, and what follows from its arguments.
struct Load {
    name: &'static str,
    program: &'static str,
    arguments: &'static str,
    /// Share of work requests that are signalled, work requests a post, share of inline ones.
    truth: [f64; 3],
}

const LOADS: [Load; 6] = [
    Load {
        name: "1 k/s",
        program: "ib_write_bw",
        arguments: "-s 64 -Q 1 -n 4000 --rate_limit=1000 --rate_units=p --rate_limit_type=SW --burst_size=1",
        truth: [1.0, 1.0, 0.0],
    },
    Load {
        name: "10 k/s",
        program: "ib_write_bw",
        arguments: "-s 64 -Q 1 -n 30000 --rate_limit=10000 --rate_units=p --rate_limit_type=SW --burst_size=1",
        truth: [1.0, 1.0, 0.0],
    },
    Load {
        name: "100 k/s",
        program: "ib_write_bw",
        arguments: "-s 64 -Q 1 -n 300000 --rate_limit=100000 --rate_units=p --rate_limit_type=SW --burst_size=1",
        truth: [1.0, 1.0, 0.0],
    },
    Load {
        name: "maximum",
        program: "ib_write_bw",
        arguments: "-s 64 -Q 100 -N -n 10000000",
        truth: [0.01, 1.0, 0.0],
    },
    Load {
        name: "maximum, inline",
        program: "ib_write_bw",
        arguments: "-s 32 -I 64 -Q 10 -N -n 10000000",
        truth: [0.1, 1.0, 1.0],
    },
    Load {
        name: "maximum, lists of 16",
        program: "ib_write_bw",
        arguments: "-s 64 -l 16 -Q 1 -N -n 10000000",
        truth: [1.0, 16.0, 0.0],
    },
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    // `cargo test --benches` and `--list` only want to know that it starts.
    if words.iter().any(|a| a == "--test" || a == "--list") {
        return;
    }
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("governor: attaching probes needs root");
        std::process::exit(1);
    }
    let pairs = words.first().and_then(|word| word.parse().ok()).unwrap_or(5);
    build();
    let uptime = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{pairs} pairs of runs of about four seconds; load {}, kernel {}", uptime.trim(), kernel());
    println!(
        "rate and rate a CPU second: with the recording, of those without (median, lowest–highest pair)"
    );
    println!(
        "{:<21} {:>9} {:>20} {:>20} {:>7} {:>8} {:>8} {:>7} {:>9} {:>9} {:>7}",
        "load",
        "msg/s",
        "rate",
        "a CPU second",
        "cost",
        "looked",
        "WRs",
        "±",
        "signalled",
        "WRs/post",
        "inline"
    );
    for load in &LOADS {
        rates(load, pairs);
    }
    println!("latency (µs), median over {pairs} runs each");
    println!(
        "{:<21} {:>12} {:>12} {:>12} {:>12}",
        "program", "p50 without", "p50 with", "p99 without", "p99 with"
    );
    for program in ["ib_write_lat", "ib_send_lat"] {
        latencies(program, pairs);
    }
}

fn rates(load: &Load, pairs: usize) {
    let mut ratios = [Vec::new(), Vec::new()];
    let mut told = Vec::new();
    let mut bare_rate = 0.0;
    for pair in 0..pairs {
        // Who goes first changes, so that a trend of the machine falls on both.
        let mut runs = [None, None];
        for which in [pair % 2, 1 - pair % 2] {
            runs[which] = run(load, which == 1);
        }
        let [Some(bare), Some(with)] = runs else { continue };
        bare_rate = bare.rate;
        ratios[0].push(with.rate / bare.rate);
        ratios[1].push((with.messages / with.cpu_s) / (bare.messages / bare.cpu_s));
        told.extend(with.told);
    }
    let [rate, per_cpu] = ratios.map(|mut r| spread(&mut r));
    let median = |of: &dyn Fn(&Told) -> f64| {
        let mut all: Vec<f64> = told.iter().map(of).collect();
        middle(&mut all)
    };
    let within = told.iter().filter(|t| (t.wrs / t.truth - 1.0).abs() <= t.error.max(1e-9)).count();
    let [signalled, per_post, inline] = load.truth;
    let ratio =
        |of: f64, truth: f64| if truth == 0.0 { format!("{of:.3}") } else { format!("{:.3}", of / truth) };
    println!(
        "{:<21} {:>9.0} {:>20} {:>20} {:>6.2}% {:>7.2}% {:>8.4} {:>6.2}% {:>9} {:>9} {:>7}  rates within their bound: {within} of {}",
        load.name,
        bare_rate,
        rate,
        per_cpu,
        median(&|t| t.overhead * 100.0),
        median(&|t| t.share * 100.0),
        median(&|t| t.wrs / t.truth),
        median(&|t| t.error * 100.0),
        ratio(median(&|t| t.signalled), signalled),
        ratio(median(&|t| t.per_post), per_post),
        ratio(median(&|t| t.inline), inline),
        told.len(),
    );
}

fn latencies(program: &'static str, pairs: usize) {
    let load = Load { name: program, program, arguments: "-s 64 -n 200000", truth: [0.0; 3] };
    let mut of = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for pair in 0..pairs {
        for which in [pair % 2, 1 - pair % 2] {
            if let Some([p50, p99]) = run(&load, which == 1).and_then(|run| run.latency) {
                of[which][0].push(p50);
                of[which][1].push(p99);
            }
        }
    }
    let [[p50, p99], [p50_with, p99_with]] = of.map(|both| both.map(|mut all| middle(&mut all)));
    println!("{program:<21} {p50:>12.2} {p50_with:>12.2} {p99:>12.2} {p99_with:>12.2}");
}

/// What one run came to.
struct Run {
    rate: f64,
    messages: f64,
    cpu_s: f64,
    latency: Option<[f64; 2]>,
    told: Option<Told>,
}

/// What the recording says.
struct Told {
    overhead: f64,
    share: f64,
    error: f64,
    wrs: f64,
    truth: f64,
    signalled: f64,
    per_post: f64,
    inline: f64,
}

fn run(load: &Load, recorded: bool) -> Option<Run> {
    let is_latency = load.program.ends_with("_lat");
    let port = PORT.fetch_add(1, Relaxed).to_string();
    let mut arguments = vec!["-d", "emu0", "-p", &port];
    arguments.extend(load.arguments.split(' '));
    let preload = library();
    let server = Server(
        Command::new(load.program)
            .args(&arguments)
            .env("LD_PRELOAD", &preload)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?,
    );
    thread::sleep(Duration::from_millis(400));
    let folder = tempfile::tempdir().ok()?;
    let trace = folder.path().join("t.trace");
    let mut words = vec!["/bin/bash", "-c", "TIMEFORMAT='cpu %U %S'; export LD_PRELOAD=$0; time \"$@\""];
    let shown = preload.display().to_string();
    words.extend([shown.as_str(), load.program]);
    words.extend(&arguments);
    words.push("127.0.0.1");
    let mut command = if recorded {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-probe"));
        command.args(["record", "--quiet", "-o"]).arg(&trace).arg("--").args(&words);
        command
    } else {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    let output = command.output().ok()?;
    drop(server);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let cpu = err.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let cpu_s = cpu.split(' ').filter_map(|n| n.parse::<f64>().ok()).sum();
    let figures: Vec<f64> = out
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))?
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    let messages = *figures.get(1)?;
    if is_latency {
        // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%
        let latency = Some([*figures.get(4)?, *figures.get(7)?]);
        return Some(Run { rate: 0.0, messages, cpu_s, latency, told: None });
    }
    let rate = figures.last()? * 1e6;
    let told = if recorded { told(&trace, messages) } else { None };
    Some(Run { rate, messages, cpu_s, latency: None, told })
}

fn told(trace: &Path, truth: f64) -> Option<Told> {
    let report =
        Command::new(env!("CARGO_BIN_EXE_rdma-probe")).args(["report", "--json"]).arg(trace).output().ok()?;
    let report: Value = serde_json::from_slice(&report.stdout).ok()?;
    let of_client = |process: &&Value| process["data_path"]["wrs"].as_u64().is_some_and(|wrs| wrs > 0);
    let path = &report["processes"].as_array()?.iter().find(of_client)?["data_path"];
    let observed = &path["observed"];
    Some(Told {
        overhead: observed["overhead"].as_f64()?,
        share: observed["share"].as_f64().unwrap_or(1.0),
        error: observed["error"].as_f64().unwrap_or(0.0),
        wrs: path["wrs"].as_f64()?,
        truth,
        signalled: path["signaled_share"].as_f64()?,
        per_post: path["wrs_per_post"].as_f64()?,
        inline: path["inline_share"].as_f64()?,
    })
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It ends with its client, but may have lost it.
        for _ in 0..40 {
            if self.0.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_rdma-probe")).with_file_name("librnic_emu.so")
}

/// Where optimised programs are: beside this one, unless it was built as a test.
fn release() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_rdma-probe"));
    built.ancestors().nth(2).map(|target| target.join("release")).unwrap_or_default()
}

fn build() {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "rnic-emu-preload"])
        .args(library().starts_with(release()).then_some("--release"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "rnic-emu-preload does not build");
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn middle(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn spread(all: &mut [f64]) -> String {
    let middle = middle(all);
    let (first, last) = (all.first().copied().unwrap_or(f64::NAN), all.last().copied().unwrap_or(f64::NAN));
    format!("{middle:.3} {first:.2}–{last:.2}")
}
