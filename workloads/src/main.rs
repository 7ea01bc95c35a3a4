//! `rdma-workload`: run and compare the reference workloads.

use clap::Parser as _;
use std::io::Write as _;
use std::process::ExitCode;
use workloads::{app, cli::Cli, error, interrupt};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match interrupt::install().and_then(|()| app::run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Not `eprintln!`, which panics when nobody reads any more.
            let _ = writeln!(std::io::stderr(), "rdma-workload: {}", error::one_line(&failure));
            ExitCode::from(error::exit_status(&failure))
        }
    }
}
