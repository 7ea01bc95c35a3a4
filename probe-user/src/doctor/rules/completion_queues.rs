//! How completion queues are laid out.

use std::collections::HashMap;

use super::super::finding::{Confidence, Cost, Evidence, Severity, many, times};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::super::traffic::detail;
use super::man;
use crate::model::{Cq, Qp};
use crate::report::units::{bytes, count};
use crate::sample::QueueKind;

const SEVERAL: Threshold = Threshold {
    key: "min_qps",
    value: 16.0,
    unit: "queue pairs",
    why: "from here on looking at every queue takes longer than a completion",
};

/// Bytes of an entry in host memory.
const CQE_BYTES: u64 = 64;

/// One for each queue pair.
pub static PER_QP: Rule = Rule {
    id: "cq-per-qp",
    title: "a completion queue for each queue pair",
    looks_at: "queue pairs and completion queues alive at the same time, and threads that poll where they are observed",
    plane: Plane::Control,
    thresholds: &[&SEVERAL],
    cause: "Every queue pair completes into a queue of its own. Each takes context on the device and a ring in memory, and a thread that serves several must look at all of them, mostly in vain (some 20 to 50 ns each time).",
    remedy: "Let the queue pairs that one thread serves share one completion queue (send_cq and recv_cq of ibv_create_qp), deep enough for all that may complete.",
    unless: "each thread serves one queue pair only, or completions must be told apart by priority.",
    workload: Some("shared-cq"),
    shown: Shown::By("cq-per-qp"),
    links: &[man!("3", "ibv_create_cq"), man!("3", "ibv_create_qp")],
    met: &["linux-rdma/perftest#78"],
    check: Check::Process(per_qp),
};

const COUNTED: Threshold = Threshold {
    key: "max_seen_share",
    value: 0.75,
    unit: "share of the completion queue's entries that requests under way would fill",
    why: "a program that was seen to stay below three quarters keeps count; above, a few more would run it over",
};

/// Too small for what may complete.
pub static TOO_SMALL: Rule = Rule {
    id: "cq-too-small",
    title: "a completion queue is smaller than what may complete into it",
    looks_at: "entries of each completion queue against the send and receive queues of the queue pairs that use it, and against what was under way where posts are observed",
    plane: Plane::Control,
    thresholds: &[&COUNTED],
    cause: "When a completion queue runs over, entries are lost and the device breaks every queue pair that uses it. It fills at the worst moment: when a queue pair fails, all its outstanding requests complete with an error, unsignalled ones too.",
    remedy: "Create it with as many entries as all its queue pairs can have outstanding (sum of max_send_wr and max_recv_wr; a shared receive queue counts once), or resize it with ibv_resize_cq when queue pairs are added.",
    unless: "the program keeps count and never has as much outstanding as its queues hold. Nothing is said where it was seen to stay below three quarters of the completion queue.",
    workload: None,
    shown: Shown::By("cq-too-small"),
    links: &[man!("3", "ibv_create_cq"), man!("3", "ibv_resize_cq")],
    met: &["ROCm/TransferBench#239", "linux-rdma/perftest#78", "openucx/ucx#7143"],
    check: Check::Process(too_small),
};

/// It ran over.
pub static OVERRUN: Rule = Rule {
    id: "cq-overrun",
    title: "a completion queue ran over",
    looks_at: "asynchronous events received by ibv_get_async_event",
    plane: Plane::Control,
    thresholds: &[],
    cause: "More completions came than the queue has entries (IBV_EVENT_CQ_ERR): entries are lost and its queue pairs are broken.",
    remedy: "Create the completion queue with more entries, poll more often, or keep fewer requests outstanding.",
    unless: "",
    workload: None,
    shown: Shown::Synthetic {
        why: "it takes a program that reads asynchronous events and overruns its queue, and the emulated device sends none",
    },
    links: &[man!("3", "ibv_get_async_event")],
    met: &["ROCm/TransferBench#239", "openucx/ucx#7143"],
    check: Check::Process(overrun),
};

/// `IBV_EVENT_CQ_ERR`.
const CQ_ERR: u32 = 0;

fn per_qp(subject: &Subject<'_>) -> Verdict {
    let queues = &subject.process.queues;
    let (qps, cqs) = (queues.qp_population.peak, queues.cq_population.peak);
    let all = || queues.cqs().values().chain(queues.ended_cqs());
    // Threads that serve a queue each have nothing to share.
    let threads = subject.traffic.filter(|t| t.all.polls > 0).and_then(|t| t.all.threads).map(u64::from);
    if threads.is_some_and(|threads| threads * 2 > cqs) {
        return Verdict::Clear;
    }
    // Of those alive at the same time: a program that connects and disconnects all day makes many, one by one.
    let alone = (all().filter(|cq| cq.qps.peak == 1).count() as u64 + of_both_ends(subject)).min(cqs);
    // Two queues for each, one for sends and one for receives, are the same fault.
    if (qps.min(alone) as f64) < subject.limit(&SEVERAL) || alone * 2 < cqs {
        return Verdict::Clear;
    }
    let ring = |cq: &Cq| u64::from(cq.cqe) * CQE_BYTES;
    let rings: u64 = all().map(ring).sum();
    Case::new(
        Severity::Warning,
        Confidence::Medium,
        format!("a completion queue for each of {}", many(alone.min(qps), "queue pair")),
    )
    .because(format!(
        "{} and {} at the same time; {} serve a single queue pair, or the two ends of one connection",
        many(qps, "queue pair"),
        many(cqs, "completion queue"),
        count(alone)
    ))
    .because_of(threads.map(|threads| Evidence {
        text: format!("posted and polled by {}", many(threads, "thread")),
        qpns: Vec::new(),
    }))
    .costs(Cost {
        memory_bytes: Some(rings),
        text: format!("{} of rings in host memory, and a context on the device for each", bytes(rings)),
        ..Cost::default()
    })
    .found()
}

/// Completion queues of two queue pairs that are connected to each other: a process that talks to itself.
fn of_both_ends(subject: &Subject<'_>) -> u64 {
    let mut by_cq: HashMap<u64, Vec<&Qp>> = HashMap::new();
    for qp in subject.qps.iter().filter(|qp| qp.send_cq == qp.recv_cq) {
        by_cq.entry(qp.send_cq).or_default().push(qp);
    }
    let connected =
        |a: &Qp, b: &Qp| a.attributes.dest_qpn == Some(b.qpn) && b.attributes.dest_qpn == Some(a.qpn);
    by_cq.values().filter(|qps| matches!(qps.as_slice(), [a, b] if connected(a, b))).count() as u64
}

fn too_small(subject: &Subject<'_>) -> Verdict {
    let queues = &subject.process.queues;
    let mut under_way: Option<HashMap<u64, u64>> = None;
    let (mut found, mut looked_at) = (0, true);
    let mut worst: Option<(&Cq, Option<u64>)> = None;
    for cq in queues.cqs().values().chain(queues.ended_cqs()) {
        if cq.created_ns.is_none() || cq.cqe == 0 || cq.most_possible <= u64::from(cq.cqe) {
            continue;
        }
        if looked_at && under_way.is_none() {
            under_way = most_under_way(subject);
            looked_at = under_way.is_some();
        }
        // A program that was seen never to come near keeps count, and devices round what they grant up: a queue pair's
        // 128 to 255, a completion queue's 144 to 255.
        let seen = under_way.as_ref().map(|most| most.get(&cq.cq).copied().unwrap_or(0));
        if seen.is_some_and(|n| n as f64 <= f64::from(cq.cqe) * subject.limit(&COUNTED)) {
            continue;
        }
        found += 1;
        let excess = |cq: &Cq| cq.most_possible as f64 / f64::from(cq.cqe.max(1));
        if worst.is_none_or(|(worst, _)| excess(cq) > excess(worst)) {
            worst = Some((cq, seen));
        }
    }
    let Some((worst, seen)) = worst else { return Verdict::Clear };
    Case::new(
        if seen.is_some() { Severity::Warning } else { Severity::Note },
        Confidence::Low,
        format!("{} smaller than what may complete into it", many(found, "completion queue")),
    )
    .because(format!(
        "the worst has {} entries, and {} requests may be outstanding on its {}",
        count(worst.cqe.into()),
        count(worst.most_possible),
        many(worst.qps.peak, "queue pair")
    ))
    .because_of(seen.map(|n| Evidence {
        text: if worst.qps.peak > 1 {
            format!(
                "at most {} of them were under way at the same time: the most of each queue pair, added up",
                count(n)
            )
        } else {
            format!("{} of them were under way at the same time", count(n))
        },
        qpns: Vec::new(),
    }))
    .found()
}

/// The most that was under way at the same time and could complete into each completion queue, by its pointer; an upper
/// bound, because the most of several queue pairs need not coincide. `None` where it is not known of every queue pair.
fn most_under_way(subject: &Subject<'_>) -> Option<HashMap<u64, u64>> {
    let traffic = subject.traffic.filter(|traffic| traffic.is_whole())?;
    let mut most: HashMap<u64, u64> = HashMap::new();
    for (queue, counts) in traffic.queues.iter().filter(|(queue, _)| queue.kind == QueueKind::Qp) {
        let qp = subject.qp_at(queue.pointer)?;
        let sends = if counts.wrs > 0 { detail(counts)?.most_outstanding? } else { 0 };
        let receives = counts.recv_wrs.min(u64::from(qp.max_recv_wr));
        for (cq, n) in [(qp.send_cq, sends), (qp.recv_cq, receives)] {
            let sum = most.entry(cq).or_default();
            *sum = sum.saturating_add(n);
        }
    }
    // What a shared receive queue holds may complete into any of them.
    let shared =
        traffic.queues.iter().any(|(queue, counts)| queue.kind == QueueKind::Srq && counts.recv_wrs > 0);
    (!shared).then_some(most)
}

fn overrun(subject: &Subject<'_>) -> Verdict {
    let Some(n) = subject.process.async_events.get(&CQ_ERR) else { return Verdict::Clear };
    Case::new(Severity::Problem, Confidence::High, OVERRUN.title)
        .because_of(Some(Evidence {
            text: format!("IBV_EVENT_CQ_ERR received {}", times(*n)),
            qpns: Vec::new(),
        }))
        .found()
}
