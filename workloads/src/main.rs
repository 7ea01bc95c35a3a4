//! `rdma-workload`: run and compare the reference workloads.

use clap::Parser as _;
use std::process::ExitCode;
use workloads::{app, cli::Cli, error, interrupt};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match interrupt::install().and_then(|()| app::run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("rdma-workload: {}", error::one_line(&failure));
            ExitCode::from(error::exit_status(&failure))
        }
    }
}
