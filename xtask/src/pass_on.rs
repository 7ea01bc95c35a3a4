//! Tasks that build a program of the workspace and become it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::command;
use crate::paths;
use crate::vm;

/// Arguments of `emu`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Emu {
    /// Arguments of rnic-emu: options, `--`, and the command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

/// Arguments of `emu-matrix`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct EmuMatrix {
    /// Arguments of the matrix: words that a line must have, --json, --list, --limit SECONDS
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

const WORKLOAD_EXAMPLES: &str = "\
Examples:
  cargo xtask workload list
  cargo xtask workload --help

Everything is passed on to rdma-workload, and its exit status back.";

/// Arguments of `workload`.
#[derive(Debug, Args)]
#[command(after_help = WORKLOAD_EXAMPLES)]
pub struct Workload {
    /// Arguments of rdma-workload
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

const GALLERY_EXAMPLES: &str = "\
Examples:
  cargo xtask gallery                                 the sick programs and their twins (root)
  cargo xtask gallery --kernel 6.12                   the same in the virtual machine, on soft-RoCE
  cargo xtask gallery --families                      baseline and optimised way of each reference workload (root)
  cargo xtask gallery --perftest                      findings on perftest, decided by its own figures
  cargo xtask gallery --perftest -- --json ib_read_bw  some of them, as JSON

GALLERY=name,name and FAMILIES=name,name run some alone.";

/// Arguments of `gallery`.
#[derive(Debug, Args)]
#[command(after_help = GALLERY_EXAMPLES)]
pub struct Gallery {
    /// Run the programs on soft-RoCE in the virtual machine; a kernel as for `vm run`
    #[arg(long, value_name = "SERIES|PATH", conflicts_with_all = ["families", "perftest"])]
    kernel: Option<String>,
    /// Decide the findings on perftest: does following them make its own figure better?
    #[arg(long, conflicts_with = "families")]
    perftest: bool,
    /// Judge baseline and optimised way of each family of reference workloads
    #[arg(long)]
    families: bool,
    /// Arguments of --perftest: words that a case must have, --json, --list, --pairs N
    #[arg(last = true, requires = "perftest", value_name = "ARGS")]
    arguments: Vec<OsString>,
}

/// Arguments of `emu-validate`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct EmuValidate {
    /// Arguments of emu-validate
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// Benchmark to run; without it, the benchmarks there are
    name: Option<String>,
    /// Arguments of the benchmark
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

/// Runs a command on the emulated RNIC.
///
/// # Errors
/// When the emulator does not build or cannot be started.
pub fn emu(emu: &Emu) -> Result<u8> {
    release(&["rnic-emu", "rnic-emu-preload"])?;
    become_program("rnic-emu", &emu.arguments)
}

/// Runs stock verbs programs on the emulated RNIC, every combination, and prints a table.
///
/// # Errors
/// When the emulator does not build or cargo cannot be started.
pub fn emu_matrix(matrix: &EmuMatrix) -> Result<u8> {
    let mut cargo = command::cargo();
    cargo.args(["test", "--quiet", "--release", "--package", "rnic-emu-preload", "--test", "matrix", "--"]);
    cargo.arg("--all").args(&matrix.arguments);
    Err(cargo.exec()).context("cannot start cargo")
}

/// The test that runs every sick program.
const SICK: &str = "every_sick_program_is_found_and_no_healthy_one";

/// Limit for all programs in the guest, where a recording takes ten seconds.
const IN_GUEST: Duration = Duration::from_secs(3600);

/// Records the gallery of sick programs, or one of its neighbours, and judges what is found.
///
/// # Errors
/// When something does not build or cargo cannot be started.
pub fn gallery(gallery: &Gallery) -> Result<u8> {
    if let Some(kernel) = &gallery.kernel {
        let device = format!("GALLERY_DEVICE={}", vm::agent::DEVICE);
        return vm::test::one(kernel, "gallery", SICK, &[&device], IN_GUEST);
    }
    let mut build = command::cargo();
    build.args(["build", "--quiet", "--package", "workloads", "--package", "rnic-emu-preload"]);
    build.args(["--package", "verbs-tap"]);
    command::run(&mut build)?;
    let (test, arguments): (&str, &[&str]) = if gallery.perftest {
        ("perftest", &["--perftest"])
    } else if gallery.families {
        ("families", &["--include-ignored", "--nocapture"])
    } else {
        ("gallery", &["--include-ignored"])
    };
    let mut cargo = command::cargo();
    cargo.args(["test", "--quiet", "--package", "probe-user", "--test", test, "--"]);
    cargo.args(arguments).args(&gallery.arguments);
    Err(cargo.exec()).context("cannot start cargo")
}

/// Runs a reference workload.
///
/// # Errors
/// When the workloads do not build or cannot be started.
pub fn workload(workload: &Workload) -> Result<u8> {
    // The emulated device is what they run on where there is no other; the profiler checks them with --probe.
    let mut packages = vec!["workloads", "rnic-emu-preload"];
    if workload.arguments.iter().any(|argument| argument == "--probe") {
        packages.push("probe-user");
    }
    release(&packages)?;
    become_program("rdma-workload", &workload.arguments)
}

/// Holds the timing model against published measurements.
///
/// # Errors
/// When the emulator does not build or the program cannot be started.
pub fn emu_validate(validate: &EmuValidate) -> Result<u8> {
    release(&["rnic-emu"])?;
    become_program("emu-validate", &validate.arguments)
}

/// Runs a benchmark, or lists them.
///
/// # Errors
/// When there is none of that name, or it fails.
pub fn bench(bench: &Bench) -> Result<u8> {
    let metadata = command::output(command::cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_slice(&metadata).context("cannot read cargo's metadata")?;
    let benches = benches(&metadata);
    let names: Vec<&str> = benches.iter().map(|(_, name)| name.as_str()).collect();
    let Some(asked) = &bench.name else {
        println!(
            "{}",
            if names.is_empty() { "there are no benchmarks yet".to_owned() } else { names.join("\n") }
        );
        return Ok(0);
    };
    let Some((package, name)) = benches.iter().find(|(_, name)| name == asked) else {
        bail!("there is no benchmark \"{asked}\"; there are: {}", names.join(", "));
    };
    let mut cargo = command::cargo();
    cargo.args(["bench", "--package", package, "--bench", name, "--"]).args(&bench.arguments);
    Err(cargo.exec()).context("cannot start cargo")
}

/// The benchmarks, each with its package.
fn benches(metadata: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let is_bench =
                target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "bench"));
            if let (true, Some(package), Some(name)) =
                (is_bench, package["name"].as_str(), target["name"].as_str())
            {
                found.push((package.to_owned(), name.to_owned()));
            }
        }
    }
    found
}

/// Builds packages optimised: what they show is about time.
fn release(packages: &[&str]) -> Result<()> {
    let mut cargo = command::cargo();
    cargo.args(["build", "--quiet", "--release"]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    command::run(&mut cargo)
}

/// Goes on as a program of the workspace; returns only if that fails.
fn become_program<'a>(name: &str, arguments: impl IntoIterator<Item = &'a OsString>) -> Result<u8> {
    let path = paths::binaries(true).join(name);
    let mut command = Command::new(&path);
    command.args(arguments);
    Err(command.exec()).with_context(|| format!("cannot start \"{}\"", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn benchmarks_are_found_with_their_package() {
        let metadata = json!({"packages": [{"name": "a", "targets": [
            {"name": "trace", "kind": ["bench"]}, {"name": "a", "kind": ["lib"]},
        ]}]});
        assert_eq!(benches(&metadata), [("a".to_owned(), "trace".to_owned())]);
        assert!(benches(&json!({})).is_empty());
    }
}
