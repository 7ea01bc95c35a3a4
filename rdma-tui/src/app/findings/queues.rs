//! Faults of queue pairs and completion queues.

use probe_user::model::Qp;

use super::super::format::{count, many, share};
use super::{Finding, Severity, Subject, finding};

/// Queue pairs from which one thread polling one queue each is worth a word.
const SEVERAL: u64 = 16;

/// Queue pairs of one host from which published measurements see the device's context cache overflow (about 450
/// connections in the paper on StaR; other NICs hold more).
const CACHED: u64 = 1000;

/// The QPs for which something holds, as evidence: how many, and the first of them by number.
fn those(subject: &Subject<'_>, holds: impl Fn(&Qp) -> bool) -> Option<(u64, String)> {
    let found: Vec<u32> = subject.qps.iter().filter(|qp| holds(qp)).map(|qp| qp.qpn).collect();
    if found.is_empty() {
        return None;
    }
    let first: Vec<String> = found.iter().take(6).map(u32::to_string).collect();
    let more = if found.len() > first.len() { " …" } else { "" };
    Some((found.len() as u64, format!("QPN {}{more}", first.join(" "))))
}

pub fn cq_per_qp(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    let (qps, cqs) = (process.queues.qp_population.live, process.queues.cq_population.live);
    if qps < SEVERAL || cqs < qps {
        return None;
    }
    Some(Finding {
        evidence: vec![
            format!("{} and {}", many(qps, "QP"), many(cqs, "CQ")),
            format!("at most {} on one CQ", many(process.queues.most_qps_on_a_cq, "QP")),
        ],
        cause: "Every queue pair completes into a queue of its own. Each takes device context and a ring in memory, and whoever polls must look at all of them.",
        remedy: "Let the queue pairs that one thread serves share one completion queue, deep enough for all that may complete.",
        unless: "each thread serves one queue pair only, or completions must be told apart by priority.",
        workload: Some("shared-cq"),
        ..finding(
            "cq-per-qp",
            Severity::Warning,
            process,
            format!("a completion queue for each of {}", many(qps, "queue pair")),
        )
    })
}

pub fn every_send_signalled(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    let live = process.queues.qp_population.live;
    let (n, which) = those(subject, |qp| qp.sq_sig_all)?;
    if n * 2 < live {
        return None;
    }
    Some(Finding {
        evidence: vec![format!("{} of {} created with sq_sig_all", count(n as f64), many(live, "QP")), which],
        cause: "Every send makes a completion that the device must write and the program must poll, also where nobody needs it.",
        remedy: "Create the queue pair with sq_sig_all = 0 and signal one send in N (IBV_SEND_SIGNALED), N at most half the send queue's depth.",
        unless: "every completion is acted on by itself, or sends are so rare that it does not matter.",
        workload: Some("selective-signaling"),
        ..finding("everything-signalled", Severity::Warning, process, "every send is signalled")
    })
}

pub fn broken(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    let (n, which) = those(subject, |qp| matches!(qp.state.as_deref(), Some("ERR" | "SQE")))?;
    Some(Finding {
        evidence: vec![which],
        cause: "A queue pair in the error state moves nothing any more, and keeps its memory and its number.",
        remedy: "Destroy it and connect anew, or take it through RESET, INIT, RTR and RTS again.",
        ..finding(
            "qp-in-error",
            Severity::Problem,
            process,
            format!("{} in the error state", many(n, "queue pair")),
        )
    })
}

pub fn change_failed(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    let (n, which) = those(subject, |qp| qp.failed_changes > 0)?;
    Some(Finding {
        evidence: vec![which],
        cause: "ibv_modify_qp failed: an attribute the state does not allow, a mask bit missing (EINVAL), or the peer's address does not resolve (ETIMEDOUT).",
        remedy: "Open the queue pair: its state changes are listed with their errno. For ETIMEDOUT look at GID index and route.",
        ..finding(
            "qp-change-failed",
            Severity::Problem,
            process,
            format!("state changes of {} failed", many(n, "queue pair")),
        )
    })
}

pub fn rnr_timer_zero(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    let (n, which) = those(subject, |qp| qp.attributes.min_rnr_timer == Some(0))?;
    Some(Finding {
        evidence: vec![which],
        cause: "min_rnr_timer 0 is the longest, not the shortest: a sender that meets no receive waits 655 ms.",
        remedy: "Set min_rnr_timer to 12 (0.64 ms) or so when going to RTR. librdmacm leaves it 0.",
        unless: "a receive is always posted in time.",
        ..finding(
            "rnr-timer-zero",
            Severity::Warning,
            process,
            format!("{} with the longest RNR timer", many(n, "queue pair")),
        )
    })
}

pub fn rnr_retry_zero(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    let (n, which) = those(subject, |qp| qp.attributes.rnr_retry == Some(0))?;
    Some(Finding {
        evidence: vec![which],
        cause: "rnr_retry 0 breaks the connection at the first message that meets no posted receive.",
        remedy: "Set rnr_retry to 7 (for ever) or at least 3 when going to RTS.",
        unless: "a missing receive is to be told at once.",
        ..finding(
            "rnr-retry-zero",
            Severity::Warning,
            process,
            format!("{} that bear no late receive", many(n, "queue pair")),
        )
    })
}

pub fn small_path_mtu(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    // With several devices nobody knows which one a QP is on; the smallest is a bound for all.
    let smallest = subject.host.smallest_mtu?;
    let (n, which) = those(subject, |qp| qp.attributes.path_mtu_bytes.is_some_and(|mtu| mtu < smallest))?;
    Some(Finding {
        evidence: vec![which, format!("the ports' active MTU is {smallest} B")],
        cause: "A path MTU below the port's makes more packets of the same bytes, each with its headers.",
        remedy: "Use the smaller of both ends' active MTU as path_mtu when going to RTR.",
        unless: "the peer's port or a switch on the way allows no more.",
        ..finding(
            "path-mtu-small",
            Severity::Note,
            process,
            format!("{} with a path MTU below the port's", many(n, "queue pair")),
        )
    })
}

pub fn more_than_a_nic_caches(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    let (all, own) = (subject.host.qps, process.queues.qp_population.live);
    // Said once, of the process that has most of them.
    if all < CACHED || subject.host.most_qps != Some(process.info.id) {
        return None;
    }
    Some(Finding {
        evidence: vec![
            format!("{} alive on this host", many(all, "QP")),
            format!("{} of them here ({})", count(own as f64), share(own as f64 / all as f64)),
        ],
        cause: "A device keeps the context of some hundred to some thousand queue pairs in its cache; beyond, each change of queue pair costs a read over PCIe.",
        remedy: "Share queue pairs between threads, or use fewer connections (for example through a broker, or DC and SRQ).",
        unless: "only a few of them are busy at any time. Low confidence: how many fit differs by device.",
        workload: Some("multi-qp"),
        ..finding("many-qps", Severity::Note, process, "more queue pairs than a device may cache")
    })
}
