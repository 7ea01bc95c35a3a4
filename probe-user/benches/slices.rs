//! Whether what slices of time estimate at functions of a stock provider is as true as is told.
//!
//! `cargo xtask bench slices [SECONDS] [LOAD]` (root; `cargo test -p probe-user --bench slices` without optimisation).
//! A program on the real, stripped mlx5, whose kernel and device are made up, writes at several rates, bound by its own
//! work or by its device, busy or asleep while it waits. `rdma-probe count` watches it at default settings from its
//! beginning, or from a moment on, until it ends; the program says of itself what it did meanwhile. Told are both, by each
//! other, the bound that was told, and whether it holds. How often a program that waits has polled has no bound.

#[path = "../tests/support/mod.rs"]
mod support;

use support::announced::{Announced, MLX5};
use support::steady::{Counted, FIGURES, Load, Place, counted};

const PLAIN: Load =
    Load { name: "", rate: 0, list: 1, every: 1, depth: 64, work: 0, sleeps: false, pace_ns: 0 };

const LOADS: [Load; 10] = [
    Load { name: "1 k/s, busy", rate: 1_000, ..PLAIN },
    Load { name: "10 k/s, busy", rate: 10_000, ..PLAIN },
    Load { name: "10 k/s, asleep", rate: 10_000, sleeps: true, ..PLAIN },
    Load { name: "100 k/s, busy", rate: 100_000, ..PLAIN },
    Load { name: "100 k/s, asleep", rate: 100_000, every: 16, sleeps: true, ..PLAIN },
    Load { name: "device, 20 k/s", pace_ns: 50_000, depth: 16, ..PLAIN },
    Load { name: "device, 100 k/s", pace_ns: 10_000, ..PLAIN },
    Load { name: "device, 500 k/s, lists", pace_ns: 2_000, list: 16, every: 16, depth: 512, ..PLAIN },
    Load { name: "own work", work: 30_000, every: 16, depth: 4096, ..PLAIN },
    Load { name: "own work, maximum", every: 64, depth: 8192, ..PLAIN },
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    // `cargo test --benches` and `--list` only want to know that it starts.
    if words.iter().any(|a| a == "--test" || a == "--list") {
        return;
    }
    if words.iter().any(|a| a == "--help" || a == "-h") {
        println!(
            "cargo xtask bench slices [SECONDS] [LOAD]: each load (or those whose name holds LOAD) for SECONDS (20)"
        );
        LOADS.iter().for_each(|load| println!("  {}", load.name));
        return;
    }
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("slices: attaching probes needs root");
        std::process::exit(1);
    }
    if std::path::Path::new("/sys/class/infiniband").exists() {
        eprintln!("slices: this kernel has RDMA, which libibverbs asks before the one that is made up");
        std::process::exit(1);
    }
    let seconds = words.first().and_then(|word| word.parse().ok()).unwrap_or(20);
    let wanted = words.get(1);
    let uptime = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{seconds} s each; load {}", uptime.trim());
    println!(
        "{:<23} {:<7} {:<12} {:>12} {:>12} {:>7} {:>8}  holds",
        "load", "from", "figure", "truth", "estimate", "ratio", "bound"
    );
    let announced = Announced::new(&MLX5);
    let (mut held, mut bounded, mut all) = (0, 0, 0);
    for load in LOADS.iter().filter(|load| wanted.is_none_or(|wanted| load.name.contains(wanted.as_str()))) {
        for runs_before in [false, true] {
            let counted = counted(&Place::Announced(&announced), load, seconds, runs_before);
            for outcome in rows(load, runs_before, &counted) {
                all += 1;
                bounded += i32::from(outcome.is_some());
                held += i32::from(outcome == Some(true));
            }
        }
    }
    println!("{held} of {bounded} bounds hold; {} of {all} figures have none", all - bounded);
}

/// Prints what was told of a run. Gives, for each figure that may have a bound, whether it holds.
fn rows(load: &Load, runs_before: bool, counted: &Counted) -> Vec<Option<bool>> {
    let mut outcomes = Vec::new();
    for (which, name) in FIGURES.into_iter().enumerate() {
        let figure = counted.figure(which);
        let counts_polls = name.ends_with("polls");
        let holds = figure.holds(load.depth.max(load.list));
        let bound = figure.bound.map_or("none".to_owned(), |bound| format!("±{:.1} %", bound * 100.0));
        let (bound, word) = match holds {
            _ if counts_polls && figure.bound != Some(0.0) => ("-".to_owned(), "-"),
            Some(true) => (bound, "within"),
            Some(false) => (bound, "OUTSIDE"),
            None => (bound, "no bound"),
        };
        println!(
            "{:<23} {:<7} {name:<12} {:>12.0} {:>12.0} {:>7.3} {bound:>8}  {word}",
            load.name,
            if runs_before { "running" } else { "start" },
            figure.truth,
            figure.estimate,
            figure.ratio(),
        );
        if word != "-" {
            outcomes.push(holds);
        }
    }
    let path = &counted.told["data_path"];
    println!(
        "{:<31} cost {:.2} %; slices of posts {}, of polls {}",
        "",
        path["overhead"].as_f64().unwrap_or(0.0) * 100.0,
        described(&path["slices"][0]),
        described(&path["slices"][1])
    );
    outcomes
}

fn described(slices: &serde_json::Value) -> String {
    if slices.is_null() {
        return "none: always".to_owned();
    }
    let figure = |name: &str| slices[name].as_f64().unwrap_or(f64::NAN);
    let why = slices["unbounded"].as_str().map(|why| format!("; no bound: {why}")).unwrap_or_default();
    format!(
        "{} (×{:.2} slow, {:.2} % of the time{why})",
        slices["slices"],
        figure("slowdown"),
        figure("share") * 100.0
    )
}
