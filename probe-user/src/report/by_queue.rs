//! The whole recording by queue pair or by completion queue, over all processes, busiest first.

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::Model;

use super::build::{Filter, build};
use super::by::{GROUPS_SCHEMA, Groups};
use super::document::{Cq, Polls, Posts, Qp};
use super::table::{Align, Column};
use super::text::clean;
use super::units::{bytes, count, percent};

/// One queue pair and its process.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OfQp {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: String,
    /// The queue pair.
    #[serde(flatten)]
    pub qp: Qp,
}

/// One completion queue and its process.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OfCq {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: String,
    /// The completion queue.
    #[serde(flatten)]
    pub cq: Cq,
}

/// By queue pair: those with most work requests first.
pub fn by_qp(model: &Model, filter: &Filter) -> Groups {
    let mut qps = Vec::new();
    for process in build(model, None, filter).processes {
        let (pid, comm) = (process.pid, process.comm);
        qps.extend(process.queues.qps.into_iter().map(|qp| OfQp { pid, comm: comm.clone(), qp }));
    }
    let wrs = |qp: &Qp| qp.data_path.as_ref().map(|path| [path.posts.wrs, path.posts.recv_posted]);
    qps.sort_by_key(|one| (std::cmp::Reverse(wrs(&one.qp)), one.pid, one.qp.qpn));
    Groups { schema: GROUPS_SCHEMA.to_owned(), qps, ..Groups::default() }
}

/// By completion queue: those with most completions first.
pub fn by_cq(model: &Model, filter: &Filter) -> Groups {
    let mut cqs = Vec::new();
    for process in build(model, None, filter).processes {
        let (pid, comm) = (process.pid, process.comm);
        cqs.extend(process.queues.cqs.into_iter().map(|cq| OfCq { pid, comm: comm.clone(), cq }));
    }
    let cqes = |cq: &Cq| cq.data_path.as_ref().map(|path| [path.polls.cqes, path.polls.polls]);
    cqs.sort_by_key(|one| (std::cmp::Reverse(cqes(&one.cq)), one.pid, one.cq.cq));
    Groups { schema: GROUPS_SCHEMA.to_owned(), cqs, ..Groups::default() }
}

pub(super) const QP_COLUMNS: [Column; 15] = [
    Column("pid", Align::Right, 1),
    Column("process", Align::Left, 0),
    Column("QPN", Align::Right, 0),
    Column("type", Align::Left, 2),
    Column("state", Align::Left, 1),
    Column("posts", Align::Right, 1),
    Column("WRs", Align::Right, 0),
    Column("a post", Align::Right, 1),
    Column("signalled", Align::Right, 0),
    Column("inline", Align::Right, 2),
    Column("bytes", Align::Right, 1),
    Column("receives", Align::Right, 2),
    Column("refused", Align::Right, 1),
    Column("outstanding", Align::Right, 3),
    Column("peer", Align::Left, 4),
];

pub(super) fn qp_row(one: &OfQp) -> Vec<String> {
    let qp = &one.qp;
    let figure = |of: fn(&Posts) -> Option<String>| {
        qp.data_path.as_ref().and_then(|path| of(&path.posts)).unwrap_or_default()
    };
    vec![
        one.pid.to_string(),
        clean(&one.comm),
        qp.qpn.to_string(),
        clean(qp.qp_type.as_deref().unwrap_or_default()),
        if qp.gone { "destroyed".to_owned() } else { clean(qp.state.as_deref().unwrap_or_default()) },
        figure(|p| p.post_calls.map(count)),
        figure(|p| p.wrs.map(count)),
        figure(|p| p.wrs_per_post.map(|n| format!("{n:.1}"))),
        figure(|p| p.signaled_share.map(percent)),
        figure(|p| p.inline_share.map(percent)),
        figure(|p| p.bytes.map(bytes)),
        figure(|p| p.recv_posted.map(count)),
        figure(|p| p.post_failed.filter(|n| *n > 0).map(count)),
        figure(|p| p.shape.as_ref()?.most_outstanding.map(count)),
        qp.dest_qpn
            .map(|qpn| format!("{qpn} @ {}", clean(qp.dgid.as_deref().unwrap_or("?"))))
            .unwrap_or_default(),
    ]
}

pub(super) const CQ_COLUMNS: [Column; 12] = [
    Column("pid", Align::Right, 1),
    Column("process", Align::Left, 0),
    Column("CQ", Align::Left, 0),
    Column("entries", Align::Right, 2),
    Column("QPs", Align::Right, 1),
    Column("polls", Align::Right, 1),
    Column("empty", Align::Right, 0),
    Column("completions", Align::Right, 0),
    Column("a poll", Align::Right, 1),
    Column("errors", Align::Right, 1),
    Column("notify", Align::Right, 2),
    Column("failed with", Align::Left, 3),
];

pub(super) fn cq_row(one: &OfCq) -> Vec<String> {
    let cq = &one.cq;
    let figure = |of: fn(&Polls) -> Option<String>| {
        cq.data_path.as_ref().and_then(|path| of(&path.polls)).unwrap_or_default()
    };
    vec![
        one.pid.to_string(),
        clean(&one.comm),
        format!("{:#x}{}", cq.cq, if cq.gone { " destroyed" } else { "" }),
        cq.cqe.map(|n| count(n.into())).unwrap_or_default(),
        if cq.qps_peak > 0 { count(cq.qps_peak) } else { String::new() },
        figure(|p| p.polls.map(count)),
        figure(|p| p.empty_share.map(percent)),
        figure(|p| p.cqes.map(count)),
        figure(|p| p.cqes_per_poll.map(|n| format!("{n:.1}"))),
        figure(|p| p.cqe_errors.filter(|n| *n > 0).map(count)),
        figure(|p| p.notifies.filter(|n| *n > 0).map(count)),
        figure(|p| Some(p.errors.iter().take(3).map(|e| e.status.as_str()).collect::<Vec<_>>().join(" "))),
    ]
}
