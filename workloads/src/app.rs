//! What each subcommand does.

use crate::bench::Bench;
use crate::cli::{Cli, Command, Common};
use crate::compare::{self, Point};
use crate::device::{Device, DeviceKind, DeviceLabel};
use crate::emulated::Settings;
use crate::error::{self, usage};
use crate::exchange::Wire;
use crate::outcome::{Outcome, clock};
use crate::output::{emit, json, note};
use crate::probe::{self, Checked};
use crate::progress::Progress;
use crate::suite::{self, Finding, Workload};
use crate::{emulated, memory, plot, predict, print, responder, sick, truth};
use anyhow::{Context as _, Result, bail};
use rnic_emu::device::speed::Speed;
use serde::Serialize;
use std::ffi::OsString;
use std::net::{Ipv6Addr, TcpListener};
use std::time::Duration;

/// Runs the command line.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::List { json: false } => emit(None, &print::list(suite::ALL)),
        Command::List { json: true } => {
            emit(None, &json(&suite::ALL.iter().map(|workload| workload.about()).collect::<Vec<_>>())?)
        }
        Command::Run { name, variants, values, common } => {
            let workload = suite::find(&name)?;
            let about = workload.about();
            for key in &variants {
                if about.variant(key).is_none() {
                    let known: Vec<_> = about.variants.iter().map(|variant| variant.key).collect();
                    return Err(usage(format!("{name} has no variant {key:?}; it has {}", known.join(", "))));
                }
            }
            if values.is_some() && about.sweep.is_none() {
                return Err(usage(format!("{name} sweeps nothing; leave --values out")));
            }
            if values.iter().flatten().any(|&value| value == 0 || value > 1 << 40) {
                return Err(usage(format!("a value of --values is out of range; give 1 to {}", 1u64 << 40)));
            }
            measure(workload, &variants, values.as_deref(), &common)
        }
        Command::Sick { name: None, .. } => emit(None, &sick::list()),
        Command::Sick { name: Some(name), healthy, seconds, device, emulated } => {
            let program = sick::find(&name)?;
            if !(seconds.is_finite() && (0.1..=3600.0).contains(&seconds)) {
                return Err(usage(format!("--seconds {seconds} is out of range; give 0.1 to 3600")));
            }
            sick::run(program, healthy, Duration::from_secs_f64(seconds), || {
                open(device.as_deref(), emulated, &program.settings())
            })
        }
        Command::Compare { name, comparison, probe, common } => {
            let workloads = if name == "all" { suite::ALL.to_vec() } else { vec![suite::find(&name)?] };
            if common.plot.is_some() && workloads.len() > 1 {
                return Err(usage("--plot draws one workload; name it instead of \"all\""));
            }
            if probe && (common.client.is_some() || common.server) {
                return Err(usage("--probe checks this host's own process; leave --server and --client out"));
            }
            let only = match comparison {
                None => None,
                Some(_) if name == "all" => {
                    return Err(usage("--comparison picks one of a workload's; name the workload"));
                }
                Some(number) => {
                    let count = workloads[0].about().comparisons.len();
                    if number == 0 || number > count {
                        return Err(usage(format!(
                            "--comparison {number} is out of range; {name} has 1 to {count}"
                        )));
                    }
                    Some(number - 1)
                }
            };
            compare(&workloads, name == "all", only, probe, &common)
        }
    }
}

/// Opens the device, starting over under the emulated one where there is none to open.
fn device(common: &Common) -> Result<Device> {
    let settings = Settings { profile: common.profile.clone(), speed: common.speed.clone() };
    let device = open(common.device.as_deref(), common.emulated, &settings)?;
    if (common.profile.is_some() || common.speed.is_some()) && device.kind != DeviceKind::Emulated {
        return Err(usage(format!(
            "--profile and --speed are for the emulated device, and {} is a {}; add --emulated",
            device.info.name, device.kind
        )));
    }
    Ok(device)
}

/// The device of that name, or the first there is, or the emulated one with these settings.
fn open(named: Option<&str>, emulated: bool, settings: &Settings) -> Result<Device> {
    let wanted = if emulated { Some("emu0") } else { named };
    let emulated_wanted = wanted.is_some_and(|name| name.starts_with("emu"));
    if emulated_wanted && !emulated::is_loaded() {
        match emulated::start_over(settings)? {}
    }
    match Device::choose(wanted)? {
        Some(device) => Ok(device),
        None => {
            if !emulated::is_loaded() {
                note!("no usable RDMA device here; using the emulated RNIC");
            }
            match emulated::start_over(settings)? {}
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
    if let Some(name) = &common.profile {
        predict::profile(name)?;
    }
    if let Some(speed) = &common.speed {
        Speed::parse("--speed", speed).map_err(|error| usage(error.to_string()))?;
    }
    let device = device(common)?;
    if common.reserve_hugepages {
        let left = memory::clean_up();
        if left > 0 {
            note!("gave back {left} huge pages that a killed run had reserved");
        }
        memory::allow_reserving();
    }
    if common.server {
        serve(&device, common)?;
        return Ok(None);
    }
    match &common.client {
        Some(host) => Bench::with_peer(device, options, host, common.port).map(Some),
        None => Ok(Some(Bench::loopback(device, options))),
    }
}

fn serve(device: &Device, common: &Common) -> Result<()> {
    let port = common.port;
    // An IPv6 socket takes IPv4 as well; a host without IPv6 gets an IPv4 one.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
        .with_context(|| format!("listening on TCP port {port}; choose another with --port"))?;
    note!("serving {} on TCP port {port}", device.info.name);
    let mut wire = Wire::accept(&listener)?;
    let before = truth::total();
    note!("{} connected", wire.peer());
    responder::serve(device, &mut wire)?;
    let served = Served { served: wire.peer(), ground_truth: truth::total() - before };
    emit(common.output.as_deref(), &json(&served)?)
}

/// What a responder did, when its requester has gone.
#[derive(Serialize)]
struct Served<'a> {
    served: &'a str,
    ground_truth: truth::Truth,
}

fn measure(
    workload: &dyn Workload,
    variants: &[String],
    values: Option<&[u64]>,
    common: &Common,
) -> Result<()> {
    let Some(bench) = bench(common, true)? else { return Ok(()) };
    let mut progress = Progress::new(common.progress);
    let points = compare::sweep(&bench, workload, variants, values, &mut progress)?;
    // A single variant is measured by itself: its ground truth must not contain the demonstrations' failures.
    let findings = if variants.is_empty() { workload.demonstrate(&bench)? } else { Vec::new() };
    drop(progress);
    draw(workload, &points, &bench, common)?;
    let about = workload.about();
    let kind = bench.device().kind;
    if common.json {
        let measured = Measured {
            name: about.name,
            claim: about.claim,
            pid: std::process::id(),
            device: bench.device().label(),
            clock: clock_of(kind),
            parameter: about.sweep.as_ref().map(|sweep| sweep.parameter),
            unit: about.sweep.as_ref().map(|sweep| sweep.unit),
            points: &points,
            findings: &findings,
            ground_truth: truth::total(),
        };
        // Only what the process itself does until its end may follow: the ground truth covers what is destroyed below.
        return finish(bench, measured, common);
    }
    let text = format!(
        "{} on {} ({kind})\n  {}\n\n{}  ({})\n{}",
        about.name,
        bench.device().info.name,
        about.question,
        print::sweep(about, &points),
        clock_of(kind),
        print::findings(&findings)
    );
    emit(common.output.as_deref(), &text)
}

/// Destroys what is left before the final count, so that it holds every call the process makes.
fn finish(bench: Bench, mut measured: Measured<'_>, common: &Common) -> Result<()> {
    drop(bench);
    measured.ground_truth = truth::total();
    emit(common.output.as_deref(), &json(&measured)?)
}

/// JSON of `run`.
#[derive(Serialize)]
struct Measured<'a> {
    name: &'a str,
    claim: &'a str,
    pid: u32,
    device: DeviceLabel,
    clock: String,
    parameter: Option<&'a str>,
    unit: Option<&'a str>,
    points: &'a [Point],
    findings: &'a [Finding],
    ground_truth: truth::Truth,
}

/// Draws a sweep into the file asked for.
fn draw(workload: &dyn Workload, points: &[Point], bench: &Bench, common: &Common) -> Result<()> {
    let Some(path) = &common.plot else { return Ok(()) };
    let device = bench.device();
    let subtitle = format!("{} ({}): {}", device.info.name, device.kind, clock_of(device.kind));
    match plot::sweep(workload.about(), points, &subtitle) {
        Some(svg) => emit(Some(path), &svg),
        None => Err(usage(format!(
            "{} sweeps nothing that could be drawn; leave --plot out",
            workload.about().name
        ))),
    }
}

fn compare(
    workloads: &[&dyn Workload],
    all: bool,
    only: Option<usize>,
    probe: bool,
    common: &Common,
) -> Result<()> {
    let Some(bench) = bench(common, false)? else { return Ok(()) };
    let mut progress = Progress::new(common.progress);
    let mut results = Vec::new();
    for workload in workloads {
        let result = compare::compare(&bench, *workload, only, &mut progress).and_then(|mut outcome| {
            if probe {
                outcome.probes = Some(cross_check(*workload, &bench, common, &mut progress)?);
            }
            if common.plot.is_some() {
                let points = compare::sweep(&bench, *workload, &[], None, &mut progress)?;
                draw(*workload, &points, &bench, common)?;
            }
            Ok(outcome)
        });
        match result {
            // One workload that cannot run here must not hide what the others found.
            Err(error) if all && error::exit_status(&error) <= 2 => {
                let about = workload.about();
                results.push(Err(Failed {
                    name: about.name,
                    claim: about.claim,
                    error: error::one_line(&error),
                }));
            }
            result => results.push(Ok(result?)),
        }
    }
    drop(progress);
    let text = match (all, common.json) {
        (true, true) => json(&results.iter().map(either).collect::<Vec<_>>())?,
        (true, false) => print::claims(&results),
        (false, true) => results.iter().flatten().map(json).collect::<Result<String>>()?,
        (false, false) => results.iter().flatten().map(print::outcome).collect(),
    };
    emit(common.output.as_deref(), &text)?;
    let failed = results.iter().filter(|result| result.is_err()).count();
    if failed > 0 {
        bail!("{failed} of {} workloads could not run; see above", results.len());
    }
    Ok(())
}

/// Runs every variant that takes part in a comparison under the profiler.
fn cross_check(
    workload: &dyn Workload,
    bench: &Bench,
    common: &Common,
    progress: &mut Progress,
) -> Result<Vec<Checked>> {
    let about = workload.about();
    let mut checked = Vec::new();
    for variant in about.variants {
        crate::interrupt::check()?;
        progress.say(&format!("{}: {} under the probes", about.name, variant.key));
        let mut arguments: Vec<OsString> =
            ["run", about.name, "--variant", variant.key, "--seconds", "0.4", "--pairs", "1", "--device"]
                .map(OsString::from)
                .into();
        arguments.push(bench.device().info.name.clone().into());
        if let Some(sweep) = about.sweep.as_ref().filter(|sweep| sweep.variants.contains(&variant.key)) {
            arguments.extend(["--values".into(), sweep.usual.to_string().into()]);
        }
        if let Some(profile) = &common.profile {
            arguments.extend(["--profile".into(), profile.into()]);
        }
        checked.push(probe::variant(variant.key, &arguments));
    }
    Ok(checked)
}

fn clock_of(kind: DeviceKind) -> String {
    clock(kind, emulated::speed().as_deref(), &emulated::profile())
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
