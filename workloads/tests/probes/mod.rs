//! Every variant of every workload under the profiler: what the probes saw equals what the workload counted at its own call
//! sites, to the last call.

use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use workloads::probe;
use workloads::suite;
use workloads::truth::Truth;

/// The runs' figures, by workload and variant.
struct Runs {
    folder: tempfile::TempDir,
    variants: Vec<(&'static str, &'static str)>,
}

impl Runs {
    fn new() -> Runs {
        let variants = suite::ALL.iter().map(|workload| workload.about());
        let variants =
            variants.flat_map(|about| about.variants.iter().map(|variant| (about.name, variant.key)));
        Runs { folder: tempfile::tempdir().expect("a temporary folder"), variants: variants.collect() }
    }

    fn figures(&self, workload: &str, variant: &str) -> PathBuf {
        self.folder.path().join(format!("{workload}-{variant}.json"))
    }

    /// One shell script that runs them all: the profiler attaches once, and meets each as a child.
    fn script(&self, device: &str) -> PathBuf {
        let mut script = String::from("set -e\n");
        for (workload, variant) in &self.variants {
            let about = suite::find(workload).expect("a workload of the suite").about();
            let swept = about.sweep.as_ref().filter(|sweep| sweep.variants.contains(variant));
            let value = swept.map_or(String::new(), |sweep| format!(" --values {}", sweep.usual));
            writeln!(
                script,
                "{} run {workload} --variant {variant}{value} --seconds 0.1 --pairs 1 --device {device} --json --output {}",
                env!("CARGO_BIN_EXE_rdma-workload"),
                self.figures(workload, variant).display()
            )
            .expect("writing to memory");
        }
        let path = self.folder.path().join("all.sh");
        std::fs::write(&path, script).expect("writing the script");
        path
    }
}

fn json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).expect("valid JSON")
}

/// Runs every variant on `device` under one `PROFILER record DATA_PATH`, and holds the report against the ground truths.
pub fn counted_exactly(profiler: &Path, device: &str, data_path: &[&str]) {
    let runs = Runs::new();
    let trace = runs.folder.path().join("trace.jsonl");
    let recorded = Command::new(profiler)
        .args(["record", "--quiet"])
        .args(data_path)
        .arg("-o")
        .arg(&trace)
        .args(["--", "sh"])
        .arg(runs.script(device))
        .output()
        .expect("rdma-probe starts");
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let report = Command::new(profiler).arg("report").arg(&trace).arg("--json").output().expect("a report");
    let report: Value = serde_json::from_slice(&report.stdout).expect("valid JSON");
    assert_eq!(report["lost"]["total"], 0);

    let mut wrong = String::new();
    for (workload, variant) in &runs.variants {
        let own = json(&runs.figures(workload, variant));
        let truth: Truth = serde_json::from_value(own["ground_truth"].clone()).expect("a ground truth");
        let pid = own["pid"].as_u64().expect("a pid");
        for check in probe::check(&truth, &report, pid) {
            // A process that posts nothing has no data path to be seen.
            if check.difference != Some(0) && (check.truth, check.probes) != (0, None) {
                writeln!(wrong, "{workload} {variant}: {check:?}").expect("writing to memory");
            }
        }
    }
    assert!(wrong.is_empty(), "{} variants\n{wrong}", runs.variants.len());
}
