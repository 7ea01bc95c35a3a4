//! The command line.

use crate::bench::Options;
use crate::exchange::DEFAULT_PORT;
use crate::memory::MemoryKind;
use crate::progress::Mode;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Reference RDMA workloads: every optimisation, slow and fast, with its measured effect.
#[derive(Debug, Parser)]
#[command(
    name = "rdma-workload",
    version,
    after_help = "Examples:\n  \
        rdma-workload list\n  \
        rdma-workload compare registration\n  \
        rdma-workload compare all --json > claims.json\n  \
        rdma-workload run selective-signaling --plot signalling.svg\n  \
        rdma-workload compare all --server              (on one host)\n  \
        rdma-workload compare all --client HOST         (on another)\n\n\
        Without a usable RDMA device the emulated one is used, and said so.\n\
        Exit status: 0 done, 1 failed, 2 wrong usage, 128+N ended by signal N."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show every workload: question, claim, variants, what the probes should see
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure the variants of one workload over its swept parameter
    Run {
        /// Workload (see `list`)
        name: String,
        /// Only this variant; may be given several times
        #[arg(long = "variant", value_name = "KEY")]
        variants: Vec<String>,
        /// Only these values of the swept parameter
        #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
        values: Option<Vec<u64>>,
        /// Common options
        #[command(flatten)]
        common: Common,
    },
    /// Run a small program with exactly one fault, or its healthy twin, for a diagnosis to find
    Sick {
        /// Program (without one, all are listed)
        name: Option<String>,
        /// Run the twin that does the same without the fault
        #[arg(long)]
        healthy: bool,
        /// How long
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// RDMA device [default: the first with an active port, else the emulated one]
        #[arg(long, short)]
        device: Option<String>,
        /// Use the emulated device even where there is a real one
        #[arg(long, conflicts_with = "device")]
        emulated: bool,
    },
    /// Compare slow and fast, with a verdict; `all` prints the claims table
    Compare {
        /// Workload (see `list`), or `all`
        name: String,
        /// Only the N-th comparison of the workload, without demonstrations
        #[arg(long, value_name = "N")]
        comparison: Option<usize>,
        /// Also run under rdma-probe, and print what the probes saw beside the ground truth
        #[arg(long)]
        probe: bool,
        /// Common options
        #[command(flatten)]
        common: Common,
    },
}

/// Options of `run` and `compare`.
#[derive(Args, Debug)]
pub struct Common {
    /// RDMA device [default: the first with an active port, else the emulated one]
    #[arg(long, short)]
    pub device: Option<String>,
    /// Use the emulated device even where there is a real one
    #[arg(long, conflicts_with = "device")]
    pub emulated: bool,
    /// Profile of the emulated device and its model, such as cx5-like, or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// Let the emulated device take a NIC's time, at this speed of the real clock, such as 1/64 or 1
    #[arg(long, value_name = "S")]
    pub speed: Option<String>,
    /// Wait for a peer on this host and serve it
    #[arg(long, conflicts_with = "client")]
    pub server: bool,
    /// Run against a peer waiting on that host
    #[arg(long, value_name = "HOST")]
    pub client: Option<String>,
    /// TCP port of --server and --client
    #[arg(long, default_value_t = DEFAULT_PORT)]
    pub port: u16,
    /// Bytes per operation [default: the workload's]
    #[arg(long)]
    pub size: Option<u64>,
    /// Bytes of remote memory [default: the workload's]
    #[arg(long)]
    pub region: Option<u64>,
    /// Requests outstanding per queue pair [default: the workload's]
    #[arg(long)]
    pub window: Option<u64>,
    /// Kind of memory [default: the workload's]
    #[arg(long, value_enum)]
    pub memory: Option<MemoryKind>,
    /// Add missing huge pages to the kernel's pools for the run, and give them back (needs root)
    #[arg(long)]
    pub reserve_hugepages: bool,
    /// Seconds for one comparison or one point of a sweep
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Pairs of runs per comparison; fewer than 6 cannot give a 95 % interval
    #[arg(long, default_value_t = 9)]
    pub pairs: usize,
    /// Draws from the model's uncertain parameters per prediction, on the emulated device
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub draws: u32,
    /// A quarter of the time: for slow machines and virtual ones
    #[arg(long)]
    pub quick: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// How progress is shown
    #[arg(long, value_enum, default_value_t)]
    pub progress: Mode,
    /// Draw the sweep as SVG into this file
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Seconds for one comparison: twelve workloads of two to four comparisons each, with their demonstrations and predictions,
/// then stay well below five minutes, on busy machines too.
const COMPARISON_SECONDS: f64 = 3.0;
/// Seconds for one point of a sweep.
const POINT_SECONDS: f64 = 1.0;

impl Common {
    /// What the bench takes from the command line.
    pub fn options(&self, sweeping: bool) -> Options {
        let usual = if sweeping { POINT_SECONDS } else { COMPARISON_SECONDS };
        let seconds = self.seconds.unwrap_or(if self.quick { usual / 4.0 } else { usual });
        Options {
            size: self.size,
            region: self.region,
            window: self.window,
            memory: self.memory,
            seconds,
            pairs: if sweeping { self.pairs.min(5) } else { self.pairs },
            reserve_hugepages: self.reserve_hugepages,
            draws: self.draws,
            profile: self.profile.clone(),
            speed: self.speed.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_server_cannot_also_be_a_client() {
        let both = ["rdma-workload", "compare", "all", "--server", "--client", "h"];
        assert!(Cli::try_parse_from(both).is_err());
    }
}
