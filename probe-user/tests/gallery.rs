//! Every sick program is found, its fault first; its healthy twin is not accused of it, nor of anything else. Natively,
//! on the emulated device, or on a real one where `GALLERY_DEVICE` names it. Recording attaches probes, so this needs
//! root. `cargo xtask gallery` builds what it needs and runs it; with `--kernel` in the virtual machine, on soft-RoCE.
//!
//! `GALLERY=name,name` runs some alone; `GALLERY_TABLE=file` writes what was found as a Markdown table.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use probe_user::doctor::{Finding, RULES, Settings, Shown, examine};
use probe_user::replay::{Window, replay};
use probe_user::trace::Reader;
use workloads::sick::{ALL, Needs, Program};

/// The profiler under test; the other programs lie beside it.
const RECORDER: &str = env!("CARGO_BIN_EXE_rdma-probe");

/// How long a program runs.
const SECONDS: &str = "2.5";

/// Programs whose fault is a change from sample to sample: a run of this length has few of a second.
const SAMPLED_OFTEN: &[&str] = &["latency-with-loss"];

/// Recordings at the same time: on the emulated device, where each program has one of its own, and on a real one, whose
/// counters are of all.
const AT_ONCE: (usize, usize) = (4, 1);

/// Programs whose fault soft-RoCE does not have, and why. Those that need a NIC's timing are not run there either.
const NOT_ON_SOFT_ROCE: &[(&str, &str)] = &[
    (
        "events-at-high-rate",
        "the virtual machine makes some 700 events a second, not the thousands that cost something",
    ),
    (
        "host-gap-dominates",
        "the virtual machine makes some hundred messages a second, as a program does that has time left",
    ),
    (
        "local-protection-error",
        "soft-RoCE completes the request with WR_FLUSH_ERR, not LOC_PROT_ERR: `requests-flushed` is found",
    ),
    (
        "memlock-near",
        "the program gives up its privilege, after which soft-RoCE refuses its posts (EACCES: they are writes to a file \
         opened before)",
    ),
];

/// What else is found of a program on soft-RoCE, rightly, and why.
const ALSO_ON_SOFT_ROCE: &[(&str, &str, &str)] = &[
    (
        "nothing-signalled",
        "cq-too-small",
        "the completion queue is granted fewer entries than the send queue, which is full",
    ),
    ("nothing-signalled", "one-wr-per-post", "it posts one by one until the queue is full"),
    (
        "qp-leak",
        "qp-churn",
        "the twin connects anew too, and each time is a tenth of the time in a virtual machine",
    ),
    (
        "send-queue-full",
        "cq-too-small",
        "63 entries are granted to either queue, and 63 requests are under way",
    ),
];

/// The real device to run on.
fn device() -> Option<String> {
    std::env::var("GALLERY_DEVICE").ok().filter(|name| !name.is_empty())
}

/// Why a program does not show its fault on the real device.
fn not_applicable(program: &Program) -> Option<&'static str> {
    device()?;
    if program.needs == Needs::Timing {
        return Some("its fault costs a NIC's time, which software has not");
    }
    NOT_ON_SOFT_ROCE.iter().find(|(name, _)| *name == program.name).map(|(_, why)| *why)
}

/// Why something beside the fault is rightly found on the real device.
fn also(program: &Program, id: &str) -> Option<&'static str> {
    device()?;
    ALSO_ON_SOFT_ROCE
        .iter()
        .find(|(name, also, _)| *name == program.name && *also == id)
        .map(|(.., why)| *why)
}

fn beside(name: &str) -> PathBuf {
    Path::new(RECORDER).parent().unwrap().join(name)
}

/// What was found in one run.
struct Run {
    program: &'static Program,
    healthy: bool,
    findings: Vec<Finding>,
    trouble: Option<String>,
}

fn run(program: &'static Program, healthy: bool) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let mut command = Command::new("timeout");
    command
        .args(["120", RECORDER, "record", "--quiet", "--no-kernel", "--data-path", "full", "--output"])
        .arg(&trace);
    if SAMPLED_OFTEN.contains(&program.name) {
        command.args(["--interval", "100ms"]);
    }
    command.arg("--");
    if device().is_none() {
        // The device is loaded from the first instruction, so that nothing is attached too late.
        command.args(["env", &format!("LD_PRELOAD={}", beside("librnic_emu.so").display())]);
        if program.needs == Needs::Timing {
            command.args(["RNIC_EMU_PROFILE=cx5-like", "RNIC_EMU_SPEED=1/64"]);
        }
    }
    command.arg(beside("rdma-workload")).args(["sick", program.name, "--seconds", SECONDS]);
    if let Some(name) = device() {
        command.args(["--device", &name]);
    }
    if healthy {
        command.arg("--healthy");
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let trouble = (!output.status.success()).then(|| format!("{}: {said}", output.status));
    let findings = match Reader::open(&trace) {
        Ok(mut reader) => {
            let model = replay(reader.by_ref(), Window { from_ns: None, to_ns: None }).unwrap();
            examine(&model, &Settings::default()).findings
        }
        Err(_) => Vec::new(),
    };
    Run { program, healthy, findings, trouble }
}

/// What a run proves wrong.
fn judge(run: &Run) -> Option<String> {
    let name = run.program.name;
    // What is rightly found on this device may come first: it is not what the program is about.
    let ids: Vec<_> =
        run.findings.iter().map(|f| f.id).filter(|id| also(run.program, id).is_none()).collect();
    if let Some(trouble) = &run.trouble {
        return Some(format!("{name} did not run: {trouble}"));
    }
    if run.healthy {
        return (!ids.is_empty()).then(|| format!("{name} is healthy and accused of {ids:?}"));
    }
    (ids.first() != Some(&name)).then(|| format!("{name} is found as {ids:?}"))
}

fn table(runs: &[Run]) -> String {
    let mut text = String::from("| program | found | beside it | healthy twin |\n|---|---|---|---|\n");
    for run in runs.iter().filter(|run| !run.healthy) {
        let twin = runs.iter().find(|other| other.healthy && other.program.name == run.program.name);
        let first = run.findings.first().map_or("nothing".to_owned(), |f| {
            format!("`{}`, {}, {} confidence", f.id, f.severity.word(), f.confidence.word())
        });
        let list = |findings: &[Finding]| {
            let one = |f: &Finding| {
                let why = also(run.program, f.id).map(|why| format!(" ({why})"));
                format!("`{}`{}", f.id, why.unwrap_or_default())
            };
            let ids: Vec<_> = findings.iter().map(one).collect();
            if ids.is_empty() { "nothing".to_owned() } else { ids.join(", ") }
        };
        let rest = list(run.findings.get(1..).unwrap_or_default());
        let twin = twin.map_or("not run".to_owned(), |twin| list(&twin.findings));
        let _ = writeln!(text, "| `{}` | {first} | {rest} | {twin} |", run.program.name);
    }
    for program in ALL {
        if let Some(why) = not_applicable(program) {
            let _ = writeln!(text, "| `{}` | not applicable: {why} | | |", program.name);
        }
    }
    text
}

#[test]
#[ignore = "takes minutes: cargo xtask gallery"]
fn every_sick_program_is_found_and_no_healthy_one() {
    // SAFETY: plain system call.
    assert_eq!(unsafe { libc::geteuid() }, 0, "recording needs root");
    for name in ["rdma-workload", "librnic_emu.so"] {
        assert!(beside(name).is_file(), "{name} is not built: run `cargo xtask gallery`");
    }
    let only = std::env::var("GALLERY").unwrap_or_default();
    let chosen: Vec<_> = ALL
        .iter()
        .filter(|program| only.is_empty() || only.split(',').any(|name| name == program.name))
        .filter(|program| not_applicable(program).is_none())
        .flat_map(|program| [(*program, false), (*program, true)])
        .collect();
    let (next, runs) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let at_once = if device().is_some() { AT_ONCE.1 } else { AT_ONCE.0 };
    std::thread::scope(|threads| {
        for _ in 0..at_once {
            threads.spawn(|| {
                while let Some((program, healthy)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut done = run(program, *healthy);
                    // A busy machine may starve a program of the time it needs: what it is not found by is asked twice.
                    if judge(&done).is_some() {
                        done = run(program, *healthy);
                    }
                    runs.lock().unwrap().push(done);
                }
            });
        }
    });
    let mut runs = runs.into_inner().unwrap();
    runs.sort_by_key(|run| (run.program.name, run.healthy));
    println!("{}", table(&runs));
    if let Some(file) = std::env::var_os("GALLERY_TABLE") {
        std::fs::write(file, table(&runs)).unwrap();
    }
    let wrong: Vec<_> = runs.iter().filter_map(judge).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Programs that run at the same time, in the order in which their faults are to be named: problems before warnings,
/// the dearer first.
const TOGETHER: [&str; 4] = ["registration-repeated", "retry-exceeded", "cq-per-qp", "atomics-hot"];

/// What is found of them, the dearest first.
fn together() -> Vec<&'static str> {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let workload = beside("rdma-workload");
    let each = TOGETHER.map(|name| format!("{} sick {name} --seconds 4 &", workload.display()));
    let status = Command::new("timeout")
        .args(["120", RECORDER, "record", "--quiet", "--no-kernel", "--data-path", "full", "--output"])
        .arg(&trace)
        .args(["--", "env", &format!("LD_PRELOAD={}", beside("librnic_emu.so").display())])
        .args(["sh", "-c", &format!("{} wait", each.join(" "))])
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let mut reader = Reader::open(&trace).unwrap();
    let model = replay(reader.by_ref(), Window { from_ns: None, to_ns: None }).unwrap();
    examine(&model, &Settings::default()).findings.iter().map(|finding| finding.id).collect()
}

#[test]
#[ignore = "records: cargo xtask gallery"]
fn several_faults_at_once_are_all_named_the_dearest_first() {
    // A busy machine may starve a program of what its fault costs: asked again before it is said.
    let found = Some(together()).filter(|ids| *ids == TOGETHER).unwrap_or_else(together);
    assert_eq!(found, TOGETHER);
}

#[test]
fn rules_and_programs_name_each_other() {
    for rule in RULES {
        if let Shown::By(name) = rule.shown {
            assert!(ALL.iter().any(|program| program.name == name), "no program shows {name}");
            assert_eq!(name, rule.id, "a program is named after its rule");
        }
    }
    for program in ALL {
        let rule = RULES.iter().find(|rule| rule.id == program.name);
        let rule = rule.unwrap_or_else(|| panic!("no rule finds {}", program.name));
        assert_eq!(rule.shown, Shown::By(program.name));
    }
}
