//! `rdma-probe tap`: exact counts of the data path, without probes and without privilege.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use probe_user::tap::{Counts, Kind, Object, Reading, Tap, library, preload};

use super::UsageError;

/// How often the file of a command that has just started is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Count what a program posts and polls, exactly, with the preloaded tap
///
/// A command is started with `libverbs_tap.so` preloaded; a process that runs under it already is read with --pid.
/// Counts are those of the process itself, not of its children.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe tap -- ib_write_bw -d mlx5_0 server
  rdma-probe tap --json -- ib_send_lat
  rdma-probe tap --pid 4711

Exit status: that of the command.")]
pub struct Args {
    /// Read a process that runs under the tap
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// The preloaded library, when it is not beside this program
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Write the counts to a file instead of standard output, which the command may use
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also list what each thread did
    #[arg(long)]
    threads: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

/// # Errors
/// A process without the tap, a command that cannot be started, a library that is not found.
pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(pid) = args.pid {
        let tap = Tap::of(pid)?.with_context(|| {
            format!("process \"{pid}\" does not run under the tap, or has opened no device yet: start it with `rdma-probe tap -- COMMAND`")
        })?;
        print(&args, Some(&tap.read()?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some((program, rest)) = args.command.split_first() else {
        return Err(UsageError(
            "nothing to count: name a command after `--`, or a process with --pid".into(),
        )
        .into());
    };
    let library = match &args.library {
        Some(path) if path.is_file() => path.canonicalize()?,
        Some(path) => bail!("there is no library \"{}\"", path.display()),
        None => library().context("libverbs_tap.so is not beside this program: name it with --library")?,
    };
    let child = Command::new(program)
        .args(rest)
        .env("LD_PRELOAD", preload(&library))
        .spawn()
        .with_context(|| format!("cannot start \"{}\"", program.display()))?;
    let (status, tap) = follow(child)?;
    let reading = tap.map(|tap| tap.read()).transpose()?;
    print(&args, reading.as_ref())?;
    Ok(exit_code(status))
}

/// Waits for the command, and holds its file from the moment it makes one: the counts outlive the process.
fn follow(mut child: Child) -> Result<(ExitStatus, Option<Tap>)> {
    let started = Instant::now();
    let mut tap = None;
    loop {
        if tap.is_none() {
            // A process that is just ending cannot be looked into; that it has no file then is no failure.
            tap = Tap::of(child.id()).unwrap_or_default();
        }
        if tap.is_some() {
            return Ok((child.wait().context("cannot wait for the command")?, tap));
        }
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            return Ok((status, None));
        }
        let calm = started.elapsed() > Duration::from_secs(5);
        std::thread::sleep(if calm { LOOK_EVERY * 10 } else { LOOK_EVERY });
    }
}

/// As shells have it: 128 plus the signal.
fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn print(args: &Args, reading: Option<&Reading>) -> Result<()> {
    match &args.output {
        Some(path) => {
            let mut file = std::fs::File::create(path)
                .with_context(|| format!("cannot write \"{}\"", path.display()))?;
            write(args, reading, &mut file).with_context(|| format!("cannot write \"{}\"", path.display()))
        }
        None => write(args, reading, &mut io::stdout().lock()).context("cannot write the counts"),
    }
}

fn write(args: &Args, reading: Option<&Reading>, out: &mut impl Write) -> Result<()> {
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &reading)?;
        writeln!(out)?;
        return Ok(());
    }
    let Some(reading) = reading else {
        writeln!(out, "the command opened no RDMA device that the tap could see")?;
        return Ok(());
    };
    table(reading, args.threads, out)?;
    Ok(())
}

fn table(reading: &Reading, threads: bool, out: &mut impl Write) -> io::Result<()> {
    for object in &reading.objects {
        row(&name(object), object.kind, &object.counts, out)?;
        if threads {
            for thread in &object.threads {
                row(&format!("  thread {}", thread.tid), object.kind, &thread.counts, out)?;
            }
        }
    }
    for (name, counts) in [("retired", &reading.retired), ("unnamed", &reading.unnamed)] {
        if *counts != Counts::default() {
            row(name, Kind::Qp, counts, out)?;
            row(name, Kind::Cq, counts, out)?;
        }
    }
    if reading.uncounted != 0 {
        writeln!(out, "{} calls could not be counted", reading.uncounted)?;
    }
    if reading.untapped_contexts != 0 {
        writeln!(out, "{} contexts could not be tapped", reading.untapped_contexts)?;
    }
    if reading.foreign_libraries != 0 {
        writeln!(out, "a second libibverbs in the process is not tapped")?;
    }
    Ok(())
}

fn name(object: &Object) -> String {
    let gone = if object.gone { ", destroyed" } else { "" };
    match object.kind {
        Kind::Qp => format!("QP {}{gone}", object.number),
        Kind::Cq => format!("CQ {}{gone}", object.number),
        Kind::Srq => format!("SRQ {}{gone}", object.number),
    }
}

fn row(name: &str, kind: Kind, c: &Counts, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{name:<20}")?;
    if kind == Kind::Cq {
        writeln!(
            out,
            "polls {} (empty {}), completions {} (errors {}), notification requests {}",
            c.polls, c.empty_polls, c.cqes, c.cqe_errors, c.notifies
        )
    } else {
        writeln!(
            out,
            "posts {} (failed {}), WRs {} (signalled {}, inline {}), {} bytes; receives posted {}",
            c.post_calls, c.post_failed, c.wrs, c.signalled, c.inline, c.bytes, c.recv_wrs
        )
    }
}
