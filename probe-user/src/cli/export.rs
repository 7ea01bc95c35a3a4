//! `rdma-probe export`: a trace in the formats of other tools.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use probe_user::export::{Csv, Exporter, Folded, MetricsFormat, Perfetto, Weight, write_metrics};
use probe_user::model::Model;
use probe_user::sample::{Call, Record};
use probe_user::trace::Reader;

use super::UsageError;

/// Write a trace in the format of another tool
///
/// perfetto: JSON for ui.perfetto.dev and chrome://tracing. csv: one file per table, into the folder named by -o.
/// folded: call stacks for flame graphs. openmetrics: totals for Prometheus. Memory does not grow with the trace.
///
/// Exit status: 0, 1 when the trace cannot be read to its end or the output not be written, 2 for wrong arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe export trace.jsonl --format perfetto -o trace.json
  rdma-probe export trace.jsonl.zst --format csv -o tables/
  rdma-probe export trace.jsonl --format folded --weight time | flamegraph.pl > registrations.svg
  rdma-probe export trace.jsonl --format openmetrics")]
pub struct Args {
    /// Trace file, plain or compressed with zstd; `-` for standard input
    file: PathBuf,

    /// Format to write
    #[arg(long, value_enum)]
    format: Format,

    /// File to write, or folder for csv; standard output where not given
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,

    /// Replace what is there
    #[arg(long)]
    force: bool,

    /// Calls whose stacks are folded, such as reg_mr or create_qp; may be repeated
    #[arg(long, value_name = "CALL", value_parser = parse_call)]
    call: Vec<Call>,

    /// What the width of a folded frame stands for
    #[arg(long, value_enum, default_value = "calls")]
    weight: WeightArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Perfetto,
    Csv,
    Folded,
    Openmetrics,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum WeightArg {
    Calls,
    Time,
    Bytes,
}

fn parse_call(text: &str) -> Result<Call, String> {
    match serde_json::from_value(text.into()) {
        Ok(Call::Unknown) | Err(_) => {
            Err("no such call; names are those of a trace, such as reg_mr".to_owned())
        }
        Ok(call) => Ok(call),
    }
}

/// # Errors
/// When the trace cannot be read or the output not be written.
pub fn run(args: Args) -> Result<ExitCode> {
    let mut reader = Reader::open(&args.file)?;
    match args.format {
        Format::Csv => {
            let Some(folder) = &args.output else {
                let wrong = "--format csv writes several files: name a folder for them with -o".to_owned();
                return Err(UsageError(wrong).into());
            };
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make '{}'", folder.display()))?;
            let csv =
                Csv::create(folder, args.force).context("cannot write the tables (--force replaces them)")?;
            drive(&mut reader, csv)?;
        }
        Format::Perfetto => drive(&mut reader, Perfetto::new(output(&args)?))?,
        Format::Folded => {
            let calls =
                if args.call.is_empty() { vec![Call::RegMr, Call::RegDmabufMr] } else { args.call.clone() };
            let weight = match args.weight {
                WeightArg::Calls => Weight::Calls,
                WeightArg::Time => Weight::Time,
                WeightArg::Bytes => Weight::Bytes,
            };
            drive(&mut reader, Folded::new(output(&args)?, weight, calls))?;
        }
        Format::Openmetrics => drive(&mut reader, Totals { model: Model::new(), out: output(&args)? })?,
    }
    if let Some(line) = reader.notes().cut_off_line {
        eprintln!("rdma-probe: the trace is cut off in line {line}; what is before it was exported");
    }
    Ok(ExitCode::SUCCESS)
}

fn drive(reader: &mut Reader, mut exporter: impl Exporter) -> Result<()> {
    for record in reader {
        exporter.record(&record?)?;
    }
    exporter.finish()?;
    Ok(())
}

/// The file named by `-o`, private like the trace it comes from, or standard output.
fn output(args: &Args) -> Result<Box<dyn Write>> {
    let Some(path) = args.output.as_deref().filter(|path| *path != Path::new("-")) else {
        return Ok(Box::new(BufWriter::new(io::stdout().lock())));
    };
    let mut options = OpenOptions::new();
    let options = options.write(true).mode(0o600);
    let options = if args.force { options.create(true).truncate(true) } else { options.create_new(true) };
    let file = options
        .open(path)
        .with_context(|| format!("cannot write '{}' (--force replaces an existing file)", path.display()))?;
    Ok(Box::new(BufWriter::new(file)))
}

/// Totals are those at the end.
struct Totals {
    model: Model,
    out: Box<dyn Write>,
}

impl Exporter for Totals {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.model.push(record);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        write_metrics(&self.model, MetricsFormat::OpenMetrics, &mut self.out)?;
        self.out.flush()
    }
}
