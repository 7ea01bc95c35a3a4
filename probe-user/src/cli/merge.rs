//! `rdma-probe merge`: recordings of several hosts on one time line.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use probe_user::merge::{Merger, Summary};
use probe_user::report::table::{Align, Column, render};
use probe_user::report::units::{count, duration};
use probe_user::sample::{Host, OffsetFrom};

use super::{UsageError, terminal_width};

/// Put traces of several hosts on one time line and join both ends of each connection
///
/// The first trace's clock is the reference. How far the others are from it follows from the connections: a queue pair
/// is created before its peer can connect to it, a request arrives after it was sent. The offset is stated with the most
/// it can be wrong by. Queue pairs are joined by their numbers and GIDs. Where both ends were recorded with --messages,
/// every message sent is joined with its receive, which also narrows the clocks' offset to half a round trip.
///
/// Exit status: 0, 1 when a trace cannot be read or the result not be written, 2 for wrong arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe merge client.trace server.trace -o both.trace
  rdma-probe merge node*.trace.zst -o all.trace.zst && rdma-probe export all.trace.zst --format perfetto -o all.json
  rdma-probe merge a.trace b.trace -o both.trace --json | jq '.hosts[] | {host, offset_ns, bound_ns}'")]
pub struct Args {
    /// Traces to merge, each of one host; plain or compressed with zstd
    #[arg(required = true, num_args = 2.., value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// Merged trace to write, `-` for standard output; compressed when it ends in .zst
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Print what was found as JSON (schema rdma-merge/1)
    #[arg(long)]
    json: bool,
}

/// # Errors
/// When a trace cannot be read, or the result not be written.
pub fn run(args: Args) -> Result<ExitCode> {
    for (index, trace) in args.traces.iter().enumerate() {
        if trace.as_os_str() == "-" {
            bail!(UsageError(
                "'-': a trace to merge is read twice, which standard input cannot be".to_owned()
            ));
        }
        if args.traces[..index].contains(trace) {
            bail!(UsageError(format!("'{}' is named twice", trace.display())));
        }
        if same_file(trace, &args.output) {
            bail!(UsageError(format!("'{}' is both read and written", trace.display())));
        }
    }
    let summary = Merger::read(&args.traces)?.write(&args.output)?;
    // Where the trace itself goes to standard output, what is said about it must not.
    let mut out: Box<dyn Write> = if args.output.as_os_str() == "-" {
        Box::new(BufWriter::new(anstream::AutoStream::auto(io::stderr())))
    } else {
        Box::new(BufWriter::new(anstream::AutoStream::auto(io::stdout())))
    };
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&summary)?)?;
    } else {
        write_text(&summary, terminal_width(), &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn same_file(a: &std::path::Path, b: &std::path::Path) -> bool {
    a == b || a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
}

fn write_text(summary: &Summary, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let columns = [
        Column("host", Align::Left, 0),
        Column("kernel", Align::Left, 2),
        Column("offset", Align::Right, 0),
        Column("within", Align::Right, 0),
        Column("by", Align::Left, 0),
        Column("recording ended", Align::Left, 1),
    ];
    let rows: Vec<_> = summary.hosts.iter().map(row).collect();
    render(&columns, &rows, width).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(
        out,
        "{} connections joined, {} of them between recordings; {} queue pairs without the other end, {} ambiguous",
        count(summary.connections),
        count(summary.between_hosts),
        count(summary.without_peer),
        count(summary.ambiguous)
    )?;
    if summary.messages + summary.messages_unpaired > 0 {
        let shown = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
        let latency = &summary.message_latency_ns;
        writeln!(
            out,
            "{} messages joined, from post to poll p50 {}, p99 {}, max {}; {} without the other end",
            count(summary.messages),
            shown(latency.p50),
            shown(latency.p99),
            shown(latency.max),
            count(summary.messages_unpaired)
        )?;
    }
    Ok(())
}

fn row(host: &Host) -> Vec<String> {
    let sign = if host.offset_ns < 0 { "-" } else { "+" };
    let by = match host.offset_from {
        OffsetFrom::Reference => "reference",
        OffsetFrom::SameClock => "same clock",
        OffsetFrom::Connections => "connections",
        OffsetFrom::Contradiction => "connections, which contradict each other",
        OffsetFrom::WallClocks => "wall clocks alone",
    };
    vec![
        host.host.clone(),
        host.kernel.clone(),
        format!("{sign}{}", duration(host.offset_ns.unsigned_abs())),
        host.bound_ns.map_or_else(|| "unknown".to_owned(), |ns| format!("± {}", duration(ns))),
        by.to_owned(),
        if host.reason.is_empty() { "cut off".to_owned() } else { host.reason.clone() },
    ]
}
