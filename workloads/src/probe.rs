//! Cross-check: a variant run under `rdma-probe`, and what the probes saw held against its ground truth.

use crate::error::one_line;
use crate::truth::Truth;
use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// One figure, counted twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the figure.
    pub name: String,
    /// What the workload counted itself.
    pub truth: u64,
    /// What the probes saw; absent where they do not observe it.
    pub probes: Option<u64>,
    /// `probes` minus `truth`.
    pub difference: Option<i64>,
}

/// Checks of one variant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// Variant.
    pub variant: String,
    /// Figures.
    pub checks: Vec<Check>,
    /// Events the profiler says it lost.
    pub lost: Option<u64>,
    /// Whether every observed figure was equal.
    pub equal: bool,
    /// Why nothing could be checked.
    pub error: Option<String>,
}

/// File name of the tap's library.
const TAP: &str = "libverbs_tap.so";

/// Where each figure is found in a process's section of the report.
const FIGURES: &[(&str, &[&str])] = &[
    ("registrations", &["registration", "count"]),
    ("registrations_failed", &["registration", "failed"]),
    ("registered_bytes", &["registration", "bytes"]),
    ("deregistrations", &["deregistration", "count"]),
    ("qps_created", &["queues", "qp_created"]),
    ("qps_destroyed", &["queues", "qp_destroyed"]),
    ("cqs_created", &["queues", "cq_created"]),
    ("cqs_destroyed", &["queues", "cq_destroyed"]),
    ("post_calls", &["data_path", "post_calls"]),
    ("post_failed", &["data_path", "post_failed"]),
    ("wrs", &["data_path", "wrs"]),
    ("signaled", &["data_path", "signaled"]),
    ("inline", &["data_path", "inline"]),
    ("bytes", &["data_path", "bytes"]),
    ("recv_posted", &["data_path", "recv_posted"]),
    ("polls", &["data_path", "polls"]),
    ("empty_polls", &["data_path", "empty_polls"]),
    ("cqes", &["data_path", "cqes"]),
    ("cqe_errors", &["data_path", "cqe_errors"]),
];

/// Holds a report's figures for process `pid` against the ground truth.
pub fn check(truth: &Truth, report: &Value, pid: u64) -> Vec<Check> {
    let process = report["processes"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|process| process["pid"].as_u64() == Some(pid));
    let counted = truth.entries();
    FIGURES
        .iter()
        .filter_map(|&(name, path)| {
            let mut truth = counted.iter().find(|(key, _)| *key == name)?.1;
            // The profiler counts calls as they are entered, those that fail included.
            if name == "registrations" {
                truth += counted.iter().find(|(key, _)| *key == "registrations_failed")?.1;
            }
            let probes =
                process.and_then(|process| path.iter().try_fold(process, |at, key| at.get(key))?.as_u64());
            let difference = probes
                .map(|probes| i64::try_from(i128::from(probes) - i128::from(truth)).unwrap_or(i64::MAX));
            Some(Check { name: name.to_owned(), truth, probes, difference })
        })
        .collect()
}

/// The profiler: beside this program, else on the path.
fn profiler() -> PathBuf {
    let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.join("rdma-probe")));
    beside.filter(|place| place.is_file()).unwrap_or_else(|| PathBuf::from("rdma-probe"))
}

/// Runs one variant under the profiler. `arguments` are those of `rdma-workload run NAME --variant KEY …`.
pub fn variant(key: &str, arguments: &[OsString]) -> Checked {
    match run(arguments) {
        Ok((checks, lost)) => {
            let seen = checks.iter().any(|check| check.probes.is_some());
            let equal =
                seen && checks.iter().all(|check| check.difference.is_none_or(|difference| difference == 0));
            Checked { variant: key.to_owned(), checks, lost, equal, error: None }
        }
        Err(error) => Checked {
            variant: key.to_owned(),
            checks: Vec::new(),
            lost: None,
            equal: false,
            error: Some(one_line(&error)),
        },
    }
}

fn run(arguments: &[OsString]) -> Result<(Vec<Check>, Option<u64>)> {
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let (trace, output) = (folder.path().join("trace.jsonl"), folder.path().join("run.json"));
    let program = env::current_exe().context("finding this program")?;
    let mut command = Command::new(profiler());
    command.args(["record", "--quiet"]);
    command.args(data_path_arguments());
    command.arg("-o").arg(&trace).arg("--").arg(&program).args(arguments);
    command.arg("--json").arg("--output").arg(&output);
    execute(&mut command, "rdma-probe record")?;
    let own: Value = read(&output)?;
    let truth: Truth =
        serde_json::from_value(own["ground_truth"].clone()).context("reading the run's ground truth")?;
    let pid = own["pid"].as_u64().context("the run did not tell its pid")?;
    let text =
        execute(Command::new(profiler()).arg("report").arg(&trace).arg("--json"), "rdma-probe report")?;
    let report: Value = serde_json::from_slice(&text).context("reading the profiler's report")?;
    Ok((check(&truth, &report, pid), report["lost"]["total"].as_u64()))
}

/// How this profiler is told to count every post and poll: by the tap where it is installed, which needs no privilege.
fn data_path_arguments() -> &'static [&'static str] {
    let help = Command::new(profiler()).args(["record", "--help"]).stdin(Stdio::null()).output();
    let help = help.map(|help| String::from_utf8_lossy(&help.stdout).into_owned()).unwrap_or_default();
    let folder = profiler().parent().map(Path::to_owned).unwrap_or_default();
    let places =
        [folder.join(TAP), folder.join("deps").join(TAP), folder.join("../lib/rdma-probe").join(TAP)];
    if help.contains("--tap ") && places.iter().any(|place| place.is_file()) {
        &["--tap"]
    } else if help.contains("--data-path") {
        &["--data-path", "full"]
    } else {
        &[]
    }
}

fn execute(command: &mut Command, what: &str) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {what}; build it with `cargo build -p probe-user`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{what} failed ({}): {}", output.status, said.lines().last().unwrap_or("no message"));
    }
    Ok(output.stdout)
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("the run left no figures in {}", path.display()))?;
    serde_json::from_slice(&text).context("reading the run's figures")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn truth() -> Truth {
        Truth { registrations: 9, registrations_failed: 1, qps_created: 2, wrs: 100, ..Truth::ZERO }
    }

    fn find(checks: &[Check], name: &str) -> Check {
        checks.iter().find(|check| check.name == name).unwrap().clone()
    }

    #[test]
    fn figures_are_compared_for_the_right_process_with_failed_calls_counted() {
        let report = json!({"processes": [
            {"pid": 1, "registration": {"count": 5}},
            {"pid": 7, "registration": {"count": 10, "failed": 1}, "queues": {"qp_created": 3}},
        ]});
        let checks = check(&truth(), &report, 7);
        assert_eq!(find(&checks, "registrations").difference, Some(0));
        assert_eq!(find(&checks, "qps_created").difference, Some(1));
    }

    #[test]
    fn figures_the_probes_do_not_observe_are_neither_equal_nor_different() {
        let report = json!({"processes": [{"pid": 7, "registration": {"count": null}}]});
        let checks = check(&truth(), &report, 7);
        assert_eq!(find(&checks, "registrations").difference, None);
        assert_eq!(find(&checks, "wrs").probes, None);
    }

    #[test]
    fn a_report_without_the_process_or_of_another_shape_observes_nothing() {
        for report in [json!({}), json!([]), json!({"processes": 3}), json!({"processes": [{"pid": 8}]})] {
            assert!(check(&truth(), &report, 7).iter().all(|check| check.probes.is_none()));
        }
    }
}
