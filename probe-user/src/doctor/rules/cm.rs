//! Connection set-up through librdmacm.

use super::super::finding::{Confidence, Severity, many, times};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::man;
use crate::report::errno;
use crate::report::units::{count, duration};

const SLOW_MS: Threshold = Threshold {
    key: "min_ms",
    value: 500.0,
    unit: "ms",
    why: "an unhurried set-up takes 1 to 50 ms; from half a second on something was sent again or stood in a queue",
};

/// Connections take long to set up.
pub static SLOW: Rule = Rule {
    id: "connect-slow",
    title: "connections take long to set up",
    looks_at: "time from each librdmacm call to the event that answers it, step by step",
    plane: Plane::Control,
    thresholds: &[&SLOW_MS],
    cause: "A step of connecting waited: resolving an address for the answer of the network (ARP), connecting for the peer's program to accept. Where thousands connect at the same time, connection managers drop requests, which are sent again only after seconds.",
    remedy: "Connect in batches of some dozen at a time, accept from several threads, raise the backlog of rdma_listen, and resolve the peer's address once (static neighbour entries where it must be fast).",
    unless: "connections are made once and the start is allowed to take its time.",
    workload: None,
    shown: Shown::Synthetic { why: "librdmacm needs a device of the kernel's" },
    links: &[man!("3", "rdma_connect"), man!("3", "rdma_listen")],
    met: &["ofiwg/libfabric#12673", "linux-rdma/perftest#91", "linux-rdma/rdma-core#1448"],
    check: Check::Process(slow),
};

/// Connections are refused.
pub static REFUSED: Rule = Rule {
    id: "connect-failed",
    title: "connections cannot be set up",
    looks_at: "librdmacm events that say no: rejected, unreachable, address and route errors, by step and status",
    plane: Plane::Control,
    thresholds: &[],
    cause: "The peer refused or did not answer: nobody listens on that port (rejected, status 8), its program said no (status 28), its address does not resolve or has no route (-110 ETIMEDOUT, -113 EHOSTUNREACH), or it had no room for one more connection.",
    remedy: "Check that the server listens on the address of the RDMA interface (not of another one), that it answers `ping` from this interface, and that `rping -s` there and `rping -c -a ADDRESS` here connect.",
    unless: "the program tries until the peer is there.",
    workload: None,
    shown: Shown::Synthetic { why: "librdmacm needs a device of the kernel's" },
    links: &[man!("3", "rdma_get_cm_event")],
    met: &["ofiwg/libfabric#12673"],
    check: Check::Process(refused),
};

/// What an event's status means: negative ones are errno, positive ones reasons of a rejection (InfiniBand
/// specification, table "REJ reasons").
fn refusal(status: i32) -> String {
    match status {
        8 => "nobody listens there (status 8)".to_owned(),
        28 => "the peer's program said no (status 28)".to_owned(),
        ..0 => format!("{} (status {status})", errno(status.saturating_neg())),
        _ => format!("status {status}"),
    }
}

fn slow(subject: &Subject<'_>) -> Verdict {
    let limit = (subject.limit(&SLOW_MS) * 1e6) as u64;
    let mut case: Option<Case> = None;
    for (step, latency) in &subject.process.cm.steps_ns {
        let (Some(median), Some(late)) = (latency.quantile(0.5), latency.quantile(0.99)) else { continue };
        if late >= limit {
            let line = format!(
                "{}: {} in the median, {} or more in one of a hundred, {} in all",
                step.name(),
                duration(median),
                duration(late),
                count(latency.total())
            );
            let begun =
                case.take().unwrap_or_else(|| Case::new(Severity::Warning, Confidence::High, SLOW.title));
            case = Some(begun.because(line));
        }
    }
    case.map_or(Verdict::Clear, Case::found)
}

fn refused(subject: &Subject<'_>) -> Verdict {
    let failures = &subject.process.cm.failures;
    let n: u64 = failures.values().sum();
    if n == 0 {
        return Verdict::Clear;
    }
    let mut case = Case::new(
        Severity::Problem,
        Confidence::High,
        format!("{} could not be set up", many(n, "connection")),
    );
    for ((step, status), n) in failures.iter().take(6) {
        case = case.because(format!("{}: {}, {}", step.name(), refusal(*status), times(*n)));
    }
    case.because(format!("{} established", count(subject.process.cm.established))).found()
}
