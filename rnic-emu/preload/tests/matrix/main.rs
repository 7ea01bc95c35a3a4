//! Stock programs of perftest and ibverbs-utils on the emulated device: a table in which every cell passes or says why
//! not. `cargo xtask emu-matrix` runs the whole of it.

mod cells;
#[path = "../kit/mod.rs"]
mod kit;
mod run;

use clap::Parser;
use run::Outcome;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Run stock verbs programs on the emulated device, and print a table
#[derive(Parser)]
#[command(after_help = "Examples:
  cargo test -p rnic-emu-preload --test matrix                       # a dozen cells
  cargo xtask emu-matrix                                             # all of them, some minutes
  cargo xtask emu-matrix ib_send                                     # those with these words in their line
  cargo xtask emu-matrix --json

Exit status 1 if a cell fails that gives no reason.")]
struct Args {
    /// Every cell, not only the short run's
    #[arg(long, alias = "ignored", alias = "include-ignored")]
    all: bool,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    /// Seconds each program may take
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Only list the cells
    #[arg(long)]
    list: bool,
    /// Only cells whose line has these words
    words: Vec<String>,
    /// What `cargo test` passes to every test; without meaning here
    #[arg(long, short, hide = true)]
    quiet: bool,
    #[arg(long, hide = true)]
    nocapture: bool,
    #[arg(long, hide = true)]
    exact: bool,
    #[arg(long, hide = true)]
    test_threads: Option<usize>,
    #[arg(long, hide = true)]
    format: Option<String>,
    #[arg(long, hide = true)]
    color: Option<String>,
    #[arg(long, hide = true)]
    skip: Vec<String>,
}

fn line(cell: &cells::Cell) -> String {
    format!("{:<17} {:<8} {}", cell.program, cell.api(), cell.args.join(" "))
}

fn main() -> ExitCode {
    let args = Args::parse();
    let cells: Vec<_> = cells::all()
        .into_iter()
        .filter(|c| (args.all || c.short) && args.words.iter().all(|w| line(c).contains(w.as_str())))
        .collect();
    if args.list {
        for cell in &cells {
            println!("{}: test", line(cell));
        }
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut reasons, mut failed) = (0, 0, 0);
    for cell in &cells {
        let start = Instant::now();
        let outcome = run::run(cell, Duration::from_secs(args.limit));
        let seconds = start.elapsed().as_secs_f64();
        let (word, why) = match &outcome {
            Outcome::Pass => ("pass", ""),
            Outcome::Reason(why) => ("not run", why.as_str()),
            Outcome::Fail(why) => ("FAIL", why.as_str()),
        };
        match outcome {
            Outcome::Pass => passed += 1,
            Outcome::Reason(_) => reasons += 1,
            Outcome::Fail(_) => failed += 1,
        }
        if args.json {
            println!(
                "{}",
                serde_json::json!({"program": cell.program, "api": cell.api(), "args": cell.args,
                    "outcome": word.to_lowercase(), "why": why, "seconds": seconds})
            );
        } else {
            println!("{:<75} {word:<8} {seconds:5.1} s  {why}", line(cell));
        }
    }
    if !args.json {
        println!("{passed} pass, {reasons} not run, {failed} fail, of {}", cells.len());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
