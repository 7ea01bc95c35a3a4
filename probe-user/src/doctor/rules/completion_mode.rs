//! Waiting for completions: by polling or by events.

use super::super::finding::{Confidence, Cost, Evidence, Severity, many};
use super::super::peer::messages_to;
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::super::traffic::{Traffic, detail, share};
use super::man;
use crate::report::units::{count, duration, percent};
use crate::sample::{Call, QueueCounts};

const POLLS: Threshold = Threshold {
    key: "min_polls_per_second",
    value: 100_000.0,
    unit: "polls per second",
    why: "below it polling takes less than a hundredth of a core",
};

const EMPTY: Threshold = Threshold {
    key: "min_empty_share",
    value: 0.99,
    unit: "share of polls",
    why: "a busy poller at a high rate of messages finds nothing in nine of ten polls and is right to poll",
};

const QUIET: Threshold = Threshold {
    key: "max_requests_per_second",
    value: 3_000.0,
    unit: "requests per second",
    why: "waking up costs 10 to 50 µs of processor time: at this rate a tenth of a core, against a whole one; above it events are said to come too often",
};

const BULK: Threshold = Threshold {
    key: "max_bytes_per_second",
    value: 10_000_000.0,
    unit: "bytes per second",
    why: "long messages are few, and yet a program that moves 10 MB/s is at work",
};

const UNDER_WAY: Threshold = Threshold {
    key: "max_share_under_way",
    value: 0.5,
    unit: "share of the time with a request of its own under way",
    why: "a program that has a request under way half of the time waits for the network, not for work: a round trip each time, which an event would lengthen",
};

/// A poll that finds nothing, ns: assumed. 22 were measured in a loop of them on one processor; providers differ.
const POLL_NS: f64 = 30.0;

/// Share of the time that polls which are looked at take, from where on the program does little else.
const FILLED: f64 = 0.2;

/// A core burnt.
pub static BUSY: Rule = Rule {
    id: "busy-poll-idle",
    title: "a processor polls for completions that rarely come",
    looks_at: "empty polls, requests, completions and bytes per second, and the time from post to reap where it is known",
    plane: Plane::Data,
    thresholds: &[&POLLS, &EMPTY, &QUIET, &BULK, &UNDER_WAY],
    cause: "ibv_poll_cq is called over and over and nearly always finds nothing: a processor is busy for a few completions a second.",
    remedy: "Wait for events where the load is low: a completion channel (ibv_create_comp_channel), ibv_req_notify_cq, poll until empty, then ibv_get_cq_event or epoll on its descriptor; or poll for some µs first and wait only then.",
    unless: "the last microseconds of latency are what the processor is paid for: an event adds 5 to 50 µs.",
    workload: Some("event-vs-poll"),
    shown: Shown::By("busy-poll-idle"),
    links: &[man!("3", "ibv_poll_cq"), man!("3", "ibv_get_cq_event")],
    met: &["valkey-io/libvalkey#301", "ydb-platform/ydb#29463", "RDMA-Rust/sideway#113"],
    check: Check::Process(busy),
};

const EVENTS: Threshold = Threshold {
    key: "min_events_per_second",
    value: 3_000.0,
    unit: "completion events per second",
    why: "each costs an interrupt and a wake-up, 5 to 50 µs: well above the rate at which waiting is cheaper than polling",
};

const FEW: Threshold = Threshold {
    key: "max_cqes_per_event",
    value: 4.0,
    unit: "completions per event",
    why: "an event that brings many completions is worth its price",
};

/// CPU time of an interrupt, a wake-up and a read, ns: assumed, the low end of the 5 to 50 µs that users report.
const EVENT_NS: f64 = 5_000.0;

/// Interrupts at a high rate.
pub static EVENTS_OFTEN: Rule = Rule {
    id: "events-at-high-rate",
    title: "completion events come at a high rate",
    looks_at: "ibv_get_cq_event per second, and completions per event where polls are observed",
    plane: Plane::Control,
    thresholds: &[&EVENTS, &FEW],
    cause: "Each completion event costs an interrupt, a wake-up and a system call: at this rate they cost more time than polling would, and add 5 to 50 µs to each message.",
    remedy: "Poll while the load is high: after an event, go on polling for some µs before arming the queue again (ibv_req_notify_cq); signal less; or moderate events on the device (ibv_modify_cq with IBV_CQ_ATTR_MODERATE: count and period).",
    unless: "processors are shared and latency does not matter.",
    workload: Some("event-vs-poll"),
    shown: Shown::By("events-at-high-rate"),
    links: &[man!("3", "ibv_get_cq_event"), man!("3", "ibv_modify_cq")],
    met: &["dingodb/DingoCache#255", "RDMA-Rust/sideway#113"],
    check: Check::Process(often),
};

const STALL: Threshold = Threshold {
    key: "min_wait_ms",
    value: 200.0,
    unit: "ms in one wait",
    why: "a wait of this length while work is under way is a stall to the user",
};

const BLIND: Threshold = Threshold {
    key: "min_blind_share",
    value: 0.5,
    unit: "share of the times a queue was armed that it was not polled before the next event",
    why: "a program that polls after arming does so each time; one that does not, never",
};

const ARMED: Threshold = Threshold {
    key: "min_events",
    value: 20.0,
    unit: "events taken so",
    why: "the first wait of a program follows no poll",
};

/// Waiting though completions are there.
pub static LOST_WAKEUP: Rule = Rule {
    id: "event-lost-wakeup",
    title: "the program waits for an event though completions may be waiting",
    looks_at: "waits per completion queue against polls: whether it polls after arming and until a poll finds nothing, how long it then waits, and, where the senders are recorded too, messages that came against completions taken",
    plane: Plane::Data,
    thresholds: &[&STALL, &BLIND, &ARMED],
    cause: "An event is raised once, by the first completion after the queue was armed (ibv_req_notify_cq). The program takes one completion per event and waits again: what else came meanwhile raises no event, and is found only when something new comes, or never.",
    remedy: "After each event: ibv_ack_cq_events, arm (ibv_req_notify_cq), then poll until ibv_poll_cq returns 0. Arm before the last poll, not after it.",
    unless: "at most one completion can be outstanding.",
    workload: Some("event-vs-poll"),
    shown: Shown::By("event-lost-wakeup"),
    links: &[man!("3", "ibv_get_cq_event"), man!("3", "ibv_req_notify_cq")],
    met: &[
        "linux-rdma/perftest#137",
        "linux-rdma/perftest#203",
        "ydb-platform/nbs#449",
        "valkey-io/libvalkey#301",
    ],
    check: Check::Process(lost_wakeup),
};

/// Why nothing is said where completions were not all looked at.
const NOT_ALL_LOOKED_AT: &str = "not every completion was looked at: their number is not known";

fn busy(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    if !traffic.has_rates() {
        return Verdict::NotEnoughData("polls were sampled: their rate is not known");
    }
    let all = &traffic.all;
    if all.all_cqes().is_none() {
        return Verdict::NotEnoughData(NOT_ALL_LOOKED_AT);
    }
    let (polls, cqes) = (subject.per_second(all.polls), subject.per_second(all.cqes));
    // Where one in N is signalled, few completions stand for much work.
    let work = cqes.max(subject.per_second(all.wrs));
    let empty = share(all.empty_polls, all.polls);
    // Where each poll is looked at, looking is most of what a poll takes: on a slow machine few fill the time.
    let looking =
        subject.process.data_path.observed.hit_ns.filter(|_| traffic.is_whole()).unwrap_or(0) as f64;
    let filled = polls * (looking + POLL_NS) / 1e9;
    if (polls < subject.limit(&POLLS) && filled < FILLED)
        || empty < subject.limit(&EMPTY)
        || work * subject.slow_motion() > subject.limit(&QUIET)
    {
        return Verdict::Clear;
    }
    if subject.per_second(all.bytes) > subject.limit(&BULK)
        || under_way(subject, traffic) > subject.limit(&UNDER_WAY)
    {
        return Verdict::Clear;
    }
    // What waits for a receiver that is not ready is told so by another rule.
    let waits = ["rnr_nak_retry_err", "rnr_naks_received"];
    let most_wait = subject.host.grown_in_all(&waits) > all.wrs / 10 && all.wrs > 0;
    let waits_long = subject.host.waited_for_receives_ns().is_some_and(|ns| ns >= subject.busy_ns() / 2);
    if most_wait || waits_long {
        return Verdict::Clear;
    }
    let core = (polls * POLL_NS / 1e9).min(1.0);
    Case::new(
        if core >= 0.05 { Severity::Warning } else { Severity::Note },
        Confidence::Medium,
        format!("{} polls a second find {} completions", count(polls as u64), count(cqes as u64)),
    )
    .because(format!("{} of {} polls found nothing", count(all.empty_polls), count(all.polls)))
    .costs(Cost {
        cpu_share: Some(core),
        text: format!(
            "up to a whole core for each thread that does nothing else; the calls alone {} of one, if each takes {POLL_NS} ns \
             (assumed, not measured here)",
            percent(core)
        ),
        ..Cost::default()
    })
    .found()
}

/// Share of the time in which a signalled request was under way, as far as latencies are known.
fn under_way(subject: &Subject<'_>, traffic: &Traffic<'_>) -> f64 {
    let together: f64 = traffic
        .senders()
        .filter_map(|(_, counts)| detail(counts)?.post_to_reap())
        .filter_map(|latency| Some(latency.quantile(0.5)? as f64 * latency.total() as f64))
        .sum();
    together / (subject.seconds() * 1e9)
}

fn often(subject: &Subject<'_>) -> Verdict {
    let events = subject.process.count(Call::GetCqEvent).returned;
    let rate = subject.per_second(events);
    if rate * subject.slow_motion() < subject.limit(&EVENTS) {
        return Verdict::Clear;
    }
    if subject.traffic.is_some_and(|traffic| traffic.all.all_cqes().is_none()) {
        return Verdict::NotEnoughData(NOT_ALL_LOOKED_AT);
    }
    let per_event = subject.traffic.map(|traffic| share(traffic.all.cqes, events));
    if per_event.is_some_and(|n| n > subject.limit(&FEW)) {
        return Verdict::Clear;
    }
    let core = rate * EVENT_NS / 1e9;
    let mut case = Case::new(
        Severity::Warning,
        Confidence::Medium,
        format!("{} completion events a second", count(rate as u64)),
    )
    .because(format!("{} events taken by ibv_get_cq_event", count(events)))
    .because_of(subject.slowly());
    if let Some(n) = per_event {
        case = case.because(format!("{n:.1} completions for each"));
    }
    case.costs(Cost {
        us_per_message: Some(EVENT_NS / 1e3),
        cpu_share: Some(core),
        text: format!(
            "some {} of a core, if an event takes {} (assumed, not measured here)",
            percent(core),
            duration(EVENT_NS as u64)
        ),
        ..Cost::default()
    })
    .found()
}

/// Messages that completed into this queue, as far as the other ends of its queue pairs are recorded too.
fn came(subject: &Subject<'_>, cq: u64) -> u64 {
    let receivers = subject.qps.iter().filter(|qp| qp.recv_cq == cq);
    receivers.filter_map(|qp| messages_to(subject, qp)).fold(0, u64::saturating_add)
}

fn lost_wakeup(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    if traffic.all.all_cqes().is_none() {
        return Verdict::NotEnoughData(NOT_ALL_LOOKED_AT);
    }
    let waits = subject.process.count(Call::GetCqEvent);
    let mut suspects = traffic.polled().filter(|(_, counts)| {
        // One completion per poll, one poll per event, never until nothing is left.
        counts.notifies >= 10
            && counts.polls <= counts.notifies + counts.notifies / 10 + 2
            && counts.empty_polls * 10 <= counts.polls
            && counts.cqes <= counts.polls
            && detail(counts).and_then(|d| d.most_cqes_per_poll).unwrap_or(1) == 1
    });
    let Some((queue, counts)) = suspects.next() else { return armed_last(subject) };
    // Every signalled request makes a completion, and so does every message that came: what was not taken lies in the
    // queue.
    let unreaped = traffic.all.signalled.saturating_sub(traffic.all.cqes);
    let left = unreaped.max(came(subject, queue.pointer).saturating_sub(counts.cqes));
    let backlog = left > 2 + counts.cqes.min(traffic.all.cqes) / 10;
    let more = left > 0 || traffic.all.recv_wrs > 0;
    let longest = subject.process.longest_ns(&[Call::GetCqEvent]).unwrap_or(0);
    let hangs = waits.entered > waits.returned;
    let stalled = longest as f64 >= subject.limit(&STALL) * 1e6;
    if !backlog && !(more && (hangs || stalled)) {
        return armed_last(subject);
    }
    Case::new(Severity::Problem, Confidence::Medium, LOST_WAKEUP.title)
        .because(format!(
            "CQ {}: armed {} times, polled {} times, {} of these found nothing, never more than one completion",
            queue.number,
            count(counts.notifies),
            count(counts.polls),
            count(counts.empty_polls)
        ))
        .because(if backlog {
            format!("{} completions were there at the end and had not been taken", count(left))
        } else if hangs {
            format!("{} had not returned at the end", many(waits.entered - waits.returned, "wait"))
        } else {
            format!("the longest wait took {}", duration(longest))
        })
        .found()
}

/// The program polls until nothing is left, arms, and waits: what completes between the last poll and the arming raises no
/// event.
fn armed_last(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let blind = |counts: &QueueCounts| detail(counts).and_then(|d| d.blind_events).unwrap_or(0);
    // A request posted after arming completes after it; a message may come at any time.
    let takes_messages = |cq: u64| subject.qps.iter().any(|qp| qp.recv_cq == cq) && traffic.all.recv_wrs > 0;
    let suspect = traffic
        .polled()
        .filter(|(queue, counts)| {
            blind(counts) as f64 >= subject.limit(&ARMED)
                && share(blind(counts), counts.notifies) >= subject.limit(&BLIND)
                && takes_messages(queue.pointer)
        })
        .max_by_key(|(_, counts)| blind(counts));
    let Some((queue, counts)) = suspect else { return Verdict::Clear };
    // With one message at a time, sent only after the queue was armed, nothing can come in between.
    let several = counts.cqes > counts.notifies + counts.notifies / 10;
    let (severity, confidence) =
        if several { (Severity::Problem, Confidence::High) } else { (Severity::Warning, Confidence::Low) };
    let longest = subject.process.longest_ns(&[Call::GetCqEvent]).unwrap_or(0);
    Case::new(
        severity,
        confidence,
        "the program arms its completion queue after the last poll, and then waits: completions in between are missed",
    )
    .because(format!(
        "CQ {}: armed {} times, and {} times not polled between that and the next event; {} completions",
        queue.number,
        count(counts.notifies),
        count(blind(counts)),
        count(counts.cqes)
    ))
    .because_of((longest > 0).then(|| Evidence {
        text: format!("the longest ibv_get_cq_event took {}", duration(longest)),
        qpns: Vec::new(),
    }))
    .cause("An event is raised once, by the first completion after the queue was armed (ibv_req_notify_cq). What completes after the last poll and before the arming raises none: it lies there until something new comes, or until a time limit of the program's own ends the wait.")
    .remedy("Arm first, then poll: after each event ibv_ack_cq_events, ibv_req_notify_cq, then ibv_poll_cq until it returns 0, and only then wait.")
    .found()
}
