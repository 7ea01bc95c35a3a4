//! Completions with an error, traced to peer, queue pair, regions and the places in the program that made them.

use std::collections::BTreeMap;

use super::super::finding::{Confidence, Evidence, Severity, many, times};
use super::super::named::{Side, judge};
use super::super::peer::{
    self, End, LOCAL_WRITE, Why, by_place, denied, is_own, other_end, regions, rights_needed, who,
};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Verdict};
use super::super::subject::{Subject, peer_of};
use super::man;
use crate::model::{Qp, Queue};
use crate::report::units::{bytes, duration};
use crate::report::{failed_request, known_wc_status};
use crate::sample::{FailedRequest, QueueKind};

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
    remedy: "Look at the peer named in the evidence: is its process alive, is its queue pair in RTR or RTS before the first send, does it answer ping from this interface? Where all that holds, on RoCE, check GID index, path MTU and the counters of loss (out_of_sequence, local_ack_timeout_err).",
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
    cause: "The message needed a posted receive at the peer and met none, at as many tries as rnr_retry allows (7: for ever).",
    remedy: "Post receives before the queue pair goes to RTR, keep more posted than the sender can have under way, and set rnr_retry to 7 (for ever), or to 3 to 6 with the receiver's min_rnr_timer at 12 (0.64 ms a try).",
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
    looks_at: "completions with status 10 (IBV_WC_REM_ACCESS_ERR), with the peer of the queue pair and, where the other end is recorded too, the access flags of its queue pair and the regions of its protection domain: which allow such requests, which were deregistered while it was connected, and who made them",
    plane: Plane::Data,
    thresholds: &[],
    cause: "One of five: the rkey is wrong or its region was deregistered; the range reaches beyond the region; the region lacks the access flag (remote write, read, atomic); it belongs to another protection domain than the peer's queue pair; or that queue pair's access flags forbid it.",
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
    looks_at: "completions with status 9 or 11 (IBV_WC_REM_INV_REQ_ERR, _REM_OP_ERR), with the peer of the queue pair and, where the other end is recorded too, path MTU, outstanding READs and room for receives of both",
    plane: Plane::Data,
    thresholds: &[],
    cause: "Status 9: the message was longer than the receive it met, the path MTU differs between both ends, or more READs were outstanding than the peer's max_dest_rd_atomic. Status 11: the peer's device could not do its part, such as write to a receive's buffer that it may not write to.",
    remedy: "Make receives as long as the longest message, use the same path_mtu at both ends (the smaller active MTU), and max_rd_atomic no larger than the peer's max_dest_rd_atomic. Status 11: look at the peer's own failed completions and asynchronous events.",
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
    /// The queue pairs, or those that could be meant, the first few.
    qpns: Vec<u32>,
    /// Between which samples the first of them was taken.
    first_ns: (u64, u64),
    /// The first request that failed so, and its queue pair, where its source looks.
    first: Option<(u32, FailedRequest)>,
}

/// Queue pairs told of.
const TOLD: usize = 6;

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
    let mut first_request: Option<(u32, &FailedRequest)> = None;
    for detail in traffic.queues.iter().filter_map(|(_, counts)| counts.detail.as_deref()) {
        for one in detail.failed_by_qp.iter().filter(|one| statuses.contains(&one.status)) {
            *by_qp.entry((one.status, one.qpn)).or_default() += one.count;
        }
    }
    // Of a whole process it stands with the sums alone.
    let all = traffic.all.detail.as_deref();
    for one in
        all.into_iter().flat_map(|detail| &detail.failed_by_qp).filter(|one| statuses.contains(&one.status))
    {
        let Some(first) = one.first.as_deref() else { continue };
        if first_request.is_none_or(|(_, known)| first.t_ns < known.t_ns) {
            first_request = Some((one.qpn, first));
        }
        if by_qp.keys().all(|(_, qpn)| *qpn != one.qpn) && one.qpn != 0 {
            by_qp.insert((one.status, one.qpn), one.count);
        }
    }
    let mut evidence: Vec<Evidence> = by_qp
        .iter()
        .take(TOLD)
        .map(|((status, qpn), n)| Evidence {
            text: format!("QPN {qpn}{}: {}, {}", about(subject, *qpn), name(*status), times(*n)),
            qpns: vec![*qpn],
        })
        .collect();
    if evidence.is_empty() {
        // Only the completion queue is known: its queue pairs are those that could be meant.
        for (queue, counts) in traffic.polled() {
            for status in statuses {
                let Some(n) = counts.statuses.get(status) else { continue };
                let qpns = could_be_meant(subject, queue);
                let place = match qpns.as_slice() {
                    [] => format!("CQ {}", queue.number),
                    [one] => format!("the completion queue of QPN {one}{}", about(subject, *one)),
                    several => {
                        let names: Vec<String> = several.iter().map(u32::to_string).collect();
                        format!("the completion queue of QPN {}", names.join(", "))
                    }
                };
                evidence
                    .push(Evidence { text: format!("{}, {}, on {place}", name(*status), times(*n)), qpns });
            }
        }
        evidence.truncate(TOLD);
    }
    let mut qpns: Vec<u32> = evidence.iter().flat_map(|line| line.qpns.iter().copied()).collect();
    qpns.dedup();
    if let Some((qpn, request)) = first_request {
        let on = if qpn == 0 { String::new() } else { format!("on QPN {qpn}: ") };
        let text = format!("the first that failed, {on}{}", failed_request(request));
        evidence.push(Evidence { text, qpns: Vec::new() });
    }
    let first = traffic.queues.iter().filter_map(|(queue, _)| queue.first_error_ns).min();
    if let Some((from_ns, to_ns)) = first {
        let since = |t_ns: u64| duration(t_ns.saturating_sub(subject.model.header.t_ns));
        evidence.push(Evidence {
            text: format!(
                "the first error was taken between {} and {} of the recording",
                since(from_ns),
                since(to_ns)
            ),
            qpns: Vec::new(),
        });
    }
    let first_request = first_request.map(|(qpn, request)| (qpn, request.clone()));
    Some(Failed {
        count: total,
        evidence,
        qpns,
        first_ns: first.unwrap_or((0, u64::MAX)),
        first: first_request,
    })
}

/// The queue pairs that complete into a queue and lived when its first error was taken, the oldest first: a program that
/// connects anew after an error has destroyed the one that failed. All of them where none is known to have lived then.
fn could_be_meant(subject: &Subject<'_>, queue: &Queue) -> Vec<u32> {
    let (from_ns, to_ns) = queue.first_error_ns.unwrap_or((0, u64::MAX));
    let lived = |qp: &Qp| {
        qp.created_ns.is_none_or(|t_ns| t_ns <= to_ns) && qp.destroyed_ns.is_none_or(|t_ns| t_ns >= from_ns)
    };
    let mut its: Vec<&Qp> =
        subject.qps.iter().copied().filter(|qp| qp.cqs().any(|cq| cq == queue.pointer)).collect();
    if its.iter().any(|qp| lived(qp)) {
        its.retain(|qp| lived(qp));
    }
    its.sort_by_key(|qp| (qp.created_ns, qp.qpn));
    its.into_iter().take(TOLD).map(|qp| qp.qpn).collect()
}

impl Failed {
    /// The first of its queue pairs whose other end the recording has too.
    fn connection<'m>(&self, subject: &Subject<'m>) -> Option<(&'m Qp, End<'m>)> {
        let of_first = self.first.iter().map(|(qpn, _)| qpn);
        of_first.chain(&self.qpns).find_map(|qpn| {
            let qp = subject.qp_of(*qpn)?;
            Some((qp, other_end(subject, qp)?))
        })
    }

    fn case(&self, severity: Severity, title: &str) -> Case {
        let title = format!("{} failed: {title}", many(self.count, "request"));
        let case = Case::new(severity, Confidence::High, title);
        self.evidence.iter().fold(case, |case, line| case.because_of(Some(line.clone())))
    }
}

/// ` (to QPN 18 at ::1, created by connect_peer)`
fn about(subject: &Subject<'_>, qpn: u32) -> String {
    let Some(qp) = subject.qp_of(qpn) else { return String::new() };
    let to = match (qp.attributes.dest_qpn, peer_of(qp)) {
        (Some(there), Some(peer)) => format!("to QPN {there} at {peer}"),
        (Some(there), None) => format!("to QPN {there}"),
        _ => String::new(),
    };
    let made = by_place(subject, subject.process, qp.site);
    let made = if made.is_empty() { made } else { format!("created{made}") };
    match [to, made].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>() {
        parts if parts.is_empty() => String::new(),
        parts => format!(" ({})", parts.join(", ")),
    }
}

fn name(status: u32) -> String {
    known_wc_status(status).map_or_else(|| format!("status {status}"), |name| format!("IBV_WC_{name}"))
}

fn plain(text: impl Into<String>) -> Option<Evidence> {
    Some(Evidence { text: text.into(), qpns: Vec::new() })
}

/// Said where the other end would tell more.
const NOT_RECORDED: &str =
    "the other end is not in this recording: record it too (rdma-probe record there, then rdma-probe merge)";

fn retries(subject: &Subject<'_>) -> Verdict {
    let Some(failed) = failed(subject, &[status::RETRY_EXC_ERR]) else { return Verdict::Clear };
    let case = failed.case(Severity::Problem, "the peer does not answer");
    let end = failed.connection(subject);
    case.because_of(end.and_then(|(qp, end)| peer::state(subject, qp.qpn, &end))).found()
}

fn rnr(subject: &Subject<'_>) -> Verdict {
    let Some(failed) = failed(subject, &[status::RNR_RETRY_EXC_ERR]) else { return Verdict::Clear };
    let case = failed.case(Severity::Problem, "the peer had no receive posted");
    let retry = subject.those(|qp| qp.attributes.rnr_retry == Some(0));
    let case = case.because_of(retry.map(|(n, which)| Evidence {
        text: format!("rnr_retry is 0 on {}: {}", many(n, "queue pair"), which.text),
        ..which
    }));
    let posted = failed.connection(subject).and_then(|(_, end)| {
        let receives = receives_of(&end)?;
        Some(format!(
            "its peer, QPN {} of {}, posted {}",
            end.qp.qpn,
            who(subject, &end),
            many(receives.0, "receive")
        ))
    });
    case.because_of(posted.and_then(plain)).found()
}

/// Receives posted to a queue pair, and the room of each on average, bytes; `None` where its posts were not observed.
fn receives_of(end: &End<'_>) -> Option<(u64, u64)> {
    let path = &end.process.data_path;
    if !path.is_observed() {
        return None;
    }
    let (kind, pointer) =
        if end.qp.srq == 0 { (QueueKind::Qp, end.qp.qp) } else { (QueueKind::Srq, end.qp.srq) };
    // One that was destroyed may have left its pointer to another.
    let queue = path.queues().filter(|q| q.kind == kind && q.pointer == pointer).max_by_key(|q| q.object);
    let (n, room) = queue.map_or((0, 0), |queue| {
        let counts = queue.tally.whole();
        (counts.recv_wrs, counts.recv_bytes / counts.recv_wrs.max(1))
    });
    Some((n, room))
}

fn remote_access(subject: &Subject<'_>) -> Verdict {
    let Some(failed) = failed(subject, &[status::REM_ACCESS_ERR]) else { return Verdict::Clear };
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let mut case = failed.case(Severity::Problem, "the peer refuses access to its memory");
    let Some((qp, end)) = failed.connection(subject) else {
        return case.because_of(plain(NOT_RECORDED)).found();
    };
    let rights = rights_needed(traffic, qp);
    let names = rights.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(" and ");
    let place = if is_own(subject, &end) { "this process".to_owned() } else { who(subject, &end) };
    case = case.because_of(plain(format!(
        "the other end, QPN {} of {place}, is recorded too; the requests need {}",
        end.qp.qpn,
        if names.is_empty() { "access that is not known" } else { names.as_str() }
    )));
    let denied = denied(end.qp, &rights).join(" and ");
    if !denied.is_empty() {
        return case
            .because(format!("qp_access_flags of QPN {}, as set at INIT, lack {denied}", end.qp.qpn))
            .cause(format!("The access flags of the other end's queue pair forbid such requests, whatever its regions allow: {denied} was not set when it went to INIT."))
            .remedy(format!("At the other end, set qp_access_flags to include {denied} in the ibv_modify_qp call to INIT (with IBV_QP_ACCESS_FLAGS in its mask), and register the memory with the same."))
            .found();
    }
    let found = regions(subject, &end, &rights, failed.first_ns);
    for line in found.evidence {
        case = case.because_of(Some(line));
    }
    let whose = if is_own(subject, &end) { "this process" } else { "the other end" };
    if let Some(judged) = failed.first.as_ref().and_then(|(_, r)| judge(end.process, whose, r, Side::Remote))
    {
        case = case.because_of(Some(judged.evidence));
        if let Some((sure, cause, remedy)) = judged.why {
            return case.sure(sure).cause(cause).remedy(remedy).found();
        }
    }
    let seen = end.qp.attributes.qp_access_flags.is_some();
    match found.why {
        Some(Why::Gone) => case
            .sure(Confidence::Medium)
            .cause("A region that allowed such requests was deregistered at the other end while the connection was in use. From then on its rkey is refused, and the request most likely named it.")
            .remedy("Keep the region until no peer uses it any more; or tell the peers the new address and rkey, and wait until they have taken them over, before calling ibv_dereg_mr on the old one."),
        Some(Why::GoneBefore) => case
            .sure(Confidence::Low)
            .cause("The other end has living regions that allow such requests; another that did was deregistered before this connection was made, while an earlier one was in use. A program that keeps an rkey over a reconnect still names that one. Else the address or length reaches beyond the region.")
            .remedy("Tell the peer address and rkey anew with every connection, and drop those of the connection before; then compare rkey, address and length that the program uses with the regions named in the evidence."),
        Some(Why::NoRight) => case
            .cause(format!("No region in the protection domain of the other end's queue pair allows such requests: all were registered without {names}."))
            .remedy(format!("Register the memory with {names} (remote write and atomic need IBV_ACCESS_LOCAL_WRITE too), and set the same in qp_access_flags when that queue pair goes to INIT.")),
        Some(Why::NoRegion) => case
            .cause("The protection domain of the other end's queue pair holds no region at all: the memory was registered in another domain, or not yet.")
            .remedy("Register the memory in the protection domain that the queue pair was created in (ibv_reg_mr's and ibv_create_qp's pd), before the peer is told of it."),
        None => case
            .sure(Confidence::Medium)
            .cause(if seen {
                "The other end has living regions that allow such requests, its queue pair allows them too, and no region was given back: the address or length reaches beyond the region, or the rkey is of another one."
            } else {
                "The other end has living regions that allow such requests, and none was given back: the address or length reaches beyond the region, the rkey is of another one, or qp_access_flags of that queue pair forbid it (its change to INIT was not seen)."
            })
            .remedy(if seen {
                "Compare rkey, address and length that the program uses with the regions named in the evidence."
            } else {
                "Compare rkey, address and length that the program uses with the regions named in the evidence, and check qp_access_flags at INIT at the other end."
            }),
    }
    .found()
}

fn remote_invalid(subject: &Subject<'_>) -> Verdict {
    let Some(failed) = failed(subject, &[status::REM_INV_REQ_ERR, status::REM_OP_ERR]) else {
        return Verdict::Clear;
    };
    let mut case = failed.case(Severity::Problem, "the peer refuses a request as invalid");
    let Some((qp, end)) = failed.connection(subject) else {
        return case.because_of(plain(NOT_RECORDED)).found();
    };
    let (here, there) = (&qp.attributes, &end.qp.attributes);
    if let (Some(mine), Some(other)) = (here.path_mtu_bytes, there.path_mtu_bytes)
        && mine != other
    {
        case = case.because(format!("path MTU {mine} B here, {other} B at the other end"));
    }
    if let (Some(mine), Some(other)) = (here.max_rd_atomic, there.max_dest_rd_atomic)
        && mine > other
    {
        case =
            case.because(format!("max_rd_atomic {mine} here, max_dest_rd_atomic {other} at the other end"));
    }
    let longest = subject.traffic.and_then(|traffic| {
        let (_, counts) = traffic.senders().find(|(queue, _)| queue.pointer == qp.qp)?;
        counts.detail.as_deref()?.sizes.keys().next_back().copied()
    });
    if let (Some(class), Some((n, room))) = (longest, receives_of(&end))
        && n > 0
        && class < 63
    {
        case = case.because(format!(
            "receives at the other end have room for {} on average; the longest messages here have up to {}",
            bytes(room),
            bytes(1 << class)
        ));
    }
    case.found()
}

fn local(subject: &Subject<'_>) -> Verdict {
    let statuses = [status::LOC_LEN_ERR, status::LOC_QP_OP_ERR, status::LOC_PROT_ERR];
    let Some(failed) = failed(subject, &statuses) else { return Verdict::Clear };
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let met: Vec<u32> =
        statuses.into_iter().filter(|status| traffic.all.statuses.contains_key(status)).collect();
    let mut case = failed.case(Severity::Problem, "they name local memory they may not use");
    if met == [status::LOC_LEN_ERR] {
        return case
            .cause("A message was longer than the buffers of the receive it met, or a request longer than the device or path MTU (datagrams) allows.")
            .remedy("Make receives as long as the longest message (on datagrams 40 bytes more, for the header that comes before it), and requests no longer than max_msg_sz of ibv_query_port (datagrams: the path MTU).")
            .found();
    }
    if let Some(qp) = failed.qpns.iter().find_map(|qpn| subject.qp_of(*qpn)) {
        let own = End { process: subject.process, qp };
        let found = regions(subject, &own, &[(LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE")], failed.first_ns);
        for line in found.evidence {
            case = case.because_of(Some(line));
        }
        let judged =
            failed.first.as_ref().and_then(|(_, r)| judge(subject.process, "this process", r, Side::Local));
        if let Some(judged) = judged {
            case = case.because_of(Some(judged.evidence));
            if let Some((sure, cause, remedy)) = judged.why {
                return case.sure(sure).cause(cause).remedy(remedy).found();
            }
        }
        if found.why == Some(Why::Gone) {
            case = case
                .sure(Confidence::Medium)
                .cause("A region was deregistered while the queue pair was in use: a request that still names its lkey fails, and one of these most likely did.")
                .remedy("Wait for the completion of the last request that uses a buffer before calling ibv_dereg_mr on its region.");
        }
    }
    case.found()
}

fn flushed(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    // The first error is the news; what is flushed after it is not.
    let first = traffic.all.statuses.keys().any(|status| *status != 0 && *status != status::WR_FLUSH_ERR);
    if first {
        return Verdict::Clear;
    }
    let Some(failed) = failed(subject, &[status::WR_FLUSH_ERR]) else { return Verdict::Clear };
    let mut case = failed.case(Severity::Warning, "their queue pair went to the error state");
    // The program itself may have sent it there.
    let own = failed.qpns.iter().filter_map(|qpn| subject.qp_of(*qpn)).find_map(|qp| {
        let change = qp.transitions.iter().find(|change| change.to == "ERR" && change.errno == 0)?;
        Some((qp.qpn, change.t_ns))
    });
    if let Some((qpn, t_ns)) = own {
        let after = duration(t_ns.saturating_sub(subject.model.header.t_ns));
        case = case.because(format!(
            "the program itself moved QPN {qpn} to ERR by ibv_modify_qp, {after} into the recording"
        ));
    } else if let Some((qp, end)) = failed.connection(subject) {
        case = case.because_of(peer::state(subject, qp.qpn, &end));
    }
    case.found()
}
