//! `rdma-probe probes`.

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Show which probes can attach on this host, and why the others cannot
#[derive(Debug, clap::Args)]
pub struct Args {}

/// # Errors
/// Always, until this build can do it.
pub fn run(_args: Args) -> Result<ExitCode> {
    bail!("`probes` is not in this build yet")
}
