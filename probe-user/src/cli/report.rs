//! `rdma-probe report`: a trace summed up.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use probe_user::model::Model;
use probe_user::report::{Filter, Layout, build, write_text};
use probe_user::trace::{Notes, Reader};

use super::terminal_width;

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

    /// List every queue instead of the first 16
    #[arg(long)]
    all: bool,
}

/// # Errors
/// When the trace cannot be read to its end, or the report not be written.
pub fn run(args: Args) -> Result<ExitCode> {
    let (model, notes) = read(&args.file)?;
    let report = build(&model, Some(&notes), &Filter(args.process));
    if args.json {
        let mut out = BufWriter::new(io::stdout().lock());
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
        out.flush()?;
    } else {
        let mut out = BufWriter::new(anstream::AutoStream::auto(io::stdout().lock()));
        let rows = if args.all { usize::MAX } else { 16 };
        write_text(&report, Layout { width: terminal_width(), rows }, &mut out)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<(Model, Notes)> {
    let mut reader = Reader::open(file)?;
    let mut model = Model::new();
    for record in reader.by_ref() {
        model.push(&record?);
    }
    Ok((model, reader.notes().clone()))
}
