//! Development tasks: `cargo xtask TASK`. `cargo xtask help` lists them.

mod command;
mod paths;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of the RDMA profiler
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// A virtual machine with real soft-RoCE, over this machine's files
    #[command(subcommand)]
    Vm(vm::Task),
    /// The part of `vm` that runs inside the guest
    #[command(hide = true)]
    VmAgent,
}

fn main() -> ExitCode {
    let (outcome, failure) = match Cli::parse().task {
        Task::Vm(task) => (vm::main(task), vm::FAILED),
        Task::VmAgent => (vm::agent::serve().map(|()| 0), 1),
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(failure)
        }
    }
}
