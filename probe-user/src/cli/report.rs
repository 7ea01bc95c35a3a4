//! `rdma-probe report`.

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Report what a recorded trace shows, per process
#[derive(Debug, clap::Args)]
pub struct Args {}

/// # Errors
/// Always, until this build can do it.
pub fn run(_args: Args) -> Result<ExitCode> {
    bail!("`report` is not in this build yet")
}
