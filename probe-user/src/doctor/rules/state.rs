//! Queue pairs that are broken, or could not be set up.

use super::super::finding::{Confidence, Evidence, Severity, many, times};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::man;
use crate::report::errno;
use crate::report::units::duration;
use crate::sample::Call;

const STAYED: Threshold = Threshold {
    key: "min_seconds",
    value: 0.5,
    unit: "seconds in the error state",
    why: "an orderly shutdown takes a queue pair through the error state and destroys it at once",
};

/// In the error state and kept.
pub static IN_ERROR: Rule = Rule {
    id: "qp-in-error",
    title: "queue pairs are in the error state and are kept",
    looks_at: "state changes by ibv_modify_qp, and failed completions per queue pair where they are observed",
    plane: Plane::Control,
    thresholds: &[&STAYED],
    cause: "A queue pair in the error state moves nothing any more, and keeps its memory and its number; whoever waits for it waits for ever.",
    remedy: "Poll its completions to the last, then destroy it and connect anew (ibv_destroy_qp), or take it through RESET, INIT, RTR and RTS again by ibv_modify_qp. Why it broke is told by the first failed completion, not by those flushed after it.",
    unless: "",
    workload: None,
    shown: Shown::By("qp-in-error"),
    links: &[man!("3", "ibv_modify_qp")],
    met: &["kvcache-ai/Mooncake#1845", "spdk/spdk#1697"],
    check: Check::Process(in_error),
};

/// `ibv_modify_qp` is refused.
pub static CHANGE_FAILED: Rule = Rule {
    id: "qp-change-failed",
    title: "state changes of queue pairs are refused",
    looks_at: "failed ibv_modify_qp with the state asked for and its errno",
    plane: Plane::Control,
    thresholds: &[],
    cause: "EINVAL: an attribute that this state does not allow, or a mask bit that is missing; an attribute set after RTS (such as the timeout) is refused and keeps its old value. What was asked for is not in force.",
    remedy: "Set attributes at the change that allows them, with all mask bits it requires (reliable connections: INIT takes pkey index, port, access flags; RTR path, MTU, destination, PSN, max_dest_rd_atomic, min_rnr_timer; RTS timeout, retry_cnt, rnr_retry, PSN, max_rd_atomic), and check the return value.",
    unless: "the program tries a change it knows how to do without.",
    workload: None,
    shown: Shown::By("qp-change-failed"),
    links: &[man!("3", "ibv_modify_qp")],
    met: &["ydb-platform/nbs#6928", "linux-rdma/perftest#288"],
    check: Check::Process(change_failed),
};

/// The peer's address does not resolve.
pub static PEER_UNRESOLVED: Rule = Rule {
    id: "peer-unresolved",
    title: "queue pairs cannot be connected: the peer's address does not resolve",
    looks_at: "ibv_modify_qp to RTR that fails with ETIMEDOUT, EHOSTUNREACH or ENETUNREACH, with the GID index used",
    plane: Plane::Control,
    thresholds: &[],
    cause: "On RoCE the kernel must find the peer's MAC address when a queue pair goes to RTR. It did not: the peer is down, in another network, or the GID index chosen is of the wrong kind (RoCE v1, or link-local).",
    remedy: "Take the GID index of a routable RoCE v2 address (`ibv_devinfo -v` or `rdma-probe devices` lists them; NCCL_IB_GID_INDEX, UCX_IB_GID_INDEX, perftest -x), and check that the peer answers ping from that interface.",
    unless: "",
    workload: None,
    shown: Shown::Synthetic { why: "the emulated device has no addresses to resolve" },
    links: &[man!("3", "ibv_modify_qp")],
    met: &["NVIDIA/nccl#769", "NVIDIA/nccl#426", "kvcache-ai/Mooncake#113"],
    check: Check::Process(peer_unresolved),
};

const UNRESOLVED: [i32; 3] = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH];

fn in_error(subject: &Subject<'_>) -> Verdict {
    let long_ago = (subject.limit(&STAYED) * 1e9) as u64;
    let broken = |qp: &crate::model::Qp| {
        matches!(qp.state.as_deref(), Some("ERR" | "SQE"))
            && qp.transitions.last().is_some_and(|last| {
                qp.destroyed_ns.unwrap_or(subject.model.now_ns).saturating_sub(last.t_ns) >= long_ago
            })
    };
    let Some((n, which)) = subject.those(broken) else { return Verdict::Clear };
    let kept_ns = |qp: &&&crate::model::Qp| {
        let since = qp.transitions.last().map_or(0, |last| last.t_ns);
        qp.destroyed_ns.unwrap_or(subject.model.now_ns).saturating_sub(since)
    };
    let longest = subject.qps.iter().filter(|qp| broken(qp)).map(|qp| kept_ns(&qp)).max().unwrap_or(0);
    Case::new(
        Severity::Problem,
        Confidence::High,
        format!("{} in the error state and kept", many(n, "queue pair")),
    )
    .because_of(Some(which))
    .because(format!("kept so for up to {}", duration(longest)))
    .found()
}

fn change_failed(subject: &Subject<'_>) -> Verdict {
    let refused = |qp: &crate::model::Qp| {
        qp.failed_changes > 0 && !qp.transitions.iter().any(|t| UNRESOLVED.contains(&t.errno))
    };
    let Some((n, which)) = subject.those(refused) else { return Verdict::Clear };
    let mut case = Case::new(
        Severity::Problem,
        Confidence::High,
        format!("changes of {} are refused", many(n, "queue pair")),
    )
    .because_of(Some(which));
    for line in wishes(subject, |number| !UNRESOLVED.contains(&number)) {
        case = case.because_of(Some(line));
    }
    case.because_of(subject.failed_at(&[Call::ModifyQp])).found()
}

fn peer_unresolved(subject: &Subject<'_>) -> Verdict {
    let unresolved = |qp: &crate::model::Qp| {
        qp.failed_changes > 0 && qp.transitions.iter().any(|t| UNRESOLVED.contains(&t.errno))
    };
    let Some((n, which)) = subject.those(unresolved) else { return Verdict::Clear };
    let mut case = Case::new(
        Severity::Problem,
        Confidence::High,
        format!("the peers of {} do not resolve", many(n, "queue pair")),
    )
    .because_of(Some(which));
    for line in wishes(subject, |number| UNRESOLVED.contains(&number)) {
        case = case.because_of(Some(line));
    }
    case.found()
}

/// What was asked for and refused, a line per state and errno.
fn wishes(subject: &Subject<'_>, of: impl Fn(i32) -> bool) -> Vec<Evidence> {
    let mut lines = std::collections::BTreeMap::<String, u64>::new();
    for change in subject.qps.iter().flat_map(|qp| &qp.transitions) {
        if change.errno != 0 && of(change.errno) {
            *lines.entry(format!("change to {}: {}", change.to, errno(change.errno))).or_default() += 1;
        }
    }
    lines
        .into_iter()
        .take(4)
        .map(|(line, n)| Evidence { text: format!("{line}, {}", times(n)), qpns: Vec::new() })
        .collect()
}
