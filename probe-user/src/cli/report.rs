//! `rdma-probe report`: a trace summed up.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use probe_user::replay::{Window, replay};
use probe_user::report::units::duration;
use probe_user::report::{
    Filter, Layout, build, by_call, by_cq, by_peer, by_qp, by_site, write_groups, write_text,
};
use probe_user::trace::Reader;

use super::time::parse_ns;
use super::{UsageError, terminal_width};

/// Report what a recorded trace shows, per process
///
/// What was missed and which probes were not live comes first, then each process, those with most time in control calls
/// on top. Latency quantiles come from histograms: within 1/32 of the true value.
///
/// Exit status: 0 also for a trace that was cut off (the report says so), 1 when the file cannot be read or is no trace.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe report trace.jsonl
  rdma-probe report trace.jsonl.zst --process ib_write_bw --all
  rdma-probe report trace.jsonl --from 10s --to 20s --by peer
  rdma-probe report trace.jsonl --json | jq '.processes[] | {comm, r: .registration.count}'
  ssh host cat /var/tmp/trace.jsonl | rdma-probe report -")]
pub struct Args {
    /// Trace file, plain or compressed with zstd; `-` for standard input
    file: PathBuf,

    /// Print the report as JSON (schema rdma-report/1)
    #[arg(long)]
    json: bool,

    /// Show only this process, by command name or pid; may be repeated
    #[arg(long, value_name = "NAME|PID")]
    process: Vec<String>,

    /// Cut the recording by kind of call, by the peer that queue pairs talk to, by queue pair, by completion queue, or by
    /// the place in the program that makes the call (JSON schema rdma-groups/1)
    #[arg(long, value_enum, default_value = "process")]
    by: By,

    /// Count only calls that returned later than this after the beginning, such as 2.5s
    #[arg(long, value_name = "TIME", value_parser = parse_ns)]
    from: Option<u64>,

    /// Count only calls that returned earlier than this after the beginning
    #[arg(long, value_name = "TIME", value_parser = parse_ns)]
    to: Option<u64>,

    /// List every queue instead of the first 16
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Process,
    Call,
    Peer,
    Qp,
    Cq,
    CallSite,
}

/// # Errors
/// When the trace cannot be read to its end, or the report not be written.
pub fn run(args: Args) -> Result<ExitCode> {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from >= to
    {
        let wrong = format!("--from ({}) must be before --to ({})", duration(from), duration(to));
        return Err(UsageError(wrong).into());
    }
    let mut reader = Reader::open(&args.file)?;
    let model = replay(reader.by_ref(), Window { from_ns: args.from, to_ns: args.to })?;
    let filter = Filter(args.process);
    let rows = if args.all { usize::MAX } else { 16 };
    let layout = Layout { width: terminal_width(), rows };
    let groups = match args.by {
        By::Process => None,
        By::Call => Some(by_call(&model, &filter)),
        By::Peer => Some(by_peer(&model, &filter)),
        By::Qp => Some(by_qp(&model, &filter)),
        By::Cq => Some(by_cq(&model, &filter)),
        By::CallSite => Some(by_site(&model, &filter)),
    };
    let mut out = BufWriter::new(anstream::AutoStream::auto(io::stdout().lock()));
    match (groups, args.json) {
        (Some(groups), true) => writeln!(out, "{}", serde_json::to_string_pretty(&groups)?)?,
        (Some(groups), false) => write_groups(&groups, layout, &mut out)?,
        (None, json) => {
            let report = build(&model, Some(reader.notes()), &filter);
            if json {
                writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
            } else {
                write_text(&report, layout, &mut out)?;
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the report of a trace on standard error, for a command whose standard output is somebody else's.
///
/// # Errors
/// When the trace cannot be read, or the report not be written.
pub(super) fn print_on_stderr(file: &Path) -> Result<()> {
    let mut reader = Reader::open(file)?;
    let model = replay(reader.by_ref(), Window { from_ns: None, to_ns: None })?;
    let report = build(&model, Some(reader.notes()), &Filter(Vec::new()));
    let mut out = BufWriter::new(anstream::AutoStream::auto(io::stderr().lock()));
    write_text(&report, Layout { width: terminal_width(), rows: 16 }, &mut out)?;
    Ok(out.flush()?)
}
