//! `rdma-probe count`: the posts and polls of running processes, counted by probes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use probe_user::collect::{Options, Posts, Session};
use probe_user::data_path::{Failed, Object, Reading, Source};
use probe_user::report::{failed_request, refused_request, wc_status};
use probe_user::sample::{Probe, ProcessId, Record, Verdict};
use probe_user::tap::Kind;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::posts::{self, Which};
use super::{UsageError, watch};

/// How often messages are taken in.
const TICK: Duration = Duration::from_millis(20);
/// How often counts are read: several times within the second for which the session keeps those of an ended process.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Count the posts and polls of a process that already runs, on stock packages, by probes on its data path
///
/// Posts, work requests, polls and completions from now on are counted, per queue pair and completion queue, of
/// the process and all its descendants: every one as long as that costs a process no more of its CPU time than
/// --overhead, else a share of them, and the counts are then estimates, with the share and their error beside them.
/// `--data-path full` counts every one whatever that costs. What a hit costs depends on the probed instruction, which
/// is told: about 0.2 µs where the kernel has optimised it, 0.4 µs where it emulates it, 3 to 16 µs where it
/// single-steps it, and a return costs 0.25 µs more.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe count --pid 4711 --duration 10s
  rdma-probe count --pid 4711 --json             until the process ends, or Ctrl-C
  rdma-probe count --pid 4711 --data-path full   every one, whatever that costs the process

Exit status: 0 when it was counted, 1 when nothing could be attached, 2 on a usage error.")]
pub struct Args {
    /// The process (repeatable)
    #[arg(long = "pid", value_name = "PID", required = true)]
    pids: Vec<u32>,
    /// How long to count; until the processes end when not given
    #[arg(long, short, value_name = "TIME", value_parser = super::time::parse_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    posts: posts::Args,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// # Errors
/// A process that is gone or cannot be looked into; a kernel that allows no probes.
pub fn run(args: Args) -> Result<ExitCode> {
    watch::must_exist(&args.pids)?;
    let asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked_to_end)).context("cannot handle signals")?;
    }
    let data_path = args.posts.posts(Which::Sampled);
    if data_path == Posts::Off {
        bail!(UsageError(
            "--data-path off: there would be nothing to count; take sampled or full".to_owned()
        ));
    }
    let began = Instant::now();
    let mut session =
        Session::start(Options { kernel: false, data_path, fire_taps: true, ..Options::default() });
    posts::announce(data_path, &session);
    watch::with_descendants(&mut session, &args.pids)?;
    session.settle();
    eprintln!("rdma-probe: in place after {:.2} s; counting", began.elapsed().as_secs_f64());
    let began = Instant::now();
    let (mut probes, mut broken) = (Vec::new(), None);
    let mut readings = BTreeMap::new();
    let mut next_look = began;
    loop {
        if Instant::now() >= next_look {
            // The session forgets a process some time after its end.
            readings.extend(session.data_path());
            next_look = Instant::now() + LOOK_EVERY;
        }
        let told = probes.len();
        for record in session.take() {
            note(record, &mut probes, &mut broken);
        }
        if !args.json {
            probes.iter().skip(told).for_each(tell);
        }
        let time_is_up = args.duration.is_some_and(|most| began.elapsed() >= most);
        if session.all_ended() || time_is_up || asked_to_end.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(TICK);
    }
    readings.extend(session.data_path());
    let lost = session.lost();
    for record in session.finish() {
        note(record, &mut probes, &mut broken);
    }
    if !probes.iter().any(|probe| probe.verdict == Verdict::Live) {
        let mut whys = probes.iter().chain(&broken).map(|probe| probe.verdict.words());
        let why = whys.find(|(_, why)| !why.is_empty());
        let none = "none of the processes has opened an RDMA device".to_owned();
        bail!("no probe could be attached: {}", why.map_or(none, |(word, why)| format!("{word}: {why}")));
    }
    let mut out = io::stdout().lock();
    if args.json {
        let processes: Vec<_> = readings
            .iter()
            .map(|(id, r)| json!({"pid": id.pid, "total": r.total(), "data_path": r}))
            .collect();
        let all = json!({"probes": probes, "processes": processes, "uncounted": lost.uncounted});
        serde_json::to_writer_pretty(&mut out, &all).context("cannot write the counts")?;
        writeln!(out)?;
    } else {
        table(&readings, &mut out)?;
        if lost.uncounted != 0 {
            writeln!(out, "{} hits found a full table and are not counted", lost.uncounted)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes in a probe of the data path, or the first other one that could not be attached: where there is none of the data path
/// at all, it says why.
fn note(record: Record, probes: &mut Vec<Probe>, broken: &mut Option<Probe>) {
    let Record::Probe(probe) = record else { return };
    if probe.name.starts_with("data-path") {
        probes.push(probe);
    } else if matches!(probe.verdict, Verdict::Broken { .. } | Verdict::Denied { .. }) {
        broken.get_or_insert(probe);
    }
}

fn tell(probe: &Probe) {
    let (word, why) = probe.verdict.words();
    eprintln!("{:<34} {:<8} {} {}", probe.name, word, probe.place, why);
}

fn table(readings: &BTreeMap<ProcessId, Reading>, out: &mut impl Write) -> io::Result<()> {
    for (id, reading) in readings {
        writeln!(out, "process {}", id.pid)?;
        for object in &reading.objects {
            row(object, out)?;
        }
        for (source, cost) in &reading.costs {
            if let Some(ns) = cost.hit_ns {
                let returns = cost.return_ns.map(|ns| format!(", a return {ns} ns more")).unwrap_or_default();
                writeln!(out, "  a hit ({}) costs {ns} ns on this machine{returns}", name_of(*source))?;
            }
        }
        if let Some(share) = reading.overhead {
            write!(out, "  hits have cost {:.2} % of its CPU time", share * 100.0)?;
            let own = reading
                .profiler
                .map(|cpus| format!("; the profiler itself takes {:.1} % of a CPU", cpus * 100.0));
            writeln!(out, "{}", own.unwrap_or_default())?;
        }
        let parts = ["posts", "polls"].into_iter().zip(&reading.slices);
        for (part, slices) in parts.filter_map(|(part, slices)| Some((part, slices.as_ref()?))) {
            let bound =
                slices.error.map_or("of unknown error".to_owned(), |e| format!("±{:.1} %", e * 100.0));
            write!(
                out,
                "  the provider's {part}: {} slices, {:.2} times as slow in them; estimates {bound}",
                slices.slices, slices.slowdown
            )?;
            let whys = slices.refused.iter().chain(&slices.unbounded);
            writeln!(out, "{}", whys.map(|why| format!("; {why}")).collect::<String>())?;
        }
        if reading.unlisted != 0 {
            let c = &reading.unlisted_counts;
            writeln!(
                out,
                "  {} others, gone: posts {}, WRs {}, completions {}",
                reading.unlisted, c.post_calls, c.wrs, c.cqes
            )?;
        }
        for failure in &reading.failures {
            let (count, number, code) = (failure.count, failure.number, failure.code);
            match failure.what {
                Failed::Cqe => {
                    let name = wc_status(code);
                    writeln!(out, "  QP {number}: {count} completions with status {code} ({name})")?;
                }
                Failed::SharedReceive => {
                    writeln!(out, "  SRQ {number}: {count} posts failed: {}", errno(code))?;
                }
                Failed::Post => writeln!(out, "  QP {number}: {count} posts failed: {}", errno(code))?,
                Failed::Receive => {
                    writeln!(out, "  QP {number}: {count} posts of receives failed: {}", errno(code))?;
                }
            }
            let first = match failure.what {
                Failed::Cqe => failed_request(&failure.first),
                _ => refused_request(&failure.first),
            };
            writeln!(out, "    the first: {first}")?;
        }
    }
    Ok(())
}

fn name_of(source: Source) -> &'static str {
    match source {
        Source::Tap => "site of the tap",
        Source::Emulator => "site of the emulated device",
        Source::Function => "function of the provider",
    }
}

fn errno(code: u32) -> io::Error {
    io::Error::from_raw_os_error(code.cast_signed())
}

fn row(object: &Object, out: &mut impl Write) -> io::Result<()> {
    let c = &object.counts;
    let kind = match object.kind {
        Kind::Qp => "QP",
        Kind::Cq => "CQ",
        Kind::Srq => "SRQ",
    };
    let gone = if object.ended_ns.is_some() { " (destroyed)" } else { "" };
    write!(out, "  {:<22}", format!("{kind} {}{gone}", object.number))?;
    if object.kind == Kind::Cq {
        write!(
            out,
            "polls {} (empty {}), completions {} (errors {}, most a poll {}), notification requests {}",
            c.polls, c.empty_polls, c.cqes, c.cqe_errors, object.most_cqes, c.notifies
        )?;
    } else {
        write!(
            out,
            "posts {} (failed {}), WRs {} (signalled {}, inline {}), {} bytes; receives posted {}",
            c.post_calls, c.post_failed, c.wrs, c.signalled, c.inline, c.bytes, c.recv_wrs
        )?;
    }
    if object.looked_at < object.calls() {
        let share = object.looked_at as f64 / object.calls() as f64;
        write!(out, "; ESTIMATED from {:.2} % of the calls", share * 100.0)?;
    }
    if c.cut_polls != 0 {
        write!(
            out,
            "; of {} polls only the first completion was looked at: there were more, and `--data-path full` counts them",
            c.cut_polls
        )?;
    }
    if object.guessed_cqes != 0 {
        write!(out, "; of {} completions it is guessed whose they are", object.guessed_cqes)?;
    }
    if c.cut != 0 {
        write!(out, "; {} chains too long to be walked: counts are too low", c.cut)?;
    }
    writeln!(out)
}
