//! Compare-and-swap against ordinary requests; a lock contended, spread, and done without atomics.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::lock::{Lock, Locking, double_claim, two_increments};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::endpoint::Spec;
use crate::load::{Load, Mix, Op, Walk};
use crate::measure::Metric;
use crate::predict::{Case, Play};
use anyhow::{Context as _, Result, bail};

/// The workload.
pub struct Atomics;

static ABOUT: About = About {
    name: "atomics",
    question: "What does a lock by compare-and-swap cost, and what do its substitutes give up?",
    claim: "CAS is an order of magnitude slower than ordinary requests; a CAS lock stayed under 10 k/s, WRITE+READ reached \
            500 k/s",
    note: "it depends on the addresses and the NIC's generation: old NICs serialise all atomics, newer ones those whose addresses \
           share their low 12 bits. WRITE+READ is no lock: two clients can both believe they hold it",
    signal: "opcode mix, latency per opcode (the share of failed CAS is known to the workload alone)",
    variants: &[
        Variant { key: "cas-contended", label: "N clients take and release one CAS lock" },
        Variant { key: "cas-spread", label: "N clients each take and release a lock of their own" },
        Variant { key: "write-read", label: "N clients WRITE their mark and READ it back" },
        Variant { key: "cas-same", label: "plain CAS, all on one word" },
        Variant { key: "cas-apart", label: "plain CAS, words spread over 1 MiB" },
        Variant { key: "write", label: "plain 8-byte WRITEs, spread the same way" },
    ],
    comparisons: &[
        Comparison {
            title: "plain 8-byte WRITE instead of CAS",
            baseline: "cas-apart",
            optimised: "write",
            metric: Metric::Rate,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "CAS on words spread out instead of one word",
            baseline: "cas-same",
            optimised: "cas-apart",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "WRITE+READ instead of a contended CAS lock (no mutual exclusion!)",
            baseline: "cas-contended",
            optimised: "write-read",
            metric: Metric::Rate,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "a lock per client instead of one for all",
            baseline: "cas-contended",
            optimised: "cas-spread",
            metric: Metric::Rate,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
    ],
    sweep: Some(Sweep {
        parameter: "clients",
        unit: "QPs",
        values: &[1, 2, 4, 8, 16],
        usual: 8,
        variants: &["cas-contended", "cas-spread", "write-read"],
    }),
};

const CLIENTS: u32 = 8;

fn plain(bench: &Bench, variant: &str) -> Result<Option<Load>> {
    let (op, walk) = match variant {
        "cas-same" => (Op::CompareSwap, Walk::Fixed),
        "cas-apart" => (Op::CompareSwap, Walk::Random),
        "write" => (Op::Write, Walk::Random),
        _ => return Ok(None),
    };
    Ok(Some(Load {
        mix: Mix::Only(op),
        size: 8,
        qps: CLIENTS,
        window: bench.window(16),
        walk,
        region: 1 << 20,
        ..Load::default()
    }))
}

fn lock(variant: &str) -> Result<Lock> {
    match variant {
        "cas-contended" => Ok(Lock::Contended),
        "cas-spread" => Ok(Lock::Spread),
        "write-read" => Ok(Lock::WriteRead),
        other => bail!("no variant {other:?}"),
    }
}

fn clients(value: Option<u64>) -> Result<u32> {
    u32::try_from(value.unwrap_or(u64::from(CLIENTS))).context("too many clients")
}

impl Workload for Atomics {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        if !bench.device().info.atomics {
            bail!("device {:?} has no atomics", bench.device().info.name);
        }
        if let Some(load) = plain(bench, variant)? {
            return Traffic::boxed(bench, Spec::default(), load);
        }
        Ok(Box::new(Locking::open(bench, lock(variant)?, clients(value)?)?))
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        // A core for each client: the NIC's atomic unit is the question, not one thread's speed.
        if let Some(load) = plain(bench, variant)? {
            return Ok(Some(Case { threads: CLIENTS, ..Case::of(load) }));
        }
        let clients = clients(value)?;
        let load = Load { size: 8, qps: clients, window: 1, region: 1 << 20, ..Load::default() };
        Ok(Some(Case { play: Play::Lock(lock(variant)?), threads: clients, ..Case::of(load) }))
    }

    fn demonstrate(&self, bench: &Bench) -> Result<Vec<Finding>> {
        if !bench.device().info.atomics {
            return Ok(Vec::new());
        }
        let (both_write_read, both_cas) =
            (double_claim(bench, Lock::WriteRead)?, double_claim(bench, Lock::Contended)?);
        let (sum_write_read, sum_cas) =
            (two_increments(bench, Lock::WriteRead)?, two_increments(bench, Lock::Contended)?);
        Ok(vec![
            Finding {
                statement: "WRITE+READ lets two clients believe they hold the lock at once; CAS does not"
                    .into(),
                observed: format!(
                    "two clients in turn: WRITE+READ gave {both_write_read} holders at the same time, CAS {both_cas}"
                ),
                holds: Some(both_write_read == 2 && both_cas == 1),
            },
            Finding {
                statement: "so updates are lost".into(),
                observed: format!(
                    "two increments of a counter from 0: under WRITE+READ it ends at {sum_write_read}, under CAS at {sum_cas}"
                ),
                holds: Some(sum_write_read == 1 && sum_cas == 2),
            },
        ])
    }
}
