//! Development tasks: `cargo xtask TASK`. `cargo xtask help` lists them.

mod build_task;
mod command;
mod demo;
mod ebpf;
mod pass_on;
mod paths;
mod screenshots;
mod setup;
mod test;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use test::By;

/// Development tasks of the RDMA profiler
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Find what this machine lacks, and install it
    Setup(setup::Options),
    /// Build the workspace, or the BPF object from its source
    Build(build_task::Options),
    /// Show what the profiler shows, on a machine that need not have an RDMA device
    Demo(demo::Options),
    /// Test everything that can be tested on this machine
    Test(test::Options),
    /// What the integration runs: set up from nothing, then test
    Ci(test::Options),
    /// Run a reference workload: the slow and the fast way side by side
    Workload(pass_on::Workload),
    /// Run a command on the emulated RNIC
    Emu(pass_on::Emu),
    /// Run stock verbs programs on the emulated RNIC, every combination, and print a table
    EmuMatrix(pass_on::EmuMatrix),
    /// Record every sick program and its healthy twin, and hold that the doctor finds the one and not the other
    Gallery(pass_on::Gallery),
    /// Hold the emulated RNIC's timing model against published measurements
    EmuValidate(pass_on::EmuValidate),
    /// Run a benchmark, or list them
    Bench(pass_on::Bench),
    /// Draw every page of the dashboard from a recorded trace, or check that the pictures are fresh
    Screenshots(screenshots::Options),
    /// A virtual machine with real soft-RoCE, over this machine's files
    #[command(subcommand)]
    Vm(vm::Task),
    /// The part of `vm` that runs inside the guest
    #[command(hide = true)]
    VmAgent,
}

fn main() -> ExitCode {
    if ebpf::identity::is_called() {
        eprintln!("xtask: cannot go on as rustc: {}", ebpf::identity::go_on());
        return ExitCode::FAILURE;
    }
    let (outcome, failure) = match Cli::parse().task {
        Task::Setup(options) => (setup::main(&options), 1),
        Task::Build(options) => (build_task::main(&options), 1),
        Task::Demo(options) => (demo::main(&options), 1),
        Task::Test(options) => (test::main(&options, By::Person), 1),
        Task::Ci(options) => (test::main(&options, By::Integration), 1),
        Task::Workload(options) => (pass_on::workload(&options), 1),
        Task::Emu(options) => (pass_on::emu(&options), 1),
        Task::EmuMatrix(options) => (pass_on::emu_matrix(&options), 1),
        Task::Gallery(options) => (pass_on::gallery(&options), 1),
        Task::EmuValidate(options) => (pass_on::emu_validate(&options), 1),
        Task::Bench(options) => (pass_on::bench(&options), 1),
        Task::Screenshots(options) => (screenshots::main(&options), 1),
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
