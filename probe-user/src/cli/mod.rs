//! The command line: one module per subcommand, each with its arguments and a `run`.

mod count;
mod devices;
mod diff;
mod doctor;
mod export;
mod keep;
mod merge;
mod objects;
mod posts;
mod probes;
mod providers;
mod record;
mod report;
mod serve;
mod tap;
mod time;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Profile and diagnose RDMA programs: what they register, create, post and wait for, and what it costs.
///
/// Exit status: 0 on success, 1 on failure, 2 on a usage error; `record -- CMD` passes on the status of CMD.
#[derive(Debug, Parser)]
#[command(name = "rdma-probe", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(record::Args),
    Report(report::Args),
    Diff(diff::Args),
    Doctor(doctor::Args),
    Export(export::Args),
    Merge(merge::Args),
    Serve(serve::Args),
    Probes(probes::Args),
    Devices(devices::Args),
    Providers(providers::Args),
    Objects(objects::Args),
    Count(count::Args),
    Tap(tap::Args),
}

/// Arguments that clap could not judge alone: answered with exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The exit status an error stands for.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(not_run) = error.downcast_ref::<record::NotRun>() {
        not_run.code()
    } else if error.is::<UsageError>() {
        2
    } else {
        1
    }
}

/// Runs the chosen subcommand; its exit status is the program's.
///
/// # Errors
/// Whatever the subcommand could not do, with context for a person; [`UsageError`] for wrong arguments.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Record(args) => record::run(args),
        Command::Report(args) => report::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Export(args) => export::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Probes(args) => probes::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Providers(args) => providers::run(args),
        Command::Objects(args) => objects::run(args),
        Command::Count(args) => count::run(args),
        Command::Tap(args) => tap::run(args),
    }
}

/// Columns of the terminal; 120 where nobody looks at one.
fn terminal_width() -> usize {
    terminal_size::terminal_size().map_or(120, |(width, _)| width.0.into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_of_all_subcommands_go_together() {
        super::Cli::command().debug_assert();
    }
}
