//! One step of the tests: run quietly, its output kept in a file, shown where it fails.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::counts::{self, Counts};
use crate::command;
use crate::paths;

/// How many lines of a failed step are shown.
const SHOWN: usize = 120;

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As it should; with what is worth knowing, or nothing.
    Passed(String),
    /// Not.
    Failed,
    /// Could not be tried here, for this reason.
    Skipped(String),
}

/// A step that was taken.
#[derive(Debug, Clone)]
pub struct Step {
    /// How it ended.
    pub outcome: Outcome,
    /// Tests that its output reports.
    pub counts: Counts,
}

/// Takes steps and remembers how they ended.
#[derive(Debug)]
pub struct Steps {
    taken: Vec<Step>,
    verbose: bool,
}

impl Steps {
    /// None taken yet; `verbose` shows all output.
    pub fn new(verbose: bool) -> Self {
        Self { taken: Vec::new(), verbose }
    }

    /// Takes a step: `body` returns how it went and what was printed.
    pub fn take(&mut self, name: &str, body: impl FnOnce(bool) -> Result<(Outcome, String)>) {
        let start = Instant::now();
        print!("test: {name:<16} ");
        if self.verbose {
            println!();
        }
        let _ = std::io::stdout().flush();
        let (outcome, output) = match body(self.verbose) {
            Ok(done) => done,
            Err(error) => (Outcome::Failed, format!("{error:#}\n")),
        };
        let step = Step { counts: counts::count(&output), outcome };
        println!("{}", described(&step, start.elapsed()));
        if step.outcome == Outcome::Failed {
            show(name, &output, self.verbose);
        }
        self.taken.push(step);
    }

    /// Takes a step that is one command.
    pub fn command(&mut self, name: &str, mut command: Command) {
        self.take(name, |verbose| {
            let (success, output) = run(&mut command, verbose)?;
            Ok((if success { Outcome::Passed(String::new()) } else { Outcome::Failed }, output))
        });
    }

    /// The sum.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for step in &self.taken {
            summary.passed += step.counts.passed;
            summary.failed += step.counts.failed;
            match step.outcome {
                Outcome::Passed(_) if step.counts == Counts::default() => summary.passed += 1,
                Outcome::Failed if step.counts.failed == 0 => summary.failed += 1,
                Outcome::Skipped(_) => summary.skipped += 1,
                Outcome::Passed(_) | Outcome::Failed => {}
            }
        }
        summary
    }
}

/// Tests, and steps that are no collection of tests, added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Succeeded.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
    /// Could not be tried here.
    pub skipped: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// Runs a command with its output collected, or shown as well.
///
/// # Errors
/// When it cannot be started.
pub fn run(command: &mut Command, verbose: bool) -> Result<(bool, String)> {
    command.stdin(Stdio::null()).env("CARGO_TERM_COLOR", "never");
    let output = command.output().with_context(|| format!("cannot start `{}`", command::shown(command)))?;
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    if verbose {
        print!("{text}");
    }
    Ok((output.status.success(), text))
}

fn described(step: &Step, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let Counts { passed, failed } = step.counts;
    let mut line = match &step.outcome {
        Outcome::Passed(_) => format!("ok       {seconds:6.1} s"),
        Outcome::Failed => format!("FAILED   {seconds:6.1} s"),
        Outcome::Skipped(reason) => return format!("skipped  {reason}"),
    };
    if step.counts != Counts::default() {
        line.push_str(&format!("  {passed} passed, {failed} failed"));
    }
    if let Outcome::Passed(note) = &step.outcome
        && !note.is_empty()
    {
        line.push_str(&format!("  {note}"));
    }
    line
}

/// Keeps the whole output in a file and shows what tells something.
fn show(name: &str, output: &str, shown_already: bool) {
    if !shown_already {
        for line in counts::telling(output, SHOWN) {
            println!("    {line}");
        }
    }
    match keep(name, output) {
        Ok(path) => println!("    (all of its output: {})", path.display()),
        Err(error) => println!("    (its output could not be kept: {error:#})"),
    }
}

fn keep(name: &str, output: &str) -> Result<PathBuf> {
    let folder = paths::target().join("test-output");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{}.log", name.replace([' ', '/'], "-")));
    fs::write(&path, output)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(outcome: Outcome, passed: u64, failed: u64) -> Step {
        Step { outcome, counts: Counts { passed, failed } }
    }

    #[test]
    fn a_step_without_tests_counts_as_one() {
        let passed = || Outcome::Passed(String::new());
        let steps = Steps {
            taken: vec![
                step(passed(), 0, 0),
                step(passed(), 10, 0),
                step(Outcome::Failed, 3, 2),
                step(Outcome::Failed, 0, 0),
                step(Outcome::Skipped("no".into()), 0, 0),
            ],
            verbose: false,
        };
        assert_eq!(steps.summary().to_string(), "14 passed, 3 failed, 1 skipped");
    }

    #[test]
    fn a_step_that_fails_although_its_tests_passed_is_a_failure() {
        let steps = Steps { taken: vec![step(Outcome::Failed, 4, 0)], verbose: false };
        assert_eq!(steps.summary(), Summary { passed: 4, failed: 1, skipped: 0 });
    }
}
