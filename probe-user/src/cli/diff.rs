//! `rdma-probe diff`: two recordings compared.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use probe_user::model::Model;
use probe_user::replay::{Window, replay};
use probe_user::report::table::{Align, Column, render};
use probe_user::report::units::{bytes, count, duration};
use probe_user::report::{Diff, Metric, Outcome, diff};
use probe_user::trace::Reader;

use super::terminal_width;

/// Compare two traces, before and after a change: what got worse first
///
/// Processes are paired by command name. Latency quantiles differ only when their 99 % confidence intervals do not
/// overlap; failures and objects left behind differ as soon as their numbers do.
///
/// Exit status: 0, 1 when --fail-on was reached or a trace cannot be read, 2 for wrong arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe diff before.jsonl after.jsonl
  rdma-probe diff main.jsonl branch.jsonl --fail-on 10%
  rdma-probe diff a.jsonl b.jsonl --fail-on registration=20% --fail-on registration.failed=0%
  rdma-probe diff a.jsonl b.jsonl --json | jq '.metrics[] | select(.outcome == \"worse\")'")]
pub struct Args {
    /// Trace before the change
    before: PathBuf,

    /// Trace after the change
    after: PathBuf,

    /// Print the comparison as JSON (schema rdma-diff/1)
    #[arg(long)]
    json: bool,

    /// List every figure, also those that are the same
    #[arg(long)]
    all: bool,

    /// Exit with status 1 when a figure got worse by more than this, all or those whose name begins so; may be repeated
    #[arg(long, value_name = "[NAME=]PERCENT", value_parser = parse_limit)]
    fail_on: Vec<Limit>,
}

/// A figure that got worse by more than `share` ends with status 1.
#[derive(Debug, Clone, PartialEq)]
struct Limit {
    name: String,
    share: f64,
}

impl Limit {
    fn reached(&self, metric: &Metric) -> bool {
        let (name, prefix) = (metric.name.as_str(), self.name.as_str());
        let meant = prefix.is_empty()
            || name == prefix
            || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
        // From nothing to something is more than any share.
        meant && metric.outcome == Outcome::Worse && metric.change.is_none_or(|change| change > self.share)
    }
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    let (name, share) = text.split_once('=').unwrap_or(("", text));
    let share = share.strip_suffix('%').unwrap_or(share).trim();
    match share.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => {
            Ok(Limit { name: name.to_owned(), share: percent / 100.0 })
        }
        _ => Err("not a percentage: write 10% or registration.p99_ns=10%".to_owned()),
    }
}

/// # Errors
/// When a trace cannot be read, or the comparison not be written.
pub fn run(args: Args) -> Result<ExitCode> {
    let diff = diff(&read(&args.before)?, &read(&args.after)?);
    let reached: Vec<&Metric> =
        diff.metrics.iter().filter(|m| args.fail_on.iter().any(|limit| limit.reached(m))).collect();
    let mut out = BufWriter::new(anstream::AutoStream::auto(io::stdout().lock()));
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&diff)?)?;
    } else {
        write_text(&diff, args.all, terminal_width(), &mut out)?;
    }
    out.flush()?;
    for metric in &reached {
        eprintln!("rdma-probe: {} of '{}' got worse: {}", metric.name, metric.comm, change(metric));
    }
    Ok(if reached.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(file: &Path) -> Result<Model> {
    Ok(replay(Reader::open(file)?, Window::default())?)
}

fn write_text(diff: &Diff, all: bool, width: usize, out: &mut dyn Write) -> io::Result<()> {
    for note in &diff.notes {
        writeln!(out, "note: {note}")?;
    }
    if diff.metrics.is_empty() {
        return writeln!(out, "No process is in both recordings: there is nothing to compare.");
    }
    let listed = |m: &&Metric| all || !matches!(m.outcome, Outcome::Same | Outcome::TooFew);
    let rows: Vec<Vec<String>> = diff
        .metrics
        .iter()
        .filter(listed)
        .map(|m| {
            let outcome = match m.outcome {
                Outcome::Worse => "worse",
                Outcome::Better => "better",
                Outcome::Changed => "changed",
                Outcome::TooFew => "too few",
                Outcome::Same => "same",
            };
            vec![
                outcome.to_owned(),
                m.comm.clone(),
                m.name.clone(),
                figure(m, m.a),
                figure(m, m.b),
                change(m),
            ]
        })
        .collect();
    if rows.is_empty() {
        return writeln!(out, "No difference beyond chance (--all lists {} figures).", diff.metrics.len());
    }
    let columns = [
        Column("", Align::Left, 0),
        Column("process", Align::Left, 1),
        Column("figure", Align::Left, 0),
        Column("before", Align::Right, 0),
        Column("after", Align::Right, 0),
        Column("change", Align::Right, 0),
    ];
    render(&columns, &rows, width).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn figure(metric: &Metric, value: Option<u64>) -> String {
    match value {
        None => String::new(),
        Some(n) if metric.name.ends_with("_ns") => duration(n),
        Some(n) if metric.name.ends_with("_bytes") => bytes(n),
        Some(n) => count(n),
    }
}

fn change(metric: &Metric) -> String {
    match (metric.a, metric.b, metric.change) {
        (_, _, Some(change)) if change >= 9.995 => format!("{:.1} ×", change + 1.0),
        (_, _, Some(change)) => format!("{:+.0} %", change * 100.0),
        (Some(0), Some(_), None) => "from none".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_a_percentage_with_or_without_a_name() {
        assert_eq!(parse_limit("10%"), Ok(Limit { name: String::new(), share: 0.1 }));
        assert_eq!(parse_limit("a.b=5"), Ok(Limit { name: "a.b".into(), share: 0.05 }));
        for wrong in ["", "x", "a=b", "-1%", "inf%"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_is_reached_by_what_it_names_and_only_when_worse() {
        let metric = |name: &str, outcome, change| Metric {
            comm: "c".into(),
            name: name.into(),
            a: Some(1),
            b: Some(2),
            change,
            a_interval: None,
            b_interval: None,
            outcome,
        };
        let limit = parse_limit("registration=10%").unwrap();
        assert!(limit.reached(&metric("registration.p99_ns", Outcome::Worse, Some(0.2))));
        assert!(limit.reached(&metric("registration.failed", Outcome::Worse, None)));
        assert!(!limit.reached(&metric("registration.p99_ns", Outcome::Worse, Some(0.05))));
        assert!(!limit.reached(&metric("registration.p99_ns", Outcome::Changed, Some(0.2))));
        assert!(!limit.reached(&metric("registrations.p99_ns", Outcome::Worse, Some(0.2))));
    }
}
