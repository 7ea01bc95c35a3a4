//! `cargo xtask demo`: the dashboard on reference workloads, on a machine that need not have an RDMA device.
//!
//! The workloads run one after the other, over and over, on the first active device or else on the emulated one, and the
//! dashboard watches them. `--guest` shows stock programs over the kernel's soft-RoCE in a virtual machine instead.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::command::{self, quoted};
use crate::paths;
use crate::setup::{self, Group, Wanted};
use crate::vm;

const EXAMPLES: &str = "\
Examples:
  cargo xtask demo                                     the dashboard; ? lists its keys, q ends it and the workloads
  cargo xtask demo --headless --duration 20s --json    what it would have shown, for scripts
  cargo xtask demo --guest                             stock programs over soft-RoCE, on Debian's kernel 6.1
  cargo xtask demo --guest --kernel 6.12

Probes need root (or CAP_BPF and CAP_PERFMON); without, the dashboard names what is missing and the workloads' page
shows their own figures. With --guest, the first run fetches a kernel (70 to 110 MB) into $XDG_CACHE_HOME/rdma-probe,
and the trace stays in target/demo/.";

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Print what the dashboard would have shown
    #[arg(long, conflicts_with = "guest")]
    headless: bool,
    /// With --headless: how long to watch
    #[arg(long, value_name = "TIME", requires = "headless")]
    duration: Option<String>,
    /// With --headless: print JSON
    #[arg(long, requires = "headless")]
    json: bool,
    /// Record stock programs in a virtual machine with soft-RoCE, and report
    #[arg(long)]
    guest: bool,
    /// Kernel of the guest, as for `vm run`
    #[arg(long, value_name = "SERIES|PATH", default_value = vm::TESTED[0], requires = "guest")]
    kernel: String,
}

/// Programs the dashboard and its workloads consist of.
const PACKAGES: [&str; 5] = ["rdma-tui", "probe-user", "workloads", "rnic-emu", "rnic-emu-preload"];

/// The workloads that run in turn: those whose effects show on the control path first.
const ROTATION: &str = "\
    while :; do
        for workload in registration multi-qp shared-cq selective-signaling doorbell-batching inline; do
            \"$0\" compare $workload --quick --seconds 6 || exit
        done
    done";

/// The two stock programs of the guest, as server and client.
const PROGRAMS: &str = include_str!("demo.sh");

/// Does the task; returns the status to exit with.
///
/// # Errors
/// When the machine cannot be set up, something does not build, or the virtual machine fails.
pub fn main(options: &Options) -> Result<u8> {
    setup::ensure(&Wanted { groups: Group::USUAL.to_vec(), ..Wanted::default() })?;
    if options.guest { guest(options) } else { dashboard(options) }
}

/// Builds, then becomes the dashboard.
fn dashboard(options: &Options) -> Result<u8> {
    eprintln!("demo: building the dashboard and its workloads (minutes the first time, seconds later)");
    let mut cargo = command::cargo();
    cargo.args(["build", "--release"]);
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    command::run(&mut cargo)?;
    let binaries = paths::binaries(true);
    let program = binaries.join("rdma-tui");
    let mut tui = Command::new(&program);
    tui.args(arguments(options)).args(["--", "sh", "-c", ROTATION]).arg(binaries.join("rdma-workload"));
    Err(tui.exec()).with_context(|| format!("cannot start \"{}\"", program.display()))
}

fn arguments(options: &Options) -> Vec<String> {
    let mut arguments = Vec::new();
    if options.headless {
        arguments.push("--headless".to_owned());
    }
    if let Some(duration) = &options.duration {
        arguments.extend(["--duration".to_owned(), duration.clone()]);
    }
    if options.json {
        arguments.push("--json".to_owned());
    }
    arguments
}

fn guest(options: &Options) -> Result<u8> {
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
