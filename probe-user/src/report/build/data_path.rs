//! Posts and polls: from the model's counts to the figures of a report.

use std::collections::HashMap;

use crate::data_path::FLUSHED;
use crate::model::{self, ProcessModel};
use crate::sample::{QueueCounts, QueueKind};

use super::super::document::{
    Cq, CqPath, CqeErrors, DataPath, Failure, Polls, Posts, Qp, QpPath, ReapOf, Shape, WrSizes,
};
use super::super::names;
use super::latency;

/// Posts and polls of a process.
pub(super) fn of_process(process: &ProcessModel) -> DataPath {
    let path = &process.data_path;
    if !path.is_observed() {
        let why = match path.observed.why.as_str() {
            "" => "no source watched posts and polls (`record --tap`, or `--data-path`)",
            why => why,
        };
        return DataPath { unavailable: Some(why.to_owned()), ..DataPath::default() };
    }
    let counts = path.totals.counts();
    DataPath {
        posts: posts(&counts),
        polls: polls(&counts),
        observed: Some(path.observed.clone()),
        uncounted: Some(path.uncounted()),
        unseen: path.unseen.clone(),
        unavailable: None,
    }
}

/// Adds to the queue pairs (those alive first, then the destroyed ones, youngest last) what was posted on each, and
/// those that only the data path knows; to the completion queues what was polled.
pub(super) fn into_queues(process: &ProcessModel, qps: &mut Vec<Qp>, cqs: &mut Vec<Cq>) {
    let path = &process.data_path;
    if !path.is_observed() {
        return;
    }
    // A pointer and number may name several queue pairs one after the other: the youngest of one list is the youngest
    // of the other.
    let mut known: HashMap<(u64, u32), Vec<&model::Queue>> = HashMap::new();
    for queue in path.queues().filter(|queue| queue.kind == QueueKind::Qp) {
        known.entry((queue.pointer, queue.number)).or_default().push(queue);
    }
    let (alive, ended): (Vec<_>, Vec<_>) = qps.iter_mut().partition(|qp| qp.destroyed_ns.is_none());
    for qp in alive.into_iter().chain(ended.into_iter().rev()) {
        let Some(queues) = known.get_mut(&(qp.qp, qp.qpn)) else { continue };
        let gone = qp.destroyed_ns.is_some();
        let Some(at) = queues.iter().rposition(|queue| queue.gone == gone).or(queues.len().checked_sub(1))
        else {
            continue;
        };
        qp.data_path = Some(qp_path(path, queues.remove(at)));
    }
    let mut rest: Vec<_> = known.into_values().flatten().collect();
    rest.sort_unstable_by_key(|queue| queue.object);
    qps.extend(rest.into_iter().map(|queue| Qp {
        qp: queue.pointer,
        qpn: queue.number,
        gone: queue.gone,
        data_path: Some(qp_path(path, queue)),
        ..Qp::default()
    }));
    for cq in cqs.iter_mut() {
        let queue = path.at(QueueKind::Cq, cq.cq).filter(|queue| !queue.gone);
        cq.data_path = queue.map(|queue| cq_path(path, queue));
    }
    let listed: std::collections::HashSet<u64> = cqs.iter().map(|cq| cq.cq).collect();
    let more = path.queues().filter(|queue| queue.kind == QueueKind::Cq);
    cqs.extend(more.filter(|queue| queue.gone || !listed.contains(&queue.pointer)).map(|queue| Cq {
        cq: queue.pointer,
        gone: queue.gone,
        data_path: Some(cq_path(path, queue)),
        ..Cq::default()
    }));
}

fn qp_path(path: &model::DataPath, queue: &model::Queue) -> QpPath {
    QpPath { posts: posts(&queue.tally.counts()), observed: path.observed_of(queue).clone() }
}

fn cq_path(path: &model::DataPath, queue: &model::Queue) -> CqPath {
    CqPath { polls: polls(&queue.tally.counts()), observed: path.observed_of(queue).clone() }
}

/// A part of a whole; `None` where there is no whole.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn posts(c: &QueueCounts) -> Posts {
    let mut failures: Vec<_> = c
        .post_errnos
        .iter()
        .map(|(number, count)| Failure { errno: names::errno(*number), number: *number, count: *count })
        .collect();
    failures.sort_by_key(|f| std::cmp::Reverse(f.count));
    Posts {
        post_calls: Some(c.post_calls),
        post_failed: Some(c.post_failed),
        post_failures: failures,
        refused: c.detail.as_deref().map(|d| d.refused.clone()).unwrap_or_default(),
        wrs: Some(c.wrs),
        signaled: Some(c.signalled),
        inline: Some(c.inline),
        bytes: Some(c.bytes),
        sges: Some(c.sges),
        longest_unsignaled: Some(c.longest_unsignalled),
        opcodes: c.opcodes.iter().map(|(opcode, n)| (opcode.name().to_owned(), *n)).collect(),
        recv_calls: Some(c.recv_calls),
        recv_failed: Some(c.recv_failed),
        recv_posted: Some(c.recv_wrs),
        recv_bytes: Some(c.recv_bytes),
        cut: Some(c.cut),
        aborted: Some(c.aborted),
        wrs_per_post: share(c.wrs, c.post_calls.saturating_sub(c.post_failed)),
        signaled_share: share(c.signalled, c.wrs),
        inline_share: share(c.inline, c.wrs),
        shape: shape(c),
    }
}

fn shape(c: &QueueCounts) -> Option<Shape> {
    let d = c.detail.as_deref()?;
    let shape = Shape {
        examined_wrs: d.examined_wrs,
        sizes: d
            .sizes
            .iter()
            .map(|(class, count)| WrSizes { up_to_bytes: largest(*class), count: *count })
            .collect(),
        unaligned_64: d.unaligned_64,
        unaligned_4096: d.unaligned_4096,
        odd_lengths: d.odd_lengths,
        remote_strides: d.remote_strides,
        local_strides: d.local_strides,
        could_inline: d.could_inline,
        mergeable: d.mergeable,
        most_outstanding: d.most_outstanding,
        post_to_reap_ns: d
            .post_to_reap_ns
            .iter()
            .map(|one| ReapOf {
                opcode: one.opcode.name().to_owned(),
                up_to_bytes: largest(one.size_class),
                count: one.latency_ns.total(),
                latency_ns: latency(&one.latency_ns, one.latency_ns.highest().map(|(_, high)| high)),
            })
            .collect(),
    };
    (shape != Shape::default()).then_some(shape)
}

/// Largest payload of a size class.
fn largest(class: u8) -> u64 {
    1_u64.checked_shl(class.into()).unwrap_or(u64::MAX)
}

fn polls(c: &QueueCounts) -> Polls {
    let detail = c.detail.as_deref();
    let by_qp = detail.map(|d| d.failed_by_qp.as_slice()).unwrap_or_default();
    let mut errors: Vec<CqeErrors> = by_qp
        .iter()
        .map(|one| CqeErrors {
            status: names::wc_status(one.status),
            number: one.status,
            qpn: Some(one.qpn).filter(|qpn| *qpn != 0),
            count: one.count,
            flushed: one.status == FLUSHED,
            first: one.first.as_deref().cloned(),
        })
        .collect();
    for (number, count) in c.statuses.iter().filter(|(number, _)| **number != 0) {
        let named: u64 = by_qp.iter().filter(|one| one.status == *number).map(|one| one.count).sum();
        if *count > named {
            let (status, count) = (names::wc_status(*number), count - named);
            let flushed = *number == FLUSHED;
            errors.push(CqeErrors { status, number: *number, qpn: None, count, flushed, first: None });
        }
    }
    // What failed first is what matters: the rest of its queue pair was flushed behind it.
    errors.sort_by_key(|one| (one.flushed, std::cmp::Reverse(one.count), one.number, one.qpn));
    let found = c.polls.saturating_sub(c.empty_polls).saturating_sub(c.failed_polls);
    Polls {
        polls: Some(c.polls),
        empty_polls: Some(c.empty_polls),
        failed_polls: Some(c.failed_polls),
        cqes: c.all_cqes(),
        cut_polls: Some(c.cut_polls),
        // Among those that were looked at.
        cqe_errors: Some(c.cqe_errors).filter(|n| *n > 0 || c.cut_polls == 0),
        errors,
        notifies: Some(c.notifies),
        cqes_per_poll: c.all_cqes().and_then(|cqes| share(cqes, found)),
        empty_share: share(c.empty_polls, c.polls),
        most_cqes_per_poll: detail.and_then(|d| d.most_cqes_per_poll),
        blind_events: detail.and_then(|d| d.blind_events),
        guessed_cqes: detail.and_then(|d| d.guessed_cqes),
        cqe_to_post_ns: detail
            .and_then(|d| d.cqe_to_post_ns.as_ref())
            .map(|h| latency(h, h.highest().map(|(_, high)| high))),
    }
}
