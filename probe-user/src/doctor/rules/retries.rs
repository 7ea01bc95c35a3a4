//! Timers and retry counts of reliable connections.

use super::super::finding::{Confidence, Cost, Evidence, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{CONNECTED_BEFORE, LONGEST_RNR_NS, Subject};
use super::man;
use crate::model::Qp;
use crate::report::units::duration;

/// `min_rnr_timer` 0.
pub static RNR_TIMER_ZERO: Rule = Rule {
    id: "rnr-timer-zero",
    title: "queue pairs have the longest receiver-not-ready timer",
    looks_at: "min_rnr_timer at RTR",
    plane: Plane::Control,
    thresholds: &[],
    cause: "min_rnr_timer 0 is the longest wait, not the shortest: a sender that meets no posted receive waits 655 ms before it tries again, silently.",
    remedy: "Set min_rnr_timer to 12 (0.64 ms) when going to RTR (IBV_QP_MIN_RNR_TIMER). librdmacm leaves it 0: call ibv_modify_qp with it after rdma_accept or rdma_connect.",
    unless: "a receive is always posted in time: data moves by RDMA READ and WRITE without immediate only.",
    workload: None,
    shown: Shown::By("rnr-timer-zero"),
    links: &[man!("3", "ibv_modify_qp")],
    met: &["ydb-platform/nbs#5790", "NVIDIA/daqiri#138"],
    check: Check::Process(rnr_timer_zero),
};

/// `rnr_retry` 0.
pub static RNR_RETRY_ZERO: Rule = Rule {
    id: "rnr-retry-zero",
    title: "connections break at the first message that meets no receive",
    looks_at: "rnr_retry at RTS",
    plane: Plane::Control,
    thresholds: &[],
    cause: "With rnr_retry 0 the first message that meets no posted receive breaks the connection (IBV_WC_RNR_RETRY_EXC_ERR).",
    remedy: "Set rnr_retry to 7 (for ever) when going to RTS (IBV_QP_RNR_RETRY; rnr_retry_count of rdma_conn_param), or to 3 to 6 where a receiver that stays away is to be told; the peer's min_rnr_timer says how long each try waits.",
    unless: "a missing receive is to be told at once, or no message needs one (READ, WRITE without immediate).",
    workload: None,
    shown: Shown::By("rnr-retry-zero"),
    links: &[man!("3", "ibv_modify_qp"), man!("3", "rdma_connect")],
    met: &["spdk/spdk#2429"],
    check: Check::Process(rnr_retry_zero),
};

/// No ACK timeout.
pub static ACK_TIMEOUT_NEVER: Rule = Rule {
    id: "ack-timeout-never",
    title: "a lost packet is never noticed: the ACK timeout is off",
    looks_at: "timeout at RTS",
    plane: Plane::Control,
    thresholds: &[],
    cause: "timeout 0 means for ever: when a packet or its acknowledgement is lost and nothing follows it, or the peer dies, the sender waits without end and without an error.",
    remedy: "Set timeout to 14 (67 ms) to 18 (1.07 s) when going to RTS (IBV_QP_TIMEOUT).",
    unless: "the program watches its peers by itself.",
    workload: None,
    shown: Shown::By("ack-timeout-never"),
    links: &[man!("3", "ibv_modify_qp")],
    met: &["ydb-platform/nbs#6928"],
    check: Check::Process(ack_timeout_never),
};

const LONG: Threshold = Threshold {
    key: "min_exponent",
    value: 21.0,
    unit: "exponent of the ACK timeout",
    why: "4.096 µs × 2^21 is 8.6 s, and seven retries make a minute, before anything is reported; NCCL's 20 is the longest in wide use",
};

/// An ACK timeout of many seconds.
pub static ACK_TIMEOUT_LONG: Rule = Rule {
    id: "ack-timeout-long",
    title: "a dead peer is noticed only after a minute or more: the ACK timeout is very long",
    looks_at: "timeout and retry_cnt at RTS",
    plane: Plane::Control,
    thresholds: &[&LONG],
    cause: "A lost packet that nothing follows, and a dead peer, are noticed only after the ACK timeout, and the dead peer is told to the program after as many more as retry_cnt says (devices may wait up to four times as long).",
    remedy: "Set timeout to 14 (67 ms) to 18 (1.07 s), with retry_cnt 7, when going to RTS (IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT).",
    unless: "the fabric may stand still for long (a switch failover) and that must be outlived.",
    workload: None,
    shown: Shown::By("ack-timeout-long"),
    links: &[man!("3", "ibv_modify_qp")],
    met: &["openucx/ucx#6673", "ydb-platform/nbs#6928"],
    check: Check::Process(ack_timeout_long),
};

const SHORT: Threshold = Threshold {
    key: "max_exponent",
    value: 9.0,
    unit: "exponent of the ACK timeout",
    why: "4.096 µs × 2^9 is 2.1 ms: a congested switch or a busy responder takes that long",
};

/// An ACK timeout of a moment.
pub static ACK_TIMEOUT_SHORT: Rule = Rule {
    id: "ack-timeout-short",
    title: "packets may be sent again though nothing was lost: the ACK timeout is very short",
    looks_at: "timeout at RTS",
    plane: Plane::Control,
    thresholds: &[&SHORT],
    cause: "When the answer takes longer than the ACK timeout, everything outstanding is sent again, which makes congestion worse; after retry_cnt times the connection breaks though the peer lives.",
    remedy: "Set timeout to 14 (67 ms), the value most applications use, when going to RTS (IBV_QP_TIMEOUT).",
    unless: "the fabric is lossless and the round trip well below it; some devices raise small values to their own minimum.",
    workload: None,
    shown: Shown::By("ack-timeout-short"),
    links: &[man!("3", "ibv_modify_qp")],
    met: &["NVIDIA/nccl#426", "openucx/ucx#6000"],
    check: Check::Process(ack_timeout_short),
};

/// RC alone has timers and retries; where the type is unknown, whatever set them.
fn reliable(qp: &Qp) -> bool {
    qp.qp_type.is_empty() || qp.qp_type.starts_with("RC") || qp.qp_type.starts_with("XRC")
}

fn case(
    subject: &Subject<'_>,
    severity: Severity,
    confidence: Confidence,
    title: impl Fn(&str) -> String,
    holds: impl Fn(&Qp) -> bool,
) -> Option<Case> {
    let (n, which) = subject.those(|qp| reliable(qp) && holds(qp))?;
    Some(Case::new(severity, confidence, title(&many(n, "queue pair"))).because_of(Some(which)))
}

fn verdict(subject: &Subject<'_>, case: Option<Case>) -> Verdict {
    match case {
        Some(case) => case.found(),
        // Attributes are seen when they are set.
        None if subject.connected_before() => Verdict::NotObservable(CONNECTED_BEFORE),
        None => Verdict::Clear,
    }
}

/// A verb that goes with so many: `1 queue pair waits`, `2 queue pairs wait`.
fn verb(so_many: &str, plural: &str) -> String {
    if so_many.starts_with("1 ") { format!("{plural}s") } else { plural.to_owned() }
}

/// The ACK timeout in words.
fn waits(exponent: u8) -> String {
    duration(wait_ns(exponent))
}

/// The ACK timeout, ns.
fn wait_ns(exponent: u8) -> u64 {
    4096 << exponent.min(31)
}

fn rnr_timer_zero(subject: &Subject<'_>) -> Verdict {
    let zero = |qp: &Qp| qp.attributes.min_rnr_timer == Some(0);
    let waited_ns = subject.host.waited_for_receives_ns();
    // Over the queue pairs together: with many of them several wait at the same time.
    let much = waited_ns.is_some_and(|ns| ns >= subject.busy_ns() / 10);
    let case = case(
        subject,
        if much { Severity::Problem } else { Severity::Warning },
        Confidence::Medium,
        |n| {
            if much {
                format!("{n} {} 655 ms for each receive that is late", verb(n, "wait"))
            } else {
                format!("{n} would wait 655 ms for a receive that is late")
            }
        },
        zero,
    );
    verdict(
        subject,
        case.map(|case| match waited_ns {
            None => case,
            Some(ns) => case
                .because(format!(
                    "it happened meanwhile: {} of a sender that met no receive",
                    many(ns / LONGEST_RNR_NS, "event")
                ))
                .costs(Cost {
                    text: format!(
                        "up to {} of waiting in {}, over all queue pairs together",
                        duration(ns),
                        duration(subject.busy_ns())
                    ),
                    ..Cost::default()
                }),
        }),
    )
}

fn rnr_retry_zero(subject: &Subject<'_>) -> Verdict {
    verdict(
        subject,
        case(
            subject,
            Severity::Warning,
            Confidence::Medium,
            |n| format!("{n} {} at the first message that meets no receive", verb(n, "break")),
            |qp| qp.attributes.rnr_retry == Some(0),
        ),
    )
}

fn ack_timeout_never(subject: &Subject<'_>) -> Verdict {
    verdict(
        subject,
        case(
            subject,
            Severity::Warning,
            Confidence::High,
            |n| format!("{n} never {} a lost packet or a dead peer (ACK timeout 0)", verb(n, "notice")),
            |qp| qp.attributes.timeout == Some(0),
        ),
    )
}

fn ack_timeout_long(subject: &Subject<'_>) -> Verdict {
    let limit = subject.limit(&LONG);
    let long = |qp: &Qp| qp.attributes.timeout.is_some_and(|t| f64::from(t) >= limit);
    let longest = subject.qps.iter().filter(|qp| long(qp)).filter_map(|qp| qp.attributes.timeout).max();
    let retries = subject.qps.iter().filter(|qp| long(qp)).filter_map(|qp| qp.attributes.retry_cnt).max();
    let tries = u64::from(retries.unwrap_or(7)) + 1;
    let whole = duration(wait_ns(longest.unwrap_or(0)).saturating_mul(tries));
    let case = case(
        subject,
        Severity::Note,
        Confidence::Medium,
        |n| format!("{n} would notice a dead peer only after {whole}"),
        long,
    );
    verdict(
        subject,
        case.map(|case| {
            case.because_of(longest.map(|t| Evidence {
                text: format!(
                    "timeout {t} is {} for each of {} tries: {} in all",
                    waits(t),
                    tries,
                    duration(wait_ns(t).saturating_mul(tries))
                ),
                qpns: Vec::new(),
            }))
        }),
    )
}

fn ack_timeout_short(subject: &Subject<'_>) -> Verdict {
    let limit = subject.limit(&SHORT);
    let short = |qp: &Qp| qp.attributes.timeout.is_some_and(|t| t > 0 && f64::from(t) <= limit);
    let shortest = subject.qps.iter().filter(|qp| short(qp)).filter_map(|qp| qp.attributes.timeout).min();
    let after = waits(shortest.unwrap_or(0));
    let case = case(
        subject,
        Severity::Warning,
        Confidence::Medium,
        |n| format!("{n} {} again after {after} without an answer, lost or not", verb(n, "send")),
        short,
    );
    verdict(
        subject,
        case.map(|case| {
            case.because_of(
                shortest.map(|t| Evidence { text: format!("timeout {t}: {}", waits(t)), qpns: Vec::new() }),
            )
        }),
    )
}
