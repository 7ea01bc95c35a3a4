//! `rdma-probe record`.

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Record what RDMA programs do into a trace file
#[derive(Debug, clap::Args)]
pub struct Args {}

/// # Errors
/// Always, until this build can do it.
pub fn run(_args: Args) -> Result<ExitCode> {
    bail!("`record` is not in this build yet")
}
