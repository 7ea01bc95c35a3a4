//! `rdma-probe`: record, report and diagnose RDMA programs.

mod cli;

use std::io;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdma-probe: {error:#}");
            ExitCode::from(cli::exit_code(&error))
        }
    }
}

/// `rdma-probe report F | head` closes our output early: the reader has what he wanted, nothing failed.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
