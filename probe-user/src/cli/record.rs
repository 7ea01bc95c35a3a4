//! `rdma-probe record`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use probe_common::messages;
use probe_user::collect::{self, Session, clock};
use probe_user::library;
use probe_user::sample::{Footer, Header, Record, Verdict};
use probe_user::tap::{self, TapSource};
use probe_user::target::{self, Paused, Running, invoking_user};
use probe_user::trace::{self, WriteError};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use super::keep::{self, Keeper};
use super::posts::{self, Which};
use super::time::parse_duration;
use super::{UsageError, watch};

/// Longest sleep of the main loop: bounds how old an event is when it is written.
const TICK: Duration = Duration::from_millis(50);
/// How long a command may take to end after a signal was passed on to it, before it is left to itself.
const GRACE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  sudo rdma-probe record -- ib_write_bw -d mlx5_0 server   a command, and its children, from its first instruction
  sudo rdma-probe record --pid 4242 --duration 30s         a running process, its threads and its children
  sudo rdma-probe record --duration 10s                    every process of the host
  sudo rdma-probe record -o run.trace.zst -- ./train.sh    into a compressed trace of a chosen name
  rdma-probe record --tap -- ib_send_bw server             every post and poll too, exactly; needs no privilege
  rdma-probe record --tap --messages -- ib_send_lat server single work requests, to be paired with their completions
  sudo rdma-probe record --overhead 0.5 --pid 4242         posts and polls for at most 0.5 % of the process's CPU time
  sudo rdma-probe record --data-path full --pid 4242       every post and poll, whatever that costs it
  sudo rdma-probe record -o h.trace.zst --rotate 100MiB --keep 10    the host, for as long as it runs, in at most 1 GB
  sudo rdma-probe record -o h.trace.zst --ring 5m --on 'reg_latency_p99>1ms'    five minutes in memory, written when
                                                           registrations become slow (or by --on SIGUSR1, cqe_error, …)

Exit status: that of the command; 124 when --duration ended it; 127 or 126 when it was not found or could not be run;
1 on failure, 2 on a usage error; 0 otherwise, also when some or all probes were denied (see `rdma-probe probes`).";

/// Record what RDMA programs do into a trace file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Trace to write, `-` for standard output; compressed when it ends in .zst
    #[arg(short, long, value_name = "FILE", default_value = "rdma-probe.trace")]
    output: PathBuf,
    /// Record this process and its descendants (repeatable)
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "command")]
    pids: Vec<u32>,
    /// Stop after this time (such as 500ms, 30s, 5m); a command still running then is ended
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Time between samples of the counters
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// Stop when the trace has this size in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    max_size: Option<u64>,
    /// Count every post and poll with the preloaded tap (`rdma-probe tap`): exact, and without privilege. A process
    /// named with --pid must run under it already
    #[arg(long)]
    tap: bool,
    /// The tap's library, when it is not beside this program
    #[arg(long, value_name = "FILE", requires = "tap")]
    tap_library: Option<PathBuf>,
    /// Record every single work request and completion of the command too, so that both can be paired and exported.
    /// Some tens of ns each for the program, some 200 bytes for the trace; what comes faster than it can be written
    /// is counted as missing
    #[arg(long, requires = "tap", conflicts_with = "pids")]
    messages: bool,
    #[command(flatten)]
    posts: posts::Args,
    #[command(flatten)]
    keep: keep::Args,
    /// Attach to libraries only, not to the kernel
    #[arg(long)]
    no_kernel: bool,
    /// Run the command as root although sudo was used
    #[arg(long)]
    as_root: bool,
    /// No report at the end
    #[arg(short, long)]
    quiet: bool,
    /// Command to run and record
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Records until the targets end, the time is up, or a signal comes.
///
/// # Errors
/// When a process named does not exist, or the trace cannot be written.
pub fn run(args: Args) -> Result<ExitCode> {
    if args.interval < Duration::from_millis(10) {
        bail!(UsageError(format!("--interval {:?} is too short: take 10ms or more", args.interval)));
    }
    if args.tap && args.command.is_empty() && args.pids.is_empty() {
        bail!(UsageError("--tap needs a command after `--`, or processes named with --pid".into()));
    }
    let library = if args.tap { Some(tap_library(args.tap_library.as_deref())?) } else { None };
    watch::must_exist(&args.pids)?;
    // Before any other thread and before the command exists, so that none is missed.
    let signals = SignalsInfo::<WithOrigin>::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD])
        .context("cannot handle signals")?;
    // A file size limit (`ulimit -f`) then ends the recording with a footer instead of killing it. A handler, not
    // SIG_IGN, which the command would inherit.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("cannot handle signals")?;
    let limit = trace::Options { limit_bytes: size_limit(&args)? };
    let keeper = Keeper::create(&args.output, &header(&args), limit, &args.keep)?;
    for signal in keeper.signals() {
        signals.add_signal(*signal).context("cannot handle the signal of a trigger")?;
    }
    let mut recording = Recording { keeper, signals, trouble: None, ended: None, denied: None };
    let options = collect::Options {
        whole_host: args.pids.is_empty() && args.command.is_empty(),
        kernel: !args.no_kernel,
        data_path: args.posts.posts(if args.tap { Which::Off } else { Which::Sampled }),
        fire_taps: false,
        interval: args.interval,
    };
    let data_path = options.data_path;
    let mut session = Session::start(options);
    posts::announce(data_path, &session);
    if args.tap {
        let source = TapSource::start();
        let source = if args.messages { source.and_then(TapSource::with_messages) } else { source };
        session.add_source(Box::new(source.context("cannot start a thread")?));
    }
    let command = start(&args, library.as_deref(), &mut session)?;
    let outcome = recording.run(&args, session, command)?;
    if let Some(why) = &recording.denied {
        let counted = if args.tap { "; posts and polls are counted by the tap" } else { "" };
        eprintln!("rdma-probe: no probe could be attached: {why}{counted}");
    }
    recording.close(&args, &outcome)?;
    Ok(outcome.code())
}

/// Most bytes the trace may have: what was asked for, and what the system allows a file to have.
fn size_limit(args: &Args) -> Result<Option<u64>> {
    let asked = args.max_size.map(|mib| mib << 20);
    // Pipes and devices know no limit; what does not exist yet will be a file.
    let to_file = args.output.as_os_str() != "-"
        && args.output.symlink_metadata().map_or(true, |found| found.is_file());
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writes one struct, of this type; where it fails, there is no limit to heed.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    let allowed = limit.rlim_cur;
    if !to_file || allowed == libc::RLIM_INFINITY {
        return Ok(asked);
    }
    if allowed < trace::Options::MIN_LIMIT_BYTES {
        bail!(
            "cannot write trace '{}': files may have {allowed} bytes (ulimit -f), and a trace needs {}; \
             write it to a pipe with `-o -`, or raise the limit",
            args.output.display(),
            trace::Options::MIN_LIMIT_BYTES
        );
    }
    Ok(Some(asked.unwrap_or(u64::MAX).min(allowed)))
}

/// Prepares the targets; a command is held until everything is attached, then let go.
fn start(args: &Args, tap: Option<&Path>, session: &mut Session) -> Result<Option<Running>> {
    if args.command.is_empty() {
        watch::with_descendants(session, &args.pids)?;
        return Ok(None);
    }
    let user = if args.as_root { None } else { invoking_user() };
    let program = args.command[0].clone();
    let named = || format!("cannot run '{}'", program.display());
    let (mut command, mut variables) = (args.command.clone(), Vec::new());
    if let Some(library) = tap {
        variables.push(("LD_PRELOAD", tap::preload(library)));
        if args.messages {
            variables.push((messages::VARIABLE, messages::CELLS.to_string().into()));
        }
        preload_behind_env(&mut command, library);
    }
    let paused = Paused::spawn_with(&command, user, &variables).with_context(named)?;
    session.watch_before_exec(paused.pid()).with_context(named)?;
    let mut files = likely_files(&command);
    files.extend(tap.map(Path::to_owned));
    session.prepare(files);
    Ok(Some(paused.release().map_err(|source| NotRun { program, source })?))
}

/// The command could not be executed.
#[derive(Debug, thiserror::Error)]
#[error("cannot run '{}'", program.display())]
pub struct NotRun {
    program: OsString,
    source: std::io::Error,
}

impl NotRun {
    /// As shells and `env` have it: 127 for a program not found, 126 for one that cannot be run.
    pub fn code(&self) -> u8 {
        if self.source.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

/// The tap's library: the one named, else the one that is installed.
pub(super) fn tap_library(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(path) if path.is_file() => path.canonicalize().context("cannot find the tap's library"),
        Some(path) => bail!(UsageError(format!("--tap-library '{}': there is no such file", path.display()))),
        None => tap::library()
            .context("libverbs_tap.so is not beside this program: build it (`cargo build -p verbs-tap`) or name it with --tap-library"),
    }
}

/// `env LD_PRELOAD=…` in front of a program would undo the tap's preloading: the tap goes before what it sets.
fn preload_behind_env(command: &mut [OsString], library: &Path) {
    let assigned = behind_env(command).0.len();
    for word in command.iter_mut().skip(1).take(assigned) {
        let value = word.to_str().and_then(|word| word.strip_prefix("LD_PRELOAD=")).map(OsString::from);
        if let Some(value) = value {
            let mut new = OsString::from("LD_PRELOAD=");
            new.push(tap::preload_before(library, Some(&value)));
            *word = new;
        }
    }
}

/// Files the command will probably load verbs from, looked at before it runs.
fn likely_files(command: &[OsString]) -> Vec<PathBuf> {
    let (assigned, program) = behind_env(command);
    let variable = |name: &str| {
        let last = assigned.iter().rev().find(|(assigned, _)| assigned == name);
        last.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name))
    };
    let path = program.and_then(target::program_file).map(|(path, _)| path);
    let (preload, search) = (variable("LD_PRELOAD"), variable("LD_LIBRARY_PATH"));
    library::candidates(path.as_deref(), preload.as_deref(), search.as_deref())
}

/// The variables that `env NAME=VALUE… PROGRAM …` sets, and the program it runs; another command is its own program.
fn behind_env(command: &[OsString]) -> (Vec<(String, OsString)>, Option<&OsStr>) {
    let mut words = command.iter();
    let first = words.next();
    if first.and_then(|word| Path::new(word).file_name()) != Some(OsStr::new("env")) {
        return (Vec::new(), first.map(OsString::as_os_str));
    }
    let mut assigned = Vec::new();
    for word in words {
        let Some((name, value)) = word.to_str().and_then(|word| word.split_once('=')) else {
            // Options of env come before; what they mean is left to env.
            let option = word.as_encoded_bytes().starts_with(b"-");
            return (assigned, (!option).then_some(word));
        };
        assigned.push((name.to_owned(), value.into()));
    }
    (assigned, None)
}

/// How a recording ended.
struct Outcome {
    reason: String,
    status: Option<ExitStatus>,
    timed_out: bool,
    lost: probe_user::sample::Lost,
}

impl Outcome {
    /// The command's exit status as shells have it.
    fn exit_status(&self) -> Option<i32> {
        let status = self.status?;
        status.code().or_else(|| Some(128 + status.signal()?))
    }

    fn code(&self) -> ExitCode {
        if self.timed_out {
            return ExitCode::from(124);
        }
        self.exit_status().map_or(ExitCode::SUCCESS, |status| ExitCode::from(status as u8))
    }
}

struct Recording {
    keeper: Keeper,
    signals: SignalsInfo<WithOrigin>,
    trouble: Option<String>,
    ended: Option<String>,
    denied: Option<String>,
}

impl Recording {
    fn run(&mut self, args: &Args, mut session: Session, mut command: Option<Running>) -> Result<Outcome> {
        let began = Instant::now();
        let mut status = None;
        let (mut timed_out, mut asked_to_end) = (false, None::<Instant>);
        loop {
            wait(session.descriptor());
            self.write(session.take());
            if let Some(child) = &mut command {
                status = child.try_wait().context("cannot wait for the command")?;
                if status.is_some() && self.ended.is_none() {
                    self.ended = Some("target exited".to_owned());
                }
            } else if !args.pids.is_empty() && session.all_ended() {
                self.ended.get_or_insert_with(|| "target exited".to_owned());
            }
            let signals: Vec<_> = self.signals.pending().filter(|origin| origin.signal != SIGCHLD).collect();
            for origin in signals {
                if self.keeper.signals().contains(&origin.signal) {
                    self.keeper.signalled(origin.signal);
                    continue;
                }
                let again = asked_to_end.is_some();
                match &mut command {
                    Some(child) if status.is_none() && !again => {
                        // The terminal sends its signals to the command as well; anybody else's are for us alone.
                        if origin.process.is_some() {
                            pass_on(child.id(), origin.signal);
                        }
                        asked_to_end = Some(Instant::now());
                    }
                    _ => {
                        self.ended.get_or_insert_with(|| "interrupted".to_owned());
                    }
                }
            }
            let time_is_up = args.duration.is_some_and(|most| began.elapsed() >= most);
            if time_is_up && asked_to_end.is_none() {
                match &mut command {
                    Some(child) if status.is_none() => {
                        pass_on(child.id(), SIGTERM);
                        timed_out = true;
                        asked_to_end = Some(Instant::now());
                    }
                    _ => {
                        self.ended.get_or_insert_with(|| "duration".to_owned());
                    }
                }
            }
            if asked_to_end.is_some_and(|at| at.elapsed() >= GRACE) {
                self.ended.get_or_insert_with(|| "interrupted".to_owned());
            }
            if self.trouble.is_some() && status.is_none() && command.is_some() {
                // The trace has ended, but the command is not ours to end.
                status = command.as_mut().map(std::process::Child::wait).transpose()?;
            }
            if self.ended.is_some() {
                break;
            }
        }
        let lost = session.lost();
        let rest = session.finish();
        let lost = rest
            .iter()
            .rev()
            .find_map(|record| match record {
                Record::Sample(sample) => Some(sample.lost.clone()),
                _ => None,
            })
            .unwrap_or(lost);
        self.write(rest);
        let mut reason = self.ended.take().unwrap_or_default();
        if timed_out {
            reason = "duration".to_owned();
        } else if asked_to_end.is_some() {
            reason = "interrupted".to_owned();
        }
        if let Some(trouble) = &self.trouble {
            reason.clone_from(trouble);
        }
        Ok(Outcome { reason, status, timed_out, lost })
    }

    /// Writes records as long as there is room; the first refusal ends the recording.
    fn write(&mut self, records: Vec<Record>) {
        for record in records {
            if let Record::Probe(probe) = &record
                && let Verdict::Denied { missing } = &probe.verdict
            {
                self.denied.get_or_insert_with(|| missing.clone());
            }
            if self.trouble.is_some() {
                continue;
            }
            match self.keeper.push(&record) {
                Ok(()) => {}
                Err(WriteError::Encode(why)) => eprintln!("rdma-probe: a record was left out: {why}"),
                Err(error) => {
                    self.trouble = Some(error.to_string());
                    self.ended.get_or_insert_with(|| error.to_string());
                }
            }
        }
    }

    fn close(self, args: &Args, outcome: &Outcome) -> Result<()> {
        let footer = Footer {
            t_ns: clock::now_ns(),
            reason: outcome.reason.clone(),
            exit_status: outcome.exit_status(),
            lost: outcome.lost.clone(),
            ..Footer::default()
        };
        let kept = self
            .keeper
            .finish(footer)
            .with_context(|| format!("cannot finish trace '{}'", args.output.display()))?;
        if let Some(trouble) = self.trouble {
            eprintln!("rdma-probe: the recording ended early: {trouble}");
        }
        if args.quiet {
            return Ok(());
        }
        let (events, samples) = (kept.summary.events, kept.summary.samples);
        let Some(last) = kept.files.last() else {
            eprintln!("rdma-probe: no trigger fired, so nothing was written");
            return Ok(());
        };
        match &kept.files[..] {
            [file] => eprintln!("rdma-probe: {events} events and {samples} samples in '{}'", file.display()),
            [first, ..] => eprintln!(
                "rdma-probe: {events} events and {samples} samples in all; {} files from '{}' to '{}'",
                kept.files.len(),
                first.display(),
                last.display()
            ),
            [] => {}
        }
        // What went to standard output or into a pipe cannot be read again.
        if last.is_file() {
            super::report::print_on_stderr(last)?;
        }
        Ok(())
    }
}

fn header(args: &Args) -> Header {
    Header {
        command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        pids: args.pids.clone(),
        ..header_of_host()
    }
}

/// What a header says of this host and this moment.
pub(super) fn header_of_host() -> Header {
    let uname = rustix::system::uname();
    Header {
        writer: format!("rdma-probe {}", env!("CARGO_PKG_VERSION")),
        host: uname.nodename().to_string_lossy().into_owned(),
        kernel: uname.release().to_string_lossy().into_owned(),
        arch: uname.machine().to_string_lossy().into_owned(),
        t_ns: clock::now_ns(),
        wall_ns: clock::wall_ns(),
        devices: probe_user::devices::devices(),
        boot_id: clock::boot_id(),
        machine: collect::facts::machine(),
        ..Header::default()
    }
}

/// Sleeps until there is much to take, or for a tick.
pub(super) fn wait(events: Option<i32>) {
    let mut entry = libc::pollfd { fd: events.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as said; a negative descriptor is ignored.
    unsafe { libc::poll(&raw mut entry, 1, TICK.as_millis() as i32) };
}

fn pass_on(pid: u32, signal: i32) {
    // SAFETY: plain system call. The child has not been waited for, so the pid is still its own.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_env_sets_counts_for_the_program_behind_it() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let command = words("/usr/bin/env LD_PRELOAD=/a.so X=1 prog -v");
        let (assigned, program) = behind_env(&command);
        assert_eq!(assigned[0], ("LD_PRELOAD".to_owned(), OsString::from("/a.so")));
        assert_eq!(program, Some(OsStr::new("prog")));
        let command = words("prog LD_PRELOAD=/a.so");
        assert_eq!(behind_env(&command), (Vec::new(), Some(OsStr::new("prog"))));
        assert_eq!(behind_env(&words("env -i prog")), (Vec::new(), None));
        assert_eq!(behind_env(&[]), (Vec::new(), None));
    }

    #[test]
    fn the_tap_goes_before_what_env_preloads() {
        let preloaded = |text: &str| {
            let mut command: Vec<_> = text.split(' ').map(OsString::from).collect();
            preload_behind_env(&mut command, Path::new("/t.so"));
            command.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(
            preloaded("env A=b LD_PRELOAD=/emu.so prog LD_PRELOAD=/x.so"),
            "env A=b LD_PRELOAD=/t.so:/emu.so prog LD_PRELOAD=/x.so"
        );
        assert_eq!(preloaded("env LD_PRELOAD= prog"), "env LD_PRELOAD=/t.so prog");
        assert_eq!(preloaded("prog LD_PRELOAD=/x.so"), "prog LD_PRELOAD=/x.so");
    }

    #[test]
    fn a_command_ended_by_a_signal_has_the_status_of_the_shell() {
        let outcome = |raw, timed_out| Outcome {
            reason: String::new(),
            status: Some(ExitStatus::from_raw(raw)),
            timed_out,
            lost: Default::default(),
        };
        assert_eq!(outcome(9, false).exit_status(), Some(137));
        assert_eq!(outcome(7 << 8, false).exit_status(), Some(7));
        assert_eq!(outcome(15, true).exit_status(), Some(143));
    }
}
