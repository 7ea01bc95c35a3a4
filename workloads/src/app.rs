//! What each subcommand does.

use crate::bench::Bench;
use crate::cli::{Cli, Command, Common};
use crate::compare::{self, Point};
use crate::device::Device;
use crate::emulated;
use crate::error::{self, usage};
use crate::exchange::Wire;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::responder;
use crate::suite::{self, Workload};
use crate::{memory, print, truth};
use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use std::io::Write as _;
use std::net::{Ipv6Addr, TcpListener};

/// Runs the command line.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::List { json } => list(json),
        Command::Run { name, variants, values, common } => {
            let workload = suite::find(&name)?;
            for key in &variants {
                if workload.about().variant(key).is_none() {
                    let known: Vec<_> = workload.about().variants.iter().map(|variant| variant.key).collect();
                    return Err(usage(format!("{name} has no variant {key:?}; it has {}", known.join(", "))));
                }
            }
            if values.is_some() && workload.about().sweep.is_none() {
                return Err(usage(format!("{name} sweeps nothing; leave --values out")));
            }
            measure(workload, &variants, values.as_deref(), &common)
        }
        Command::Compare { name, probe: _, common } => {
            let workloads = if name == "all" { suite::ALL.to_vec() } else { vec![suite::find(&name)?] };
            compare(&workloads, name == "all", &common)
        }
    }
}

fn list(json: bool) -> Result<()> {
    if !json {
        return say(&print::list(suite::ALL));
    }
    let entries: Vec<_> = suite::ALL.iter().map(|workload| entry(*workload)).collect();
    say_json(&entries)
}

fn entry(workload: &dyn Workload) -> serde_json::Value {
    let about = workload.about();
    serde_json::json!({
        "name": about.name,
        "question": about.question,
        "claim": about.claim,
        "note": about.note,
        "signal": about.signal,
        "variants": about.variants.iter().map(|variant| serde_json::json!({"key": variant.key, "label": variant.label}))
            .collect::<Vec<_>>(),
        "comparisons": about.comparisons.iter().map(|comparison| serde_json::json!({
            "title": comparison.title, "baseline": comparison.baseline, "optimised": comparison.optimised,
            "metric": comparison.metric, "reality": comparison.reality,
        })).collect::<Vec<_>>(),
        "sweep": about.sweep.as_ref().map(|sweep| serde_json::json!({
            "parameter": sweep.parameter, "unit": sweep.unit, "values": sweep.values, "variants": sweep.variants,
        })),
    })
}

/// Opens the device, starting over under the emulated one where there is none to open.
fn device(common: &Common) -> Result<Device> {
    let wanted = if common.emulated { Some("emu0") } else { common.device.as_deref() };
    let emulated_wanted = common.emulated || wanted.is_some_and(|name| name.starts_with("emu"));
    if emulated_wanted && !emulated::is_loaded() {
        emulated::start_over(common.profile.as_deref())?;
    }
    match Device::choose(wanted)? {
        Some(device) => Ok(device),
        None => {
            if !emulated::is_loaded() {
                eprintln!("rdma-workload: no usable RDMA device here; using the emulated RNIC");
            }
            match emulated::start_over(common.profile.as_deref())? {}
        }
    }
}

/// The bench, or `None` when this process was asked to serve and has done so.
fn bench(common: &Common, sweeping: bool) -> Result<Option<Bench>> {
    let options = common.options(sweeping);
    options.check()?;
    if common.port == 0 {
        return Err(usage("--port 0 names no port; give 1 to 65535"));
    }
    let device = device(common)?;
    if common.reserve_hugepages {
        memory::allow_reserving();
    }
    if common.server {
        serve(&device, common.port)?;
        return Ok(None);
    }
    match &common.client {
        Some(host) => Bench::with_peer(device, options, host, common.port).map(Some),
        None => Ok(Some(Bench::loopback(device, options))),
    }
}

fn serve(device: &Device, port: u16) -> Result<()> {
    // An IPv6 socket takes IPv4 as well; a host without IPv6 gets an IPv4 one.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
        .with_context(|| format!("listening on TCP port {port}; choose another with --port"))?;
    eprintln!("rdma-workload: serving {} on TCP port {port}", device.info.name);
    let mut wire = Wire::accept(&listener)?;
    let before = truth::total();
    eprintln!("rdma-workload: {} connected", wire.peer());
    responder::serve(device, &mut wire)?;
    say_json(&serde_json::json!({ "served": wire.peer(), "ground_truth": truth::total() - before }))
}

fn measure(
    workload: &dyn Workload,
    variants: &[String],
    values: Option<&[u64]>,
    common: &Common,
) -> Result<()> {
    let Some(bench) = bench(common, true)? else { return Ok(()) };
    let before = truth::total();
    let mut progress = Progress::new();
    let points = compare::sweep(&bench, workload, variants, values, &mut progress)?;
    // A single variant is measured by itself: its ground truth must not contain the demonstrations' failures.
    let findings = if variants.is_empty() { workload.demonstrate(&bench)? } else { Vec::new() };
    drop(progress);
    let about = workload.about();
    if common.json {
        return say_json(&RunOutput {
            name: about.name,
            claim: about.claim,
            device: bench.device().label(),
            clock: crate::outcome::clock(bench.device().kind),
            parameter: about.sweep.as_ref().map(|sweep| sweep.parameter),
            unit: about.sweep.as_ref().map(|sweep| sweep.unit),
            points: &points,
            findings: &findings,
            ground_truth: truth::total() - before,
        });
    }
    say(&format!(
        "{} on {} ({})\n  {}\n\n{}  ({})\n{}",
        about.name,
        bench.device().info.name,
        bench.device().kind,
        about.question,
        print::sweep(about, &points),
        crate::outcome::clock(bench.device().kind),
        print::findings(&findings)
    ))
}

/// JSON of `run`.
#[derive(Serialize)]
struct RunOutput<'a> {
    name: &'a str,
    claim: &'a str,
    device: crate::device::DeviceLabel,
    clock: String,
    parameter: Option<&'a str>,
    unit: Option<&'a str>,
    points: &'a [Point],
    findings: &'a [suite::Finding],
    ground_truth: truth::Truth,
}

fn compare(workloads: &[&dyn Workload], all: bool, common: &Common) -> Result<()> {
    let Some(bench) = bench(common, false)? else { return Ok(()) };
    let mut progress = Progress::new();
    let mut results = Vec::new();
    for workload in workloads {
        let result = compare::compare(&bench, *workload, &mut progress);
        match result {
            // One workload that cannot run here must not hide what the others found.
            Err(error) if all && error::exit_status(&error) <= 2 => {
                results.push(Err(Failed {
                    name: workload.about().name,
                    claim: workload.about().claim,
                    error: error::one_line(&error),
                }));
            }
            result => results.push(Ok(result?)),
        }
    }
    drop(progress);
    match (&results[..], all, common.json) {
        (_, true, true) => say_json(&results.iter().map(either).collect::<Vec<_>>())?,
        (_, true, false) => say(&print::claims(&results))?,
        (results, false, json) => {
            for outcome in results.iter().flatten() {
                if json { say_json(outcome)? } else { say(&print::outcome(outcome))? }
            }
        }
    }
    let failed = results.iter().filter(|result| result.is_err()).count();
    if failed > 0 {
        bail!("{failed} of {} workloads could not run; see above", results.len());
    }
    Ok(())
}

/// A workload that could not run, among others that could.
#[derive(Debug, Serialize)]
pub struct Failed {
    /// Workload.
    pub name: &'static str,
    /// The claim it would have put to the test.
    pub claim: &'static str,
    /// Why it could not run.
    pub error: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Either<'a> {
    Ran(&'a Outcome),
    Failed(&'a Failed),
}

fn either(result: &Result<Outcome, Failed>) -> Either<'_> {
    match result {
        Ok(outcome) => Either::Ran(outcome),
        Err(failed) => Either::Failed(failed),
    }
}

/// Prints to standard output; a reader that has gone away is the end of the run, not a failure.
fn say(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("writing to standard output"),
    }
}

fn say_json(value: &impl Serialize) -> Result<()> {
    say(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
