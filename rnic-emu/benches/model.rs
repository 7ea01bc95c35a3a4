//! How fast the timing model runs, and how much memory it takes: `cargo xtask bench model [--json] [PART OF A NAME]`.
//!
//! Time is that of this thread on a processor, so that other work on the machine does not count (a busy sibling
//! hyperthread still slows it).

use std::fs;
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Instant;

use rnic_emu::model::drive::{Memory, Pattern, Pick, Shape, Window};
use rnic_emu::model::{
    Completion, LoadSpec, Model, NodeId, Op, Place, Profile, Region, Request, Transport, drive,
};
use serde_json::{Value, json};

/// Requests of each load: enough for a second or less.
const REQUESTS: u64 = 2_000_000;
/// Of those, the ones that fill the caches: they are modelled like the others.
const WARMUP: u64 = REQUESTS / 4;

/// Name of the load without a modelled program.
const BARE: &str = "model alone, lists of 4 on 16 QPs";

fn main() {
    // cargo bench adds arguments of its own.
    let as_json = std::env::args().any(|a| a == "--json");
    let profile = Profile::builtin("cx5-like").expect("comes with the product");
    let only = std::env::args().skip(1).find(|a| !a.starts_with("--"));
    let wanted = |name: &str| only.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let mut rows = Vec::new();
    if wanted(BARE) {
        rows.push(bare(&profile));
    }
    for (name, spec) in loads().into_iter().filter(|l| wanted(l.0)) {
        let before = resident();
        let start = cpu_seconds();
        let outcome = drive(&profile, &LoadSpec { warmup: WARMUP, measure: REQUESTS - WARMUP, ..spec })
            .expect("is a valid load");
        let seconds = cpu_seconds() - start;
        black_box(&outcome);
        rows.push(row(name, REQUESTS as f64 / seconds, resident().saturating_sub(before)));
    }
    if as_json {
        println!("{:#}", Value::from(rows));
        return;
    }
    println!("{:<44} {:>22} {:>14}", "load", "modelled requests/s", "memory grown");
    for row in rows {
        println!(
            "{:<44} {:>20.2} M {:>10.1} MiB",
            row["load"].as_str().unwrap_or_default(),
            row["requests_per_s"].as_f64().unwrap_or_default() / 1e6,
            row["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 20),
        );
    }
}

fn row(name: &str, rate: f64, memory: u64) -> Value {
    json!({ "load": name, "requests_per_s": rate, "memory_bytes": memory })
}

/// The model by itself, as the emulated device uses it: posts in, completions out.
fn bare(profile: &Profile) -> Value {
    const QPS: u64 = 16;
    const LIST: u64 = 4;
    let before = resident();
    let mut model = Model::new(profile);
    let (here, there) = (NodeId(0), NodeId(1));
    let cq = model.create_cq(here);
    let qps: Vec<_> = (0..QPS).map(|_| model.create_qp(here, there, Transport::Rc, cq)).collect();
    let mr = model.register(there, Region { bytes: 1 << 30, page: 4096 });
    let mut done: Vec<Completion> = Vec::new();
    let mut list = vec![Request { bytes: 64, inline: true, ..Request::default() }; LIST as usize];
    let start = cpu_seconds();
    let (mut now, mut offset) = (0, 0u64);
    for i in 0..REQUESTS / LIST {
        for request in &mut list {
            offset = offset.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            request.remote = Some(Place { mr, offset: offset % (1 << 30) });
        }
        model.post(now, qps[(i % QPS) as usize], &list);
        // 50 M/s, below what the NIC can do.
        now += LIST * 20_000;
        done.clear();
        model.advance(now, &mut done);
        black_box(&done);
    }
    let rate = REQUESTS as f64 / (cpu_seconds() - start);
    row(BARE, rate, resident().saturating_sub(before))
}

fn loads() -> Vec<(&'static str, LoadSpec)> {
    let base = LoadSpec { bytes: 64, ..LoadSpec::default() };
    let random = |bytes, page| Memory { bytes, page, regions: 1, pattern: Pattern::Random };
    vec![
        ("WRITE, 1 QP", LoadSpec { outstanding: 32, ..base }),
        ("inline WRITE, 16 threads", LoadSpec { threads: 16, outstanding: 256, inline: true, ..base }),
        ("READ, 16 threads, 16 each", LoadSpec { op: Op::Read, threads: 16, outstanding: 16, ..base }),
        (
            "READ, 16 threads, batches",
            LoadSpec { op: Op::Read, threads: 16, outstanding: 256, window: Window::Batch, ..base },
        ),
        (
            "READ, 1 TiB in 4 KiB pages, random",
            LoadSpec { op: Op::Read, threads: 16, outstanding: 256, memory: random(1 << 40, 4096), ..base },
        ),
        (
            "READ, 100,000 QPs at random",
            LoadSpec {
                op: Op::Read,
                threads: 16,
                qps: 100_000,
                outstanding: 256,
                pick: Pick::Random,
                ..base
            },
        ),
        (
            "WRITE, 8 to 1, 64 threads",
            LoadSpec { shape: Shape::FanIn(8), threads: 8, outstanding: 64, ..base },
        ),
        (
            "fetch-and-add, 16 threads",
            LoadSpec {
                op: Op::FetchAdd,
                bytes: 8,
                threads: 16,
                outstanding: 256,
                memory: random(1 << 20, 4096),
                ..base
            },
        ),
    ]
}

/// Time this process has been on a processor, in seconds; wall-clock time where the system does not tell.
fn cpu_seconds() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let on_cpu = fs::read_to_string("/proc/self/schedstat")
        .ok()
        .and_then(|s| s.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()));
    on_cpu.map_or_else(|| START.elapsed().as_secs_f64(), |ns| ns as f64 / 1e9)
}

/// Resident memory of this process in bytes; 0 where the system does not tell.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|s| s.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()));
    pages.unwrap_or(0) * 4096
}
