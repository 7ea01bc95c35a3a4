//! `rdma-probe devices`.

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Show RDMA devices, their ports and counters, and which process owns which object
#[derive(Debug, clap::Args)]
pub struct Args {}

/// # Errors
/// Always, until this build can do it.
pub fn run(_args: Args) -> Result<ExitCode> {
    bail!("`devices` is not in this build yet")
}
