//! The ten families of optimisations: the baseline of each reference workload has its finding, the optimised way does not,
//! and no optimised way of any workload is told anything that would bring nothing. Natively, on the emulated device, with the
//! timing that the comparison asks for. Recording attaches probes, so this needs root.
//! `cargo xtask gallery --families` builds what it needs and runs it; `FAMILIES=name,name` runs some alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use probe_user::doctor::{Finding, Settings, examine};
use probe_user::replay::{Window, replay};
use probe_user::trace::Reader;
use workloads::load::{Load, Mix, Op, Walk};
use workloads::predict::{Case, alone};
use workloads::suite::{Comparison, Timing, Workload, find};

/// The profiler under test; the other programs lie beside it.
const RECORDER: &str = env!("CARGO_BIN_EXE_rdma-probe");

/// Comparison by workload, baseline and optimised variant, and what the doctor must find of the baseline alone.
const FAMILIES: &[(&str, &str, &str, &str)] = &[
    ("registration", "per-op", "pool", "registration-repeated"),
    ("registration", "per-op", "cache", "registration-repeated"),
    ("hugepages", "small", "huge", "registration-small-pages"),
    ("contiguous", "small", "huge-2m", "registration-small-pages"),
    ("multi-qp", "one", "several", "one-queue-pair"),
    ("multi-qp", "mixed", "apart", "reads-and-writes-mixed"),
    ("shared-cq", "per-qp", "shared", "cq-per-qp"),
    ("selective-signaling", "list-all", "list-last", "everything-signalled"),
    ("atomics", "cas-same", "cas-apart", "atomics-hot"),
    ("alignment", "crossing", "aligned", "unaligned-payload"),
    ("access-pattern", "random", "sequential", "random-beyond-reach"),
    ("doorbell-batching", "single", "list", "one-wr-per-post"),
    ("inline", "sge", "inline", "small-not-inlined"),
    ("event-vs-poll", "poll-paced", "event-paced", "busy-poll-idle"),
];

/// Value of the swept parameter where the usual one is too small for its finding: on 64 MiB small pages cost little.
const VALUES: &[(&str, &str)] = &[("contiguous", "268435456")];

/// What an optimised way is rightly told all the same, because both ways leave it out: a workload shows one thing. Those of
/// posting are decided by the timing model, in a test below.
const ALSO_TRUE: &[(&str, &str)] = &[
    // It is about the order of accesses: both ways are on 4 KiB pages.
    ("access-pattern", "registration-small-pages"),
    ("access-pattern", "one-queue-pair"),
    ("hugepages", "one-queue-pair"),
    ("selective-signaling", "one-queue-pair"),
    ("multi-qp", "one-wr-per-post"),
    ("multi-qp", "everything-signalled"),
    ("atomics", "everything-signalled"),
    ("alignment", "everything-signalled"),
    ("doorbell-batching", "everything-signalled"),
];

/// The optimised way of a workload, as the timing model takes it.
fn optimised(name: &str) -> Option<Case> {
    let load = Load { size: 64, region: 1 << 20, ..Load::default() };
    let far = Load { mix: Mix::Only(Op::Read), window: 32, region: 256 << 20, ..load.clone() };
    let load = match name {
        "multi-qp" => Load { mix: Mix::Only(Op::Read), qps: 16, window: 16, ..load },
        "atomics" => {
            Load { mix: Mix::Only(Op::CompareSwap), size: 8, qps: 8, window: 16, walk: Walk::Random, ..load }
        }
        "alignment" => Load { window: 64, ..load },
        "access-pattern" => Load { walk: Walk::Sequential, ..far },
        "hugepages" => Load { walk: Walk::Random, ..far },
        "selective-signaling" => Load { window: 128, batch: 16, signal_every: 16, ..load },
        "doorbell-batching" => Load { qps: 4, window: 128, batch: 16, ..load },
        _ => return None,
    };
    let page = if name == "hugepages" { 2 << 20 } else { 4096 };
    Some(Case { page, ..Case::of(load) })
}

/// The same after following a finding.
fn followed(case: &Case, id: &str) -> Option<Case> {
    let load = case.load.clone();
    let load = match id {
        "everything-signalled" => Load { signal_every: 16, ..load },
        "one-wr-per-post" => Load { batch: 16, ..load },
        "one-queue-pair" => Load { qps: 8, ..load },
        _ => return None,
    };
    Some(Case { load, ..case.clone() })
}

/// Seconds of a run, under way.
const SECONDS: &str = "3";

fn beside(name: &str) -> PathBuf {
    Path::new(RECORDER).parent().unwrap().join(name)
}

/// What is found of one variant.
fn findings(workload: &dyn Workload, comparison: &Comparison, variant: &str) -> Result<Vec<Finding>, String> {
    let about = workload.about();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let mut command = Command::new("timeout");
    command
        .args(["120", RECORDER, "record", "--quiet", "--no-kernel", "--data-path", "full", "--output"])
        .arg(&trace);
    // The device is loaded from the first instruction, so that nothing is attached too late.
    command.args(["--", "env", &format!("LD_PRELOAD={}", beside("librnic_emu.so").display())]);
    if let Some(speed) = comparison.timing.speed() {
        command.args(["RNIC_EMU_PROFILE=cx5-like", &format!("RNIC_EMU_SPEED={speed}")]);
    }
    command.arg(beside("rdma-workload")).args(["run", about.name, "--variant", variant, "--emulated"]);
    command.args(["--reserve-hugepages", "--pairs", "1", "--seconds", SECONDS]);
    if let Some(sweep) = about.sweep.as_ref().filter(|sweep| sweep.variants.contains(&variant)) {
        let usual = sweep.usual.to_string();
        let value =
            VALUES.iter().find(|(name, _)| *name == about.name).map_or(usual.as_str(), |(_, value)| value);
        command.args(["--values", value]);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{}: {}", output.status, said.lines().last().unwrap_or_default()));
    }
    let mut reader = Reader::open(&trace).map_err(|error| error.to_string())?;
    let model =
        replay(reader.by_ref(), Window { from_ns: None, to_ns: None }).map_err(|error| error.to_string())?;
    Ok(examine(&model, &Settings::default()).findings)
}

fn words(found: &Result<Vec<Finding>, String>) -> String {
    match found {
        Err(trouble) => trouble.clone(),
        Ok(findings) if findings.is_empty() => "nothing".into(),
        Ok(findings) => findings
            .iter()
            .map(|f| format!("`{}` ({})", f.id, f.severity.word()))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// What is wrong with a pair.
fn judge(
    name: &str,
    id: &str,
    before: &Result<Vec<Finding>, String>,
    after: &Result<Vec<Finding>, String>,
) -> Option<String> {
    let (Ok(before), Ok(after)) = (before, after) else { return Some("did not run".into()) };
    if !before.iter().any(|finding| finding.id == id) {
        return Some(format!("{id} is not found"));
    }
    if after.iter().any(|finding| finding.id == id) {
        return Some(format!("{id} stays"));
    }
    let accused = after.iter().find(|finding| !ALSO_TRUE.contains(&(name, finding.id)))?;
    Some(format!("the optimised way is accused of {}", accused.id))
}

#[test]
#[ignore = "takes minutes: cargo xtask gallery --families"]
fn the_baseline_of_every_family_has_its_finding_and_the_optimised_way_none() {
    // SAFETY: plain system call.
    assert_eq!(unsafe { libc::geteuid() }, 0, "recording needs root");
    let only = std::env::var("FAMILIES").unwrap_or_default();
    let mut wrong = Vec::new();
    println!("| workload | baseline | found | optimised | found |\n|---|---|---|---|---|");
    for (name, baseline, optimised, id) in FAMILIES {
        if !only.is_empty() && !only.split(',').any(|asked| asked == *name) {
            continue;
        }
        let workload = find(name).unwrap();
        let declared = workload.about().comparisons.iter();
        let comparison =
            declared.into_iter().find(|c| (c.baseline, c.optimised) == (baseline, optimised)).unwrap();
        let pair = || {
            let (before, after) =
                (findings(workload, comparison, baseline), findings(workload, comparison, optimised));
            (judge(name, id, &before, &after), before, after)
        };
        let mut done = pair();
        // A busy machine may starve a program of the time it needs.
        if done.0.is_some() {
            done = pair();
        }
        let (verdict, before, after) = done;
        let timed = if comparison.timing == Timing::Untimed { "" } else { ", timed" };
        println!("| {name}{timed} | {baseline} | {} | {optimised} | {} |", words(&before), words(&after));
        wrong.extend(verdict.map(|why| format!("{name}: {baseline} → {optimised}: {why}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn following_what_an_optimised_way_is_told_of_posting_makes_it_faster_still() {
    let rate = |case: &Case| alone("cx5-like", case).unwrap().unwrap().ops_per_s;
    for (name, id) in ALSO_TRUE {
        let Some(case) = optimised(name) else { continue };
        let Some(followed) = followed(&case, id) else { continue };
        let gain = rate(&followed) / rate(&case);
        println!("{name}: {id}: {gain:.2}×");
        assert!(gain > 1.1, "{name}: {id} would bring {gain:.2}×");
    }
}

#[test]
fn every_family_is_a_comparison_that_its_workload_declares() {
    for (name, baseline, optimised, id) in FAMILIES {
        let about = find(name).unwrap().about();
        assert!(
            about.comparisons.iter().any(|c| (c.baseline, c.optimised) == (*baseline, *optimised)),
            "{name}: {baseline} → {optimised}"
        );
        assert!(probe_user::doctor::rule(id).is_some(), "{id}");
    }
    assert!(workloads::suite::ALL.iter().all(|w| FAMILIES.iter().any(|f| f.0 == w.about().name)));
}
