//! `rdma-probe objects`: the verbs objects of a running process, found in its memory.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use probe_user::contexts::{self, Budget, Cut, Device, Found, Site, find, sites};
use probe_user::entry::{Class, Kernel};
use serde_json::{Value, json};

/// Show the contexts, queue pairs and completion queues of a running process, and the functions its data path uses
///
/// They are read from the process's memory, which is neither stopped nor changed. Probes on the functions shown see
/// every post and poll of the process, without symbols.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe objects --pid 4711
  rdma-probe objects --pid 4711 --json")]
pub struct Args {
    /// The process
    #[arg(long, value_name = "PID")]
    pid: u32,
    /// Give up after this many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    limit: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// # Errors
/// A process that is gone or may not be looked into.
pub fn run(args: Args) -> Result<ExitCode> {
    let budget = Budget { time: Duration::from_millis(args.limit), ..Budget::default() };
    let found = find(args.pid, known_to_the_kernel(args.pid).as_ref(), &budget)?;
    let sites = sites(&found, &Kernel::running());
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &as_json(&found, &sites)).context("cannot write the list")?;
        writeln!(out)?;
    } else {
        table(&found, &sites, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Numbers of the queue pairs the kernel lists for the process; `None` where it has no RDMA or lists none.
fn known_to_the_kernel(pid: u32) -> Option<BTreeSet<u32>> {
    let listed = probe_user::devices::inventory().objects?.qps;
    let numbers: BTreeSet<u32> =
        listed.into_iter().filter(|q| q.owner.pid == Some(pid)).map(|q| q.qpn).collect();
    (!numbers.is_empty()).then_some(numbers)
}

fn cut(cut: Cut) -> &'static str {
    match cut {
        Cut::Bytes => "the limit of bytes",
        Cut::Time => "the time limit",
        Cut::Objects => "the limit of objects listed",
    }
}

fn table(found: &Found, sites: &[Site], out: &mut impl Write) -> io::Result<()> {
    for context in &found.contexts {
        let emulated = if context.device == Device::Emulated { " (emulated)" } else { "" };
        writeln!(out, "context {:#x}  {}{emulated}", context.address, context.device_name)?;
        for qp in found.qps.iter().filter(|q| q.context == context.address) {
            let api = if qp.functions.is_empty() { "" } else { "  extended" };
            writeln!(
                out,
                "  QP {:<8}{:#x}  send CQ {:#x}, recv CQ {:#x}{api}",
                qp.number, qp.address, qp.send_cq, qp.recv_cq
            )?;
        }
        for cq in found.cqs.iter().filter(|c| c.context == context.address) {
            let api = if cq.functions.is_empty() { "" } else { "  extended" };
            writeln!(out, "  CQ {:<8}{:#x}  {} entries{api}", cq.handle, cq.address, cq.cqe)?;
        }
    }
    if found.contexts.is_empty() {
        writeln!(out, "no device context in the memory of process {}", found.pid)?;
    } else {
        writeln!(out, "functions of the data path")?;
    }
    for site in sites {
        let delta = site.probe_delta.filter(|d| *d != 0).map(|d| format!("+{d}")).unwrap_or_default();
        let place = format!("{}+{:#x}{delta}", site.path.display(), site.file_offset);
        let class = site.class.map_or("-", |c| match c {
            Class::Optimised => "optimised",
            Class::Emulated => "emulated",
            Class::SingleStepped => "single-stepped",
        });
        writeln!(out, "  {:<24}{class:<16}{place}  ({})", site.role.name(), site.reason)?;
    }
    if let Some(why) = found.cut {
        writeln!(out, "the search ended early, at {}", cut(why))?;
    }
    writeln!(out, "read {} KiB in {} ms", found.bytes_read >> 10, found.took.as_millis())
}

fn as_json(found: &Found, sites: &[Site]) -> Value {
    let functions = |places: &std::collections::BTreeMap<_, contexts::Place>| -> Value {
        places
            .iter()
            .map(|(role, p): (&probe_user::providers::Role, _)| {
                (role.name().to_owned(), json!({"path": p.file.path, "file_offset": p.offset}))
            })
            .collect()
    };
    json!({
        "pid": found.pid,
        "contexts": found.contexts.iter().map(|c| json!({
            "address": c.address, "device": c.device_name, "kind": c.device, "functions": functions(&c.functions),
        })).collect::<Vec<_>>(),
        "qps": found.qps.iter().map(|q| json!({
            "address": q.address, "context": q.context, "number": q.number, "state": q.state, "qp_type": q.qp_type,
            "send_cq": q.send_cq, "recv_cq": q.recv_cq, "functions": functions(&q.functions),
        })).collect::<Vec<_>>(),
        "cqs": found.cqs.iter().map(|c| json!({
            "address": c.address, "context": c.context, "handle": c.handle, "cqe": c.cqe,
            "functions": functions(&c.functions),
        })).collect::<Vec<_>>(),
        "sites": sites,
        "bytes_read": found.bytes_read,
        "took_ms": u64::try_from(found.took.as_millis()).unwrap_or(u64::MAX),
        "ended_early": found.cut.map(cut),
    })
}
