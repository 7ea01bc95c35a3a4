//! Holds the timing model of the emulated RNIC against published measurements.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use clap::Parser;
use rnic_emu::model::validate::{
    Judged, Series, builtin, json, judge, markdown, parse, plot, summarise, table,
};

/// Largest series file that is read.
const MAX_BYTES: u64 = 4 << 20;

const EXAMPLES: &str = "Examples:
  emu-validate                              every series, as a table
  emu-validate smart                        the series with \"smart\" in their names
  emu-validate --json                       for programs
  emu-validate --plot docs/plots            and an SVG drawing of each
  emu-validate --series mine.toml           series of your own (form: rnic-emu/validation/*.toml)
  emu-validate --profile my-nic.toml        against a profile of your own

Exit status: 0; 1 when a negative control fails or something cannot be read or written; 2 for a name or option that does
not exist.";

/// Runs published measurements through the timing model and prints published against modelled.
#[derive(Parser)]
#[command(name = "emu-validate", after_help = EXAMPLES)]
struct Args {
    /// Only series whose name contains one of these.
    names: Vec<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Print Markdown, as in the documentation.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Write an SVG drawing of each series into this folder.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Series from these files instead of the built-in ones.
    #[arg(long, value_name = "FILE")]
    series: Vec<PathBuf>,
    /// Run every series on this profile (name or TOML file) instead of its own.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
}

/// A mistake on the command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("emu-validate: {error:#}");
            if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Returns whether every control held.
fn run(args: &Args) -> Result<bool> {
    let wanted = wanted(args)?;
    if let Some(folder) = &args.plot {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {folder:?}"))?;
    }
    let judged = judge_all(wanted)?;
    let summaries = summarise(&judged);
    print(if args.json {
        format!("{:#}\n", json(&judged, &summaries))
    } else if args.markdown {
        markdown(&judged, &summaries)
    } else {
        table(&judged, &summaries)
    })?;
    if let Some(folder) = &args.plot {
        // One point is no curve.
        for one in judged.iter().filter(|j| j.points.len() > 1) {
            let path = folder.join(format!("{}.svg", one.series.id));
            fs::write(&path, plot(one)).with_context(|| format!("cannot write {path:?}"))?;
        }
    }
    Ok(judged.iter().filter_map(|j| j.control).all(|c| c.holds))
}

/// Prints; a reader that has seen enough (`| head`) is no failure.
fn print(text: String) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot print"),
        _ => Ok(()),
    }
}

fn wanted(args: &Args) -> Result<Vec<Series>> {
    let mut series = Vec::new();
    if args.series.is_empty() {
        series = builtin()?;
    }
    for path in &args.series {
        series.extend(read(path)?);
    }
    if !args.names.is_empty() {
        if let Some(name) = args.names.iter().find(|n| !series.iter().any(|s| s.id.contains(n.as_str()))) {
            let known: Vec<_> = series.iter().map(|s| s.id.as_str()).collect();
            bail!(Usage(format!("no series has \"{name}\" in its name; there are {}", known.join(", "))));
        }
        series.retain(|s| args.names.iter().any(|n| s.id.contains(n.as_str())));
    }
    if let Some(profile) = &args.profile {
        series.iter_mut().for_each(|s| s.profile.clone_from(profile));
    }
    Ok(series)
}

fn read(path: &Path) -> Result<Vec<Series>> {
    let size = fs::metadata(path).with_context(|| format!("cannot read {path:?}"))?.len();
    if size > MAX_BYTES {
        bail!("{path:?} is {size} bytes long: a series file has at most {MAX_BYTES}");
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))?;
    Ok(parse(&text, &path.display().to_string())?)
}

/// Judges every series, on all cores.
fn judge_all(series: Vec<Series>) -> Result<Vec<Judged>> {
    let work = series
        .into_iter()
        .map(|s| Ok((s.profile().with_context(|| format!("series \"{}\"", s.id))?, s)))
        .collect::<Result<Vec<_>>>()?;
    let next = AtomicUsize::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut judged: Vec<(usize, Judged)> = std::thread::scope(|scope| {
        let run = || {
            let mut mine = Vec::new();
            while let Some((i, (profile, series))) = {
                let i = next.fetch_add(1, Ordering::Relaxed);
                work.get(i).map(|w| (i, w))
            } {
                mine.push((i, judge(series, profile)));
            }
            mine
        };
        let threads: Vec<_> = (0..cores.min(work.len().max(1))).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap_or_default()).collect()
    });
    judged.sort_by_key(|(i, _)| *i);
    if judged.len() != work.len() {
        bail!("a series could not be run to its end");
    }
    Ok(judged.into_iter().map(|(_, j)| j).collect())
}
