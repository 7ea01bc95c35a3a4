//! Completions with an error, traced to peer and queue pair.

use std::collections::BTreeMap;

use super::super::finding::{Confidence, Evidence, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Verdict};
use super::super::subject::{Subject, peer_of};
use super::man;
use crate::report::known_wc_status;
use crate::report::units::count;

/// `enum ibv_wc_status`.
mod status {
    pub const LOC_LEN_ERR: u32 = 1;
    pub const LOC_QP_OP_ERR: u32 = 2;
    pub const LOC_PROT_ERR: u32 = 4;
    pub const WR_FLUSH_ERR: u32 = 5;
    pub const REM_INV_REQ_ERR: u32 = 9;
    pub const REM_ACCESS_ERR: u32 = 10;
    pub const REM_OP_ERR: u32 = 11;
    pub const RETRY_EXC_ERR: u32 = 12;
    pub const RNR_RETRY_EXC_ERR: u32 = 13;
}

/// No acknowledgement.
pub static RETRIES: Rule = Rule {
    id: "retry-exceeded",
    title: "connections break: the peer does not answer",
    looks_at: "completions with status 12 (IBV_WC_RETRY_EXC_ERR), joined with the peer each queue pair was connected to",
    plane: Plane::Data,
    thresholds: &[],
    cause: "The request was sent again as often as retry_cnt says and never acknowledged: the peer's queue pair is gone or not yet ready, its host is down, the path is broken (routing, GID index, MTU), or packets are lost.",
    remedy: "Look at the peer named in the evidence: is its process alive, is its queue pair in RTR or RTS before the first send, does it answer ping from this interface? On RoCE check GID index, path MTU and loss counters (out_of_sequence, local_ack_timeout_err).",
    unless: "",
    workload: None,
    shown: Shown::By("retry-exceeded"),
    links: &[man!("3", "ibv_poll_cq")],
    met: &["openucx/ucx#6673", "openucx/ucx#6669", "NVIDIA/nccl#880", "NVIDIA/nccl#426"],
    check: Check::Process(retries),
};

/// No receive at the peer.
pub static RNR: Rule = Rule {
    id: "rnr-retry-exceeded",
    title: "connections break: the peer had no receive posted",
    looks_at: "completions with status 13 (IBV_WC_RNR_RETRY_EXC_ERR), with rnr_retry and peer of the queue pair",
    plane: Plane::Data,
    thresholds: &[],
    cause: "The message needed a posted receive at the peer and met none, as often as rnr_retry allows.",
    remedy: "Post receives before the queue pair goes to RTR, keep more posted than the peer can send, and set rnr_retry to 7 (for ever) or at least 3 with min_rnr_timer 12 (0.64 ms).",
    unless: "a missing receive is to break the connection at once.",
    workload: None,
    shown: Shown::By("rnr-retry-exceeded"),
    links: &[man!("3", "ibv_post_recv"), man!("3", "ibv_modify_qp")],
    met: &["spdk/spdk#2429", "meta-pytorch/torchcomms#3345"],
    check: Check::Process(rnr),
};

/// A key the peer does not accept.
pub static REMOTE_ACCESS: Rule = Rule {
    id: "remote-access-error",
    title: "the peer refuses access to its memory",
    looks_at: "completions with status 10 (IBV_WC_REM_ACCESS_ERR), with the peer of the queue pair, and regions of this host that could be meant",
    plane: Plane::Data,
    thresholds: &[],
    cause: "The rkey is wrong or its region was deregistered, the range reaches beyond the region, the region lacks the access flag (remote write, read, atomic), it belongs to another protection domain than the peer's queue pair, or that queue pair's access flags forbid it.",
    remedy: "At the peer: register with IBV_ACCESS_REMOTE_WRITE, _READ or _ATOMIC as used, set the same in qp_access_flags at INIT, keep the region until all are done with it, and send its rkey and address anew after registering anew.",
    unless: "",
    workload: None,
    shown: Shown::By("remote-access-error"),
    links: &[man!("3", "ibv_reg_mr"), man!("3", "ibv_poll_cq")],
    met: &["ROCm/rocm-systems#11557", "openucx/ucx#9771", "ofiwg/libfabric#8257"],
    check: Check::Process(remote_access),
};

/// A request the peer cannot serve.
pub static REMOTE_INVALID: Rule = Rule {
    id: "remote-invalid-request",
    title: "the peer refuses a request as invalid",
    looks_at: "completions with status 9 or 11 (IBV_WC_REM_INV_REQ_ERR, _REM_OP_ERR), with path MTU and peer of the queue pair",
    plane: Plane::Data,
    thresholds: &[],
    cause: "The message was longer than the receive it met, the path MTU differs between both ends, more READs were outstanding than the peer's max_dest_rd_atomic, or the peer failed to do its part.",
    remedy: "Make receives as long as the longest message, use the same path_mtu at both ends (the smaller active MTU), and max_rd_atomic no larger than the peer's max_dest_rd_atomic.",
    unless: "",
    workload: None,
    shown: Shown::By("remote-invalid-request"),
    links: &[man!("3", "ibv_poll_cq"), man!("3", "ibv_modify_qp")],
    met: &["kvcache-ai/Mooncake#3868", "NVIDIA/nccl#2135", "tensorflow/tensorflow#9432"],
    check: Check::Process(remote_invalid),
};

/// A local key or length that is wrong.
pub static LOCAL: Rule = Rule {
    id: "local-protection-error",
    title: "requests name local memory they may not use",
    looks_at: "completions with status 1, 2 or 4 (IBV_WC_LOC_LEN_ERR, _LOC_QP_OP_ERR, _LOC_PROT_ERR)",
    plane: Plane::Data,
    thresholds: &[],
    cause: "An SGE's lkey is wrong or its region is gone, the range reaches beyond the region, a receive or READ target lacks IBV_ACCESS_LOCAL_WRITE, or a message is longer than the receive's buffers.",
    remedy: "Check that address and length of each SGE lie inside the region of its lkey, that the region belongs to the queue pair's protection domain and still lives, and that buffers written by the device have IBV_ACCESS_LOCAL_WRITE.",
    unless: "",
    workload: None,
    shown: Shown::By("local-protection-error"),
    links: &[man!("3", "ibv_reg_mr"), man!("3", "ibv_poll_cq")],
    met: &["ROCm/rocm-systems#11557", "openucx/ucx#9771"],
    check: Check::Process(local),
};

/// Flushed without a cause in sight.
pub static FLUSHED: Rule = Rule {
    id: "requests-flushed",
    title: "requests are flushed: their queue pair went to the error state",
    looks_at: "completions with status 5 (IBV_WC_WR_FLUSH_ERR) where no other error was seen",
    plane: Plane::Data,
    thresholds: &[],
    cause: "The queue pair went to the error state with requests outstanding, by the program itself (ibv_modify_qp to ERR, rdma_disconnect), by the peer's disconnect, or by an asynchronous error.",
    remedy: "If it was not meant: read asynchronous events (ibv_get_async_event) and connection events, which tell the first cause; destroy the queue pair and connect anew.",
    unless: "it is an orderly shutdown that cancels what is outstanding.",
    workload: None,
    shown: Shown::By("requests-flushed"),
    links: &[man!("3", "ibv_poll_cq"), man!("3", "ibv_get_async_event")],
    met: &["openucx/ucx#9771"],
    check: Check::Process(flushed),
};

/// Failed completions of these kinds.
struct Failed {
    count: u64,
    evidence: Vec<Evidence>,
}

/// Failed completions of the statuses, by queue pair where that is known.
fn failed(subject: &Subject<'_>, statuses: &[u32]) -> Option<Failed> {
    let traffic = subject.traffic?;
    let total: u64 = statuses
        .iter()
        .filter_map(|status| traffic.all.statuses.get(status))
        .fold(0, |a, b| a.saturating_add(*b));
    if total == 0 {
        return None;
    }
    let mut by_qp: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for detail in traffic.queues.iter().filter_map(|(_, counts)| counts.detail.as_deref()) {
        for one in detail.failed_by_qp.iter().filter(|one| statuses.contains(&one.status)) {
            *by_qp.entry((one.status, one.qpn)).or_default() += one.count;
        }
    }
    let mut evidence: Vec<Evidence> = by_qp
        .iter()
        .take(6)
        .map(|((status, qpn), n)| Evidence {
            text: format!("QPN {qpn}{}: {} ({})", connected_to(subject, *qpn), name(*status), count(*n)),
            qpns: vec![*qpn],
        })
        .collect();
    if evidence.is_empty() {
        // Only the completion queue is known: its queue pairs are those that could be meant.
        for (queue, counts) in traffic.polled() {
            for status in statuses {
                let Some(n) = counts.statuses.get(status) else { continue };
                let sharers = subject.process.queues.sharers(queue.pointer);
                let ended = || {
                    subject.qps.iter().filter(|qp| qp.cqs().any(|cq| cq == queue.pointer)).map(|qp| qp.qpn)
                };
                let qpns: Vec<u32> = if sharers.is_empty() {
                    ended().take(6).collect()
                } else {
                    sharers.into_iter().take(6).collect()
                };
                let peers = match qpns.as_slice() {
                    [one] => connected_to(subject, *one),
                    _ => String::new(),
                };
                let names = qpns.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                evidence.push(Evidence {
                    text: format!(
                        "{} ({}) on the completion queue of QPN {names}{peers}",
                        name(*status),
                        count(*n)
                    ),
                    qpns,
                });
            }
        }
        evidence.truncate(6);
    }
    Some(Failed { count: total, evidence })
}

/// ` (to 18 at ::1)`
fn connected_to(subject: &Subject<'_>, qpn: u32) -> String {
    let Some(qp) = subject.qp_of(qpn) else { return String::new() };
    match (qp.attributes.dest_qpn, peer_of(qp)) {
        (Some(there), Some(peer)) => format!(" (to QPN {there} at {peer})"),
        (Some(there), None) => format!(" (to QPN {there})"),
        _ => String::new(),
    }
}

fn name(status: u32) -> String {
    known_wc_status(status).map_or_else(|| format!("status {status}"), |name| format!("IBV_WC_{name}"))
}

fn case(subject: &Subject<'_>, statuses: &[u32], severity: Severity, title: &str) -> Option<Case> {
    let failed = failed(subject, statuses)?;
    let mut case =
        Case::new(severity, Confidence::High, format!("{} failed: {title}", many(failed.count, "request")));
    for line in failed.evidence {
        case = case.because_of(Some(line));
    }
    Some(case)
}

fn verdict(case: Option<Case>) -> Verdict {
    case.map_or(Verdict::Clear, Case::found)
}

fn retries(subject: &Subject<'_>) -> Verdict {
    verdict(case(subject, &[status::RETRY_EXC_ERR], Severity::Problem, "the peer does not answer"))
}

fn rnr(subject: &Subject<'_>) -> Verdict {
    let case =
        case(subject, &[status::RNR_RETRY_EXC_ERR], Severity::Problem, "the peer had no receive posted");
    verdict(case.map(|case| {
        let retry = subject.those(|qp| qp.attributes.rnr_retry == Some(0));
        case.because_of(retry.map(|(n, which)| Evidence {
            text: format!("rnr_retry is 0 on {}: {}", many(n, "queue pair"), which.text),
            ..which
        }))
    }))
}

/// `IBV_ACCESS_REMOTE_WRITE | _READ | _ATOMIC`.
const REMOTE: u32 = 2 | 4 | 8;

fn remote_access(subject: &Subject<'_>) -> Verdict {
    let case =
        case(subject, &[status::REM_ACCESS_ERR], Severity::Problem, "the peer refuses access to its memory");
    verdict(case.map(|case| {
        let regions = subject.process.registrations.regions();
        let remote = regions.values().filter(|region| region.access & REMOTE != 0).count();
        let gone = subject.process.succeeded_calls(crate::sample::Call::DeregMr);
        // A program that talks to itself, or to another on this host, has the region in question here.
        case.because_of((!regions.is_empty()).then(|| Evidence {
            text: format!(
                "this process has {} with remote access, {} without, and has given back {}",
                many(remote as u64, "live region"),
                count((regions.len() - remote) as u64),
                count(gone)
            ),
            qpns: Vec::new(),
        }))
    }))
}

fn remote_invalid(subject: &Subject<'_>) -> Verdict {
    verdict(case(
        subject,
        &[status::REM_INV_REQ_ERR, status::REM_OP_ERR],
        Severity::Problem,
        "the peer refuses a request as invalid",
    ))
}

fn local(subject: &Subject<'_>) -> Verdict {
    verdict(case(
        subject,
        &[status::LOC_LEN_ERR, status::LOC_QP_OP_ERR, status::LOC_PROT_ERR],
        Severity::Problem,
        "they name local memory they may not use",
    ))
}

fn flushed(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    // The first error is the news; what is flushed after it is not.
    let first = traffic.all.statuses.keys().any(|status| *status != 0 && *status != status::WR_FLUSH_ERR);
    if first {
        return Verdict::Clear;
    }
    verdict(case(
        subject,
        &[status::WR_FLUSH_ERR],
        Severity::Warning,
        "their queue pair went to the error state",
    ))
}
