//! `cargo xtask build`: the workspace as an ordinary build, or the BPF object.

use anyhow::Result;
use clap::Args;

use crate::command;
use crate::ebpf::{self, Comparison};

const EXAMPLES: &str = "\
Examples:
  cargo xtask build --release          everything, optimised; the committed BPF object is embedded
  cargo xtask build --ebpf             rebuild the BPF object from probe-ebpf/ and put it in its place
  cargo xtask build --ebpf --check     rebuild it and compare: with the recorded toolchain the bytes must be the same

RDMA_PROBE_BPF_OBJECT=PATH makes rdma-probe load another object than the embedded one.";

/// Arguments of `build`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Optimise
    #[arg(long, conflicts_with = "ebpf")]
    release: bool,
    /// Build the BPF object with whichever toolchain is here
    #[arg(long)]
    ebpf: bool,
    /// Leave the committed object alone and compare
    #[arg(long, requires = "ebpf")]
    check: bool,
}

/// Does the task; returns the status to exit with.
///
/// # Errors
/// When something does not build.
pub fn main(options: &Options) -> Result<u8> {
    if options.ebpf && options.check {
        return check();
    }
    if options.ebpf {
        ebpf::build()?;
    } else {
        workspace(options.release)?;
    }
    Ok(0)
}

/// Builds every binary and library but xtask, which is running.
///
/// # Errors
/// When cargo fails.
pub fn workspace(release: bool) -> Result<()> {
    let mut cargo = command::cargo();
    cargo.args(["build", "--quiet", "--workspace", "--exclude", "xtask"]);
    if release {
        cargo.arg("--release");
    }
    command::run(&mut cargo)
}

/// Builds every binary, library and test but xtask's, with the features that all tests together have: of one package
/// alone, or of all without their tests, cargo builds every dependency anew whose features then differ.
pub fn with_tests() -> std::process::Command {
    let mut cargo = command::cargo();
    cargo.args([
        "build",
        "--quiet",
        "--locked",
        "--workspace",
        "--exclude",
        "xtask",
        "--lib",
        "--bins",
        "--tests",
    ]);
    cargo
}

fn check() -> Result<u8> {
    match ebpf::check()? {
        Comparison::Same => {
            println!("build: the committed BPF object is what its source makes, byte for byte");
            Ok(0)
        }
        Comparison::Different(built) => {
            eprintln!(
                "xtask: the committed BPF object is not what its source makes with the recorded toolchain (see \"{}\"): \
                 `cargo xtask build --ebpf` renews it",
                built.display()
            );
            Ok(1)
        }
        Comparison::OtherToolchain(built) => {
            println!(
                "build: another toolchain than the recorded one made another object, as may be; test it too with \
                 RDMA_PROBE_BPF_OBJECT={}",
                built.display()
            );
            Ok(0)
        }
    }
}
