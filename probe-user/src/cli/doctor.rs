//! `rdma-probe doctor`: what is wrong, why, and what to do.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Parser as _;
use probe_user::doctor::{
    Diagnosis, Document, Parameters, RULES, Settings, Severity, all_pages, examine, page, rule, write_text,
};
use probe_user::model::Model;
use probe_user::replay::{Window, replay};
use probe_user::trace::Reader;

use super::{UsageError, record, terminal_width};

/// How long a process or the host is watched when nothing else is said.
const USUAL: &str = "10s";

/// Say what is wrong, why, what it costs and what to do
///
/// Looks at a recorded trace, at a command from its first instruction to its end, at running processes, or at the whole
/// host for a while. Findings come worst first, with what they rest on and how sure that is; what could not be decided
/// is named too. Every rule: --explain all.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe doctor trace.jsonl                          a recorded trace
  sudo rdma-probe doctor -- ib_write_bw -d mlx5_0 server a command, recorded while it runs
  sudo rdma-probe doctor --pid 4711 --duration 30s       a running process
  sudo rdma-probe doctor                                 the whole host, for 10 s
  rdma-probe doctor trace.jsonl --fail-on warning        for CI: status 1 when something is found
  rdma-probe doctor --explain registration-repeated      what a rule looks at, its thresholds, when not to follow it
  rdma-probe doctor trace.jsonl --prove one-wr-per-post  run slow and fast way with this program's own sizes
  rdma-probe doctor trace.jsonl --json | jq '.findings[] | {id, severity, process}'

Exit status: 1 when --fail-on found something of that severity, or on failure; 2 on a usage error; otherwise that of the
command, or 0.")]
pub struct Args {
    /// Trace to look at, plain or compressed with zstd; `-` for standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["pids", "command"])]
    file: Option<PathBuf>,

    /// Look at this running process and its descendants (repeatable)
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "command")]
    pids: Vec<u32>,

    /// How long to look; 10s for processes and the host, to its end for a command
    #[arg(short, long, value_name = "TIME", conflicts_with = "file")]
    duration: Option<String>,

    /// Print the findings as JSON (schema rdma-doctor/1); what a command prints itself goes to standard error
    #[arg(long)]
    json: bool,

    /// Exit with status 1 when a finding is at least so bad
    #[arg(long, value_enum, value_name = "SEVERITY")]
    fail_on: Option<FailOn>,

    /// Say nothing of this rule (repeatable)
    #[arg(long, value_name = "ID")]
    allow: Vec<String>,

    /// TOML file with other thresholds: a table per rule, `allow = ["ID"]` at the top
    #[arg(long, value_name = "FILE")]
    thresholds: Option<PathBuf>,

    /// Print the manual page of a rule, or of `all`
    #[arg(long, value_name = "ID", exclusive = true)]
    explain: Option<String>,

    /// Run the reference workload of a rule with the parameters observed (message size, requests outstanding, device)
    #[arg(long, value_name = "ID")]
    prove: Option<String>,

    /// More options for `rdma-probe record` while looking, such as `--record=--no-kernel` (repeatable). Of a command every
    /// post and poll is looked at, whatever that costs it: by probes as root, else by the tap. Of processes and the host
    /// as many as the allowed overhead permits (--record=--overhead=PCT). `--record=--data-path=off` looks at none
    #[arg(long = "record", value_name = "OPTION", allow_hyphen_values = true, conflicts_with = "file")]
    record: Vec<OsString>,

    /// Command to run and look at
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FailOn {
    Note,
    Warning,
    Problem,
}

impl FailOn {
    fn severity(self) -> Severity {
        match self {
            Self::Note => Severity::Note,
            Self::Warning => Severity::Warning,
            Self::Problem => Severity::Problem,
        }
    }
}

/// The arguments of `record`, read as if they had been typed.
#[derive(Debug, clap::Parser)]
#[command(name = "rdma-probe record")]
struct Recording {
    #[command(flatten)]
    args: record::Args,
}

/// # Errors
/// A trace that cannot be read, a rule or threshold that does not exist, a recording that fails.
pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(id) = &args.explain {
        return explain(id);
    }
    let settings = settings(&args)?;
    if let Some(id) = &args.prove {
        known(id)?;
    }
    let (model, status) = match &args.file {
        Some(file) => (read(file)?, ExitCode::SUCCESS),
        None => look(&args)?,
    };
    let diagnosis = examine(&model, &settings);
    if let Some(id) = &args.prove {
        return prove(id, &model, &diagnosis);
    }
    let failed = args
        .fail_on
        .is_some_and(|least| diagnosis.findings.iter().any(|finding| finding.severity >= least.severity()));
    match print(&args, diagnosis, &model) {
        // Who has read enough still wants the status.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed.context("cannot write the findings")?,
    }
    Ok(if failed { ExitCode::FAILURE } else { status })
}

fn print(args: &Args, diagnosis: Diagnosis, model: &Model) -> io::Result<()> {
    let mut out = BufWriter::new(anstream::AutoStream::auto(io::stdout().lock()));
    if args.json {
        let document = Document::new(diagnosis, model.duration_ns());
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        write_text(&diagnosis, model.duration_ns(), terminal_width().min(120), &mut out)?;
    }
    out.flush()
}

fn known(id: &str) -> Result<&'static probe_user::doctor::Rule> {
    if let Some(rule) = rule(id) {
        return Ok(rule);
    }
    // The same words as for --allow.
    match Settings::default().allow(id) {
        Err(error) => Err(UsageError(error.to_string()).into()),
        Ok(()) => bail!("rule '{id}' is not listed"),
    }
}

fn explain(id: &str) -> Result<ExitCode> {
    let text = if id == "all" { all_pages() } else { page(known(id)?) };
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn settings(args: &Args) -> Result<Settings> {
    let mut settings = Settings::default();
    if let Some(file) = &args.thresholds {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read thresholds from '{}'", file.display()))?;
        settings.read(&text).map_err(|error| UsageError(format!("'{}': {error}", file.display())))?;
    }
    for id in &args.allow {
        settings.allow(id).map_err(|error| UsageError(format!("--allow: {error}")))?;
    }
    Ok(settings)
}

fn read(file: &Path) -> Result<Model> {
    let mut reader = Reader::open(file)?;
    let model = replay(reader.by_ref(), Window { from_ns: None, to_ns: None })?;
    Ok(model)
}

/// Records into a file of its own, and reads that: exactly what a recorded trace would show.
fn look(args: &Args) -> Result<(Model, ExitCode)> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder for the recording")?;
    let trace = folder.path().join("doctor.trace");
    let mut words: Vec<OsString> = ["record", "--quiet", "--output"].map(OsString::from).to_vec();
    words.push(trace.clone().into());
    for pid in &args.pids {
        words.push(format!("--pid={pid}").into());
    }
    let usual = args.command.is_empty().then(|| USUAL.to_owned());
    if let Some(duration) = args.duration.clone().or(usual) {
        words.push(format!("--duration={duration}").into());
    }
    words.extend(args.record.iter().cloned());
    if !args.command.is_empty() {
        words.extend(posts_too(&args.record));
        words.push("--".into());
        words.extend(args.command.iter().cloned());
    }
    let recording = Recording::try_parse_from(words).map_err(|error| UsageError(first_line(&error)))?;
    // With --json standard output is a document, in which the command's own output has no place.
    let aside = args.json && !args.command.is_empty();
    let stdout =
        aside.then(output_to_stderr).transpose().context("cannot lead the command's output aside")?;
    let status = record::run(recording.args);
    if let Some(stdout) = stdout {
        rustix::stdio::dup2_stdout(stdout).context("cannot take standard output back")?;
    }
    match (read(&trace), status) {
        (Ok(model), status) => Ok((model, status?)),
        // Without a recording, why there is none is the news, not that it cannot be read.
        (Err(_), Err(error)) => Err(error),
        (Err(error), Ok(_)) => Err(error),
    }
}

/// Posts and polls of a command are looked at too, unless the options for `record` decide it: by probes where they can
/// attach, else by the tap where it is installed.
fn posts_too(record: &[OsString]) -> Option<OsString> {
    let decides = |option: &OsString| {
        option.to_str().is_some_and(|option| option.starts_with("--data-path") || option.starts_with("--tap"))
    };
    if record.iter().any(decides) {
        return None;
    }
    if rustix::process::geteuid().is_root() {
        return Some("--data-path=full".into());
    }
    record::tap_library(None).is_ok().then(|| "--tap".into())
}

/// Makes standard error what the command inherits as standard output; gives back what that was.
fn output_to_stderr() -> io::Result<OwnedFd> {
    let stdout = rustix::io::dup(io::stdout())?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(stdout)
}

/// clap's message without its usage text, which would be that of another command.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Runs the workload that shows a rule's effect, on the device and with the sizes seen.
fn prove(id: &str, model: &Model, diagnosis: &Diagnosis) -> Result<ExitCode> {
    let rule = known(id)?;
    let Some(workload) = rule.workload else {
        let with: Vec<&str> = RULES.iter().filter(|r| r.workload.is_some()).map(|r| r.id).collect();
        bail!("no reference workload shows '{id}'; these rules have one: {}", with.join(", "));
    };
    let finding = diagnosis.findings.iter().find(|finding| finding.id == id);
    let process = finding.and_then(probe_user::doctor::Finding::process_id);
    let arguments = Parameters::observed(model, process).arguments();
    let program = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join("rdma-workload")))
        .filter(|path| path.is_file())
        .unwrap_or_else(|| "rdma-workload".into());
    if finding.is_none() {
        eprintln!("rdma-probe: '{id}' was not found here; its workload runs all the same");
    }
    eprintln!("rdma-probe: rdma-workload compare {workload} {}", arguments.join(" "));
    let status =
        Command::new(&program).args(["compare", workload]).args(&arguments).status().with_context(|| {
            format!("cannot run '{}': build it with `cargo build -p workloads`", program.display())
        })?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_does_not_exist_is_a_usage_error_that_names_it() {
        let error = known("cq-per-pq").err().map(|e| (e.is::<UsageError>(), e.to_string()));
        assert!(error.is_some_and(|(usage, text)| usage && text.contains("'cq-per-pq'")));
    }

    #[test]
    fn what_record_does_not_know_is_said_in_its_words() {
        let words = ["record", "--no-such-option"];
        let error = Recording::try_parse_from(words).err().map(|e| first_line(&e));
        assert!(error.is_some_and(|text| text.contains("--no-such-option") && !text.contains('\n')));
    }
}
