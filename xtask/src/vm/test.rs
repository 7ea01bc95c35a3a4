//! `cargo xtask vm test`: the tests that need real soft-RoCE, one boot per kernel.
//!
//! They are the tests marked `#[ignore = "needs soft-RoCE: cargo xtask vm test"]` in files `tests/guest_*.rs` of any
//! crate; each file's program is run with `--ignored --test-threads=1` in its crate's folder.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::session::{self, PassOn, Sink};
use super::{Options, kernel};
use crate::build_task;
use crate::command::{self, quoted};
use crate::test::counts;

/// Limit for all tests of one boot.
const LIMIT: Duration = Duration::from_secs(1500);
/// How the names of the test programs begin.
const PREFIX: &str = "guest_";

const EXAMPLES: &str = "\
Examples:
  cargo xtask vm test                       all of them on 6.1 and on 6.12
  cargo xtask vm test --kernel 6.12 perf    those with \"perf\" in their name, on one kernel";

/// Arguments of `vm test`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Test {
    /// Kernel to test on, as for `vm run`; may be repeated [default: 6.1 and 6.12]
    #[arg(long, value_name = "SERIES|PATH")]
    kernel: Vec<String>,
    /// Run only tests whose name contains this
    filter: Option<String>,
    /// Show what passing tests print
    #[arg(long)]
    show_output: bool,
}

/// Does the task; returns the status to exit with.
///
/// # Errors
/// When the tests do not build or the virtual machine fails.
pub fn main(test: &Test) -> Result<u8> {
    let programs = programs()?;
    if let Some(filter) = &test.filter {
        let names = names(&programs)?;
        if !names.iter().any(|name| name.contains(filter)) {
            eprintln!("vm test: no test has {filter:?} in its name; they are:\n  {}", names.join("\n  "));
            return Ok(2);
        }
    }
    let kernels =
        if test.kernel.is_empty() { kernel::TESTED.map(str::to_owned).to_vec() } else { test.kernel.clone() };
    let mut worst = 0;
    let mut summaries = Vec::new();
    for kernel in &kernels {
        let mut arguments: Vec<&str> = test.filter.iter().map(String::as_str).collect();
        if test.show_output {
            arguments.push("--show-output");
        }
        let mut tee = Tee { text: Vec::new(), shown: true };
        let status = in_guest(kernel, None, &programs, &arguments, &mut tee)?;
        let counts = counts::count(&String::from_utf8_lossy(&tee.text));
        let verdict = if status == 0 { "ok" } else { "FAILED" };
        summaries.push(format!(
            "vm test: {kernel}: {verdict}, {} passed, {} failed",
            counts.passed, counts.failed
        ));
        worst = worst.max(status);
    }
    println!("{}", summaries.join("\n"));
    Ok(worst)
}

/// Runs one ignored test of a package in the guest, under a name that its environment is told of, and shows what it
/// prints; returns its status.
///
/// # Errors
/// When the test does not build or the virtual machine fails.
pub fn one(kernel: &str, target: &str, name: &str, env: &[&str], limit: Duration) -> Result<u8> {
    let programs = built(target)?;
    let argv = vec!["sh".into(), "-c".into(), script(&programs, &["--nocapture", name])];
    let mut plan = super::plan(&prepared(kernel), argv, false, Some(limit))?;
    plan.job.env.extend(env.iter().map(Into::into));
    session::run(&plan, &mut PassOn)
}

/// Runs all guest tests on one kernel and returns the status and everything they printed.
///
/// # Errors
/// When the tests do not build or the virtual machine fails.
pub fn collected(kernel: &str, env: Option<(&str, &Path)>, shown: bool) -> Result<(u8, String)> {
    let programs = programs()?;
    let mut tee = Tee { text: Vec::new(), shown };
    let status = in_guest(kernel, env, &programs, &[], &mut tee)?;
    Ok((status, String::from_utf8_lossy(&tee.text).into_owned()))
}

fn in_guest(
    kernel: &str,
    env: Option<(&str, &Path)>,
    programs: &[Program],
    arguments: &[&str],
    sink: &mut dyn Sink,
) -> Result<u8> {
    let argv = vec!["sh".into(), "-c".into(), script(programs, arguments)];
    let mut plan = super::plan(&prepared(kernel), argv, false, Some(LIMIT))?;
    if let Some((name, value)) = env {
        plan.job.env.push(super::assignment(OsStr::new(name), value.as_os_str()));
    }
    session::run(&plan, sink)
}

/// The usual guest; everything was built with the tests.
fn prepared(kernel: &str) -> Options {
    Options { no_build: true, ..Options::new(kernel) }
}

/// A compiled test program and the folder it expects to run in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    executable: PathBuf,
    folder: PathBuf,
}

/// Names of the tests in the programs.
fn names(programs: &[Program]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for program in programs {
        let mut list = Command::new(&program.executable);
        list.args(["--list", "--ignored", "--format=terse"]).current_dir(&program.folder);
        names.extend(listed(&String::from_utf8_lossy(&command::output(&mut list)?)));
    }
    Ok(names)
}

/// The names in what a test program prints for `--list`.
fn listed(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// A shell script that runs every program, whether or not one before it failed.
fn script(programs: &[Program], arguments: &[&str]) -> OsString {
    let mut script = String::from("status=0\n");
    for program in programs {
        let words: Vec<String> = arguments.iter().map(|word| quoted(OsStr::new(word))).collect();
        script.push_str(&format!(
            "cd {} && {} --ignored --test-threads=1 {} || status=1\n",
            quoted(program.folder.as_os_str()),
            quoted(program.executable.as_os_str()),
            words.join(" ")
        ));
    }
    script.push_str("exit $status");
    script.into()
}

/// Builds the guest tests of all crates.
fn programs() -> Result<Vec<Program>> {
    built(&format!("{PREFIX}*"))
}

/// Builds everything, and finds the tests whose names match.
fn built(pattern: &str) -> Result<Vec<Program>> {
    command::run(&mut build_task::with_tests())?;
    let mut cargo = command::cargo();
    cargo.args(["test", "--no-run", "--quiet", "--locked", "--message-format=json-render-diagnostics"]);
    cargo.args(["--workspace", "--test", pattern]);
    let messages = command::output(&mut cargo)?;
    Ok(executables(&String::from_utf8_lossy(&messages)))
}

/// The test programs in cargo's messages, one JSON object a line.
fn executables(messages: &str) -> Vec<Program> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let executable = PathBuf::from(message["executable"].as_str()?);
        let is_test = message["profile"]["test"].as_bool()?;
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
        is_test.then_some(Program { executable, folder })
    };
    messages.lines().filter_map(program).collect()
}

/// Keeps both streams, in the order in which they came, and passes them on where asked.
struct Tee {
    text: Vec<u8>,
    shown: bool,
}

impl Sink for Tee {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.text.extend_from_slice(bytes);
        if self.shown { PassOn.stdout(bytes) } else { Ok(()) }
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.text.extend_from_slice(bytes);
        if self.shown { PassOn.stderr(bytes) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_listed_by_name() {
        assert_eq!(listed("a::works: test\nb: test\nc: benchmark\n\n2 tests\n"), ["a::works", "b"]);
    }

    #[test]
    fn executables_are_those_built_as_tests() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":true},"executable":"/t/guest-1"}
{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":false},"executable":"/t/rdma-probe"}
{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":true},"executable":null}
not json
{"reason":"build-finished","success":true}"#;
        let expected = Program { executable: "/t/guest-1".into(), folder: "/w/a".into() };
        assert_eq!(executables(messages), [expected]);
    }

    #[test]
    fn a_failing_program_does_not_keep_the_next_from_running() {
        let program = |path: &str| Program { executable: path.into(), folder: "/".into() };
        let script = script(&[program("/bin/false"), program("/bin/true")], &["a b"]);
        assert_eq!(
            script,
            "status=0\ncd / && /bin/false --ignored --test-threads=1 'a b' || status=1\n\
             cd / && /bin/true --ignored --test-threads=1 'a b' || status=1\nexit $status"
        );
    }
}
