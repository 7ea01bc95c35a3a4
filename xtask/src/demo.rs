//! `cargo xtask demo`: what the profiler shows, on a machine that need not have an RDMA device.
//!
//! Within a virtual machine with real soft-RoCE, two stock programs are recorded and the report is printed.

use std::ffi::{OsStr, OsString};

use anyhow::Result;
use clap::Args;

use crate::command::quoted;
use crate::paths;
use crate::setup::{self, Group, Wanted};
use crate::vm;

const EXAMPLES: &str = "\
Examples:
  cargo xtask demo                  on Debian's kernel 6.1
  cargo xtask demo --kernel 6.12

The first run fetches the kernel (70 to 110 MB) into $XDG_CACHE_HOME/rdma-probe. The trace stays in target/demo/.";

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Kernel to run on, as for `vm run`
    #[arg(long, value_name = "SERIES|PATH", default_value = vm::TESTED[0])]
    kernel: String,
}

/// The two stock programs, as server and client.
const PROGRAMS: &str = include_str!("demo.sh");

/// Does the task; returns the status to exit with.
///
/// # Errors
/// When the machine cannot be set up or the virtual machine fails.
pub fn main(options: &Options) -> Result<u8> {
    setup::ensure(&Wanted { groups: Group::USUAL.to_vec(), ..Wanted::default() })?;
    let out = paths::target().join("demo");
    eprintln!(
        "demo: ib_write_bw and ibv_rc_pingpong, recorded in a virtual machine with soft-RoCE (about half a minute)"
    );
    let status = vm::run_shared(&options.kernel, &out, script())?;
    if status == 0 {
        let (program, trace) = (paths::binaries(false).join("rdma-probe"), out.join("demo.trace"));
        eprintln!("demo: the same again, from the trace: {} report {}", program.display(), trace.display());
    }
    Ok(status)
}

/// What runs in the guest: record the programs, then report.
fn script() -> Vec<OsString> {
    let record = "rdma-probe record -o \"$VM_OUT/demo.trace\" -- sh -c";
    let report = "rdma-probe report \"$VM_OUT/demo.trace\"";
    let script = format!("{record} {} && {report}", quoted(OsStr::new(PROGRAMS)));
    vec!["sh".into(), "-c".into(), script.into()]
}
