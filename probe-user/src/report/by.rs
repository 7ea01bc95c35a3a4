//! The whole recording cut another way: by kind of call, or by the peer that queue pairs talk to.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::{Model, Qp};
use crate::sample::Call;

use super::build::{Filter, latency};
use super::by_queue::{self, OfCq, OfQp};
use super::document::Latency;
use super::sites::{self, OfSite};
use super::table::{Align, Column, render};
use super::text::{Layout, clean};
use super::units::{bytes, count, duration};

/// The schema named by every grouping this version prints.
pub const GROUPS_SCHEMA: &str = "rdma-groups/1";

/// A recording by call, by peer, by queue pair, by completion queue or by call site; the other lists are empty.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Groups {
    /// Always `rdma-groups/1`.
    pub schema: String,
    /// By process and kind of call, most time first.
    pub calls: Vec<OfCall>,
    /// By peer, most QPs first.
    pub peers: Vec<OfPeer>,
    /// By queue pair, most work requests first.
    pub qps: Vec<OfQp>,
    /// By completion queue, most completions first.
    pub cqs: Vec<OfCq>,
    /// By call site, most time first.
    pub sites: Vec<OfSite>,
}

/// One kind of call in one process.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OfCall {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: String,
    /// Kind of call, as traces spell it.
    pub call: Call,
    /// Calls entered, failed ones included.
    pub count: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Bytes registered or pinned.
    pub bytes: u64,
    /// Latency of those that returned.
    pub latency_ns: Latency,
}

/// The queue pairs that talk to one peer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct OfPeer {
    /// GID, or `LID n`; `null` for QPs that were never connected.
    pub peer: Option<String>,
    /// QPs, alive and destroyed (of these the last 4096 of each process).
    pub qps: u64,
    /// Those of them not destroyed.
    pub live: u64,
    /// Those of them in state `ERR`.
    pub in_error: u64,
    /// `ibv_modify_qp` calls that failed on them.
    pub failed_changes: u64,
    /// Processes that own them.
    pub pids: BTreeSet<u32>,
    /// Path MTUs set.
    pub path_mtu_bytes: BTreeSet<u32>,
    /// Acknowledgement timeouts set (4.096 µs × 2^this).
    pub timeout: BTreeSet<u8>,
    /// Retry counts set.
    pub retry_cnt: BTreeSet<u8>,
    /// RNR retry counts set.
    pub rnr_retry: BTreeSet<u8>,
}

/// By process and kind of call.
pub fn by_call(model: &Model, filter: &Filter) -> Groups {
    let mut calls: Vec<OfCall> = model
        .processes
        .values()
        .filter(|p| filter.wants(p.info.id.pid, &p.info.comm))
        .flat_map(|p| {
            p.calls.iter().filter(|(call, _)| **call != Call::Unknown).map(move |(call, s)| (p, call, s))
        })
        .map(|(p, call, stats)| {
            let count = stats.count();
            let mut latency_ns = latency(&stats.latency(), stats.longest_ns());
            latency_ns.mean = count.total_ns.checked_div(count.returned);
            latency_ns.total = latency_ns.mean.map(|_| count.total_ns);
            OfCall {
                pid: p.info.id.pid,
                comm: p.info.comm.clone(),
                call: *call,
                count: count.entered,
                failed: count.failed,
                bytes: count.bytes,
                latency_ns,
            }
        })
        .collect();
    calls.sort_by_key(|c| (std::cmp::Reverse(c.latency_ns.total), c.pid, c.call));
    Groups { schema: GROUPS_SCHEMA.to_owned(), calls, ..Groups::default() }
}

/// By the peer that queue pairs talk to.
pub fn by_peer(model: &Model, filter: &Filter) -> Groups {
    let mut peers: BTreeMap<Option<String>, OfPeer> = BTreeMap::new();
    for process in model.processes.values().filter(|p| filter.wants(p.info.id.pid, &p.info.comm)) {
        for qp in process.queues.qps().into_iter().chain(process.queues.ended()) {
            let key = peer_of(qp);
            let peer = peers.entry(key.clone()).or_insert_with(|| OfPeer { peer: key, ..OfPeer::default() });
            let a = &qp.attributes;
            peer.qps += 1;
            peer.live += u64::from(qp.destroyed_ns.is_none());
            peer.in_error += u64::from(qp.state.as_deref() == Some("ERR"));
            peer.failed_changes += qp.failed_changes;
            peer.pids.insert(process.info.id.pid);
            peer.path_mtu_bytes.extend(a.path_mtu_bytes);
            peer.timeout.extend(a.timeout);
            peer.retry_cnt.extend(a.retry_cnt);
            peer.rnr_retry.extend(a.rnr_retry);
        }
    }
    let mut peers: Vec<_> = peers.into_values().collect();
    peers.sort_by_key(|p| std::cmp::Reverse(p.qps));
    Groups { schema: GROUPS_SCHEMA.to_owned(), peers, ..Groups::default() }
}

/// A RoCE peer is its GID; an InfiniBand peer of the same subnet has a LID alone.
fn peer_of(qp: &Qp) -> Option<String> {
    let a = &qp.attributes;
    a.dest_qpn?;
    a.dgid.clone().or_else(|| a.dlid.filter(|lid| *lid != 0).map(|lid| format!("LID {lid}")))
}

/// Writes a grouping as a table.
///
/// # Errors
/// Those of `out`.
pub fn write_groups(groups: &Groups, layout: Layout, out: &mut dyn Write) -> io::Result<()> {
    let (columns, rows): (&[Column], Vec<Vec<String>>) = if !groups.qps.is_empty() {
        (&by_queue::QP_COLUMNS, groups.qps.iter().map(by_queue::qp_row).collect())
    } else if !groups.cqs.is_empty() {
        (&by_queue::CQ_COLUMNS, groups.cqs.iter().map(by_queue::cq_row).collect())
    } else if !groups.sites.is_empty() {
        (&sites::COLUMNS, groups.sites.iter().map(sites::row).collect())
    } else if groups.peers.is_empty() {
        (&CALL_COLUMNS, groups.calls.iter().map(call_row).collect())
    } else {
        (&PEER_COLUMNS, groups.peers.iter().map(peer_row).collect())
    };
    if rows.is_empty() {
        return writeln!(out, "Nothing was seen.");
    }
    let shown = &rows[..rows.len().min(layout.rows)];
    render(columns, shown, layout.width).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    match rows.len() - shown.len() {
        0 => Ok(()),
        more => writeln!(out, "and {more} more (--all lists them)"),
    }
}

const CALL_COLUMNS: [Column; 10] = [
    Column("pid", Align::Right, 1),
    Column("process", Align::Left, 0),
    Column("call", Align::Left, 0),
    Column("count", Align::Right, 0),
    Column("failed", Align::Right, 0),
    Column("bytes", Align::Right, 3),
    Column("p50", Align::Right, 2),
    Column("p99", Align::Right, 1),
    Column("max", Align::Right, 2),
    Column("total", Align::Right, 1),
];

const PEER_COLUMNS: [Column; 10] = [
    Column("peer", Align::Left, 0),
    Column("QPs", Align::Right, 0),
    Column("live", Align::Right, 0),
    Column("in error", Align::Right, 0),
    Column("failed changes", Align::Right, 2),
    Column("MTU", Align::Left, 1),
    Column("timeout", Align::Left, 2),
    Column("retry", Align::Left, 3),
    Column("rnr", Align::Left, 3),
    Column("pids", Align::Left, 4),
];

fn call_row(c: &OfCall) -> Vec<String> {
    let time = |ns: Option<u64>| ns.map(duration).unwrap_or_default();
    let call =
        serde_json::to_value(c.call).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
    vec![
        c.pid.to_string(),
        clean(&c.comm),
        call,
        count(c.count),
        count(c.failed),
        if c.bytes > 0 { bytes(c.bytes) } else { String::new() },
        time(c.latency_ns.p50),
        time(c.latency_ns.p99),
        time(c.latency_ns.max),
        time(c.latency_ns.total),
    ]
}

fn peer_row(p: &OfPeer) -> Vec<String> {
    fn list<T: ToString>(values: &BTreeSet<T>) -> String {
        let mut texts: Vec<_> = values.iter().take(6).map(ToString::to_string).collect();
        if values.len() > 6 {
            texts.push("…".to_owned());
        }
        texts.join(" ")
    }
    vec![
        p.peer.as_deref().map_or_else(|| "never connected".to_owned(), clean),
        count(p.qps),
        count(p.live),
        count(p.in_error),
        count(p.failed_changes),
        list(&p.path_mtu_bytes),
        list(&p.timeout),
        list(&p.retry_cnt),
        list(&p.rnr_retry),
        list(&p.pids),
    ]
}
