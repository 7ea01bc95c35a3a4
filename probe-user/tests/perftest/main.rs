//! Findings on stock perftest, each decided: a finding is true when following it (its perftest option) improves
//! perftest's own figure beyond noise, and a false alarm when not.
//!
//! Every case runs once under `rdma-probe record --tap` on the emulated device, with a NIC's timing, and the doctor reads
//! the trace. For each finding, pairs without and with its option then run in turn, unwatched; the median of their ratios
//! and its confidence interval decide. `cargo xtask gallery --perftest`.

mod case;
mod judge;
mod run;

use std::process::ExitCode;

use clap::Parser;
use serde_json::json;

use case::CASES;
use judge::{Decided, Verdict, decide};

/// Decide the doctor's findings on perftest by perftest's own figures
#[derive(Debug, Parser)]
#[command(name = "cargo xtask gallery --perftest")]
struct Options {
    /// Words that a case must have: `ib_write_bw`, `-q`
    #[arg(allow_hyphen_values = true)]
    words: Vec<String>,
    /// List the cases
    #[arg(long)]
    list: bool,
    /// Print what was decided as JSON
    #[arg(long)]
    json: bool,
    /// Pairs for each finding; below six their interval does not reach 95 %
    #[arg(long, default_value_t = 7)]
    pairs: usize,
}

fn main() -> ExitCode {
    // `cargo test` runs every target, and gives this one its own options.
    let arguments: Vec<_> = std::env::args().collect();
    if !arguments.iter().any(|argument| argument == "--perftest") {
        println!("perftest pairs: not run (cargo xtask gallery --perftest)");
        return ExitCode::SUCCESS;
    }
    let options = Options::parse_from(arguments.into_iter().filter(|argument| argument != "--perftest"));
    let chosen: Vec<_> = CASES
        .iter()
        .filter(|case| options.words.iter().all(|word| case.command.contains(word.as_str())))
        .collect();
    if options.list {
        chosen.iter().for_each(|case| println!("{}", case.command));
        return ExitCode::SUCCESS;
    }
    let mut all = Vec::new();
    for case in &chosen {
        match run::findings(case) {
            Ok(findings) if findings.is_empty() => {
                eprintln!("{}: nothing found", case.command);
                all.push(Decided::silent(case));
            }
            Ok(findings) => {
                for finding in findings {
                    let decided = decide(case, &finding, options.pairs);
                    eprintln!("{}: {}: {}", case.command, finding.id, decided.words());
                    all.push(decided);
                }
            }
            Err(trouble) => {
                eprintln!("{}: {trouble}", case.command);
                all.push(Decided::failed(case, trouble));
            }
        }
    }
    if options.json {
        let rows: Vec<_> = all.iter().map(Decided::json).collect();
        println!("{:#}", json!({"schema": "rdma-perftest-pairs/1", "pairs": options.pairs, "decided": rows}));
    } else {
        print!("{}", judge::table(&all));
    }
    let wrong =
        all.iter().filter(|decided| !matches!(decided.verdict, Verdict::True | Verdict::Silent)).count();
    eprintln!("{} cases, {} findings, {wrong} not shown true", chosen.len(), judge::findings(&all));
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
