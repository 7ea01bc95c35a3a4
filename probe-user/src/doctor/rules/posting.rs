//! How work is handed to the device.

use super::super::finding::{Confidence, Cost, Evidence, Severity, many, times};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{Mover, SPARE, Subject};
use super::super::traffic::{
    ATOMICS, MANY_UNDER_WAY, READS, detail, is_pipelined, mean_bytes, of_opcodes, per_call, share,
};
use super::{man, untimed};
use crate::report::units::{bytes, count, percent};
use crate::sample::QueueCounts;

const MANY: Threshold = Threshold {
    key: "min_wrs",
    value: 5_000.0,
    unit: "work requests",
    why: "a second of them at the rate below; a thousand messages of set-up need no thought",
};

const RATE: Threshold = Threshold {
    key: "min_per_second",
    value: 5_000.0,
    unit: "work requests per second",
    why: "below it posting takes less than a thousandth of a core",
};

const SMALL: Threshold = Threshold {
    key: "max_mean_bytes",
    value: 512.0,
    unit: "bytes",
    why: "larger messages are bound by the link, not by posting: 1 KiB at 10 million a second is 100 Gb/s",
};

const IN_A_ROW: Threshold = Threshold {
    key: "min_calls_in_a_row",
    value: 4.0,
    unit: "calls on a queue pair for every poll, on the emulated device without timing",
    why: "requests posted in a row were ready at the same time; with one or two between polls there is no list to make",
};

/// CPU time of one ibv_post_send, ns (HERD, section 5).
const POST_NS: f64 = 150.0;

/// One at a time.
pub static ONE_PER_CALL: Rule = Rule {
    id: "one-wr-per-post",
    title: "work requests are posted one by one though several are under way",
    looks_at: "work requests per ibv_post_send, their rate and size, how many are under way at a time, on how many queue pairs, and whether the posting thread has time to spare",
    plane: Plane::Data,
    thresholds: &[&MANY, &RATE, &SMALL, &SPARE, &IN_A_ROW],
    cause: "Each ibv_post_send takes the queue's lock and rings the device's doorbell, a write over PCIe. A list pays both once. The thread that posts has no time to spare: what a call costs is what limits the rate.",
    remedy: "Link the requests that are ready at the same time (ibv_send_wr.next) and post them by one ibv_post_send; with the extended API, several ibv_wr_* between ibv_wr_start and ibv_wr_complete (perftest: -l 16).",
    unless: "requests become ready one by one: waiting for more to fill a list adds latency. Nothing is said of a single queue pair on a NIC, where lists were measured to lower the rate, nor where the thread waits for the device.",
    workload: Some("doorbell-batching"),
    shown: Shown::By("one-wr-per-post"),
    links: &[man!("3", "ibv_post_send")],
    met: &["ROCm/mori#97", "meta-pytorch/torchcomms#2095", "meta-pytorch/monarch#3808"],
    check: Check::Process(one_per_call),
};

const MERGE_SHARE: Threshold = Threshold {
    key: "min_mergeable_share",
    value: 0.5,
    unit: "share of work requests",
    why: "from half on, half the messages could be saved",
};

/// Neighbours sent apart.
pub static MERGEABLE: Rule = Rule {
    id: "adjacent-wrs",
    title: "neighbouring pieces of memory are sent as separate work requests",
    looks_at: "work requests of one list that continue the one before in local and in remote memory",
    plane: Plane::Data,
    thresholds: &[&MANY, &MERGE_SHARE, &SMALL],
    cause: "Requests posted together continue each other in local and in remote memory: the device works through each by itself, with headers, translation and perhaps a completion of its own.",
    remedy: "Send one longer request instead; where only one side is contiguous, several SGEs of one request (max_send_sge).",
    unless: "each piece must arrive or complete by itself, or pieces belong to different messages.",
    workload: Some("doorbell-batching"),
    shown: Shown::By("adjacent-wrs"),
    links: &[man!("3", "ibv_post_send")],
    met: &["ROCm/mori#97", "meta-pytorch/torchcomms#2095"],
    check: Check::Process(mergeable),
};

const FITS: Threshold = Threshold {
    key: "max_inline_bytes",
    value: 188.0,
    unit: "bytes",
    why: "common NICs take 188 to 220 bytes inline; beyond, copying costs more than it saves",
};

const FEW: Threshold = Threshold {
    key: "min_wrs",
    value: 1_000.0,
    unit: "work requests",
    why: "one at a time, a second of messages is fewer than a queue full of them; a few hundred are set-up",
};

const OFTEN: Threshold = Threshold {
    key: "min_per_second",
    value: 1_000.0,
    unit: "work requests per second",
    why: "0.3 µs each is then 0.03 % of the time, and more with every message; below nobody notices",
};

const NOT_INLINE: Threshold = Threshold {
    key: "min_share",
    value: 0.5,
    unit: "share of work requests",
    why: "when most small messages are inline already, the rest has a reason",
};

/// Small payloads fetched by the device.
pub static NOT_INLINED: Rule = Rule {
    id: "small-not-inlined",
    title: "small payloads are not sent inline",
    looks_at: "sends and writes that would have fitted inline, against those that were sent inline, and how many are under way at a time",
    plane: Plane::Data,
    thresholds: &[&FEW, &OFTEN, &FITS, &NOT_INLINE],
    cause: "For a payload by SGE the device reads the request, then the payload: one more round trip over PCIe, some 0.3 µs. An inline payload comes with the request. Few requests are under way at a time here, so that each message waits for it.",
    remedy: "Ask for max_inline_data (the payload's length, up to what the device takes) in ibv_create_qp and set IBV_SEND_INLINE on short sends and writes (perftest: -I 64); the buffer may then be used again at once.",
    unless: "throughput alone counts: with many requests under way the round trips overlap, and the copy costs the processor more than it saves (nothing is said then, nor where the program sleeps until an event comes: waking up takes twenty times as long).",
    workload: Some("inline"),
    shown: Shown::By("small-not-inlined"),
    links: &[man!("3", "ibv_post_send"), man!("3", "ibv_create_qp")],
    met: &["Derecho-Project/derecho#9"],
    check: Check::Process(not_inlined),
};

const REFUSED: Threshold = Threshold {
    key: "min_failed",
    value: 10.0,
    unit: "failed posts",
    why: "a few are how a program finds out that the queue is full",
};

/// `ibv_post_send` fails.
pub static QUEUE_FULL: Rule = Rule {
    id: "send-queue-full",
    title: "ibv_post_send fails",
    looks_at: "failed posts by errno, work requests under way against max_send_wr, SGEs against max_send_sge, inline length",
    plane: Plane::Data,
    thresholds: &[&REFUSED],
    cause: "One errno (ENOMEM) has three causes: the send queue is full, a request has more SGEs than max_send_sge, or its inline payload is longer than max_inline_data.",
    remedy: "Full: keep count of what is under way and poll before posting more, signal oftener, or make the queue deeper (max_send_wr). Else: ask for more SGEs or inline bytes in ibv_create_qp and look at what was granted.",
    unless: "",
    workload: Some("selective-signaling"),
    shown: Shown::By("send-queue-full"),
    links: &[man!("3", "ibv_post_send"), man!("3", "ibv_create_qp")],
    met: &["spdk/spdk#3195", "apache/brpc#3132", "uccl-project/uccl#267"],
    check: Check::Process(queue_full),
};

/// CPU time of a post that is a system call, ns: assumed; 200 to 1,000 are usual.
const SYSTEM_CALL_NS: f64 = 500.0;

/// CPU time of a published figure as cost.
fn core(rate: f64, ns: f64, what: &str) -> Cost {
    saved(rate, ns, &format!("{what} (published figure)"))
}

/// CPU time as cost.
fn saved(rate: f64, ns: f64, what: &str) -> Cost {
    let core = (rate * ns / 1e9).min(1.0);
    Cost {
        us_per_message: Some(ns / 1e3),
        cpu_share: Some(core),
        text: format!(
            "about {ns} ns for {what}: {} of a core at {} a second",
            percent(core),
            count(rate as u64)
        ),
        ..Cost::default()
    }
}

fn severity(core: f64) -> Severity {
    if core >= 0.01 { Severity::Warning } else { Severity::Note }
}

fn one_per_call(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let (least, small) = (subject.limit(&MANY), subject.limit(&SMALL));
    let no_atomics = traffic.lacks(&ATOMICS);
    let single = |counts: &QueueCounts| {
        traffic.enough(counts, least)
            && per_call(counts) <= 1.1
            && mean_bytes(counts) <= small
            // Atomics are bound by the device's locks, not by posting.
            && (no_atomics || of_opcodes(counts, &ATOMICS) * 2 < counts.wrs)
            // Many queue pairs with a request or two each have nothing to put into a list.
            && detail(counts).and_then(|d| d.most_outstanding).is_none_or(|n| n >= MANY_UNDER_WAY)
    };
    let Some(those) = traffic.those(|_, counts| single(counts)) else { return Verdict::Clear };
    let rate = subject.per_device_second(those.sum.wrs);
    let mover = subject.mover();
    // Without a NIC's timing nobody knows whether posting is what limits; requests that are posted in a row were ready at
    // the same time wherever they are posted to.
    let in_a_row = those.sum.post_calls as f64 / (those.n * traffic.all.polls.max(1)) as f64;
    if mover == Mover::Untimed && in_a_row < subject.limit(&IN_A_ROW) {
        return Verdict::NotObservable(
            "the emulated device has no NIC's timing: whether posting is what limits is not seen (RNIC_EMU_PROFILE=cx5-like gives it one)",
        );
    }
    // What is felt is time: a system call takes that of several doorbells.
    let dearer = if mover == Mover::Software { SYSTEM_CALL_NS / POST_NS } else { 1.0 };
    // A NIC fetches a list by DMA, and waits for it before it goes on with that queue pair: on a single one a list is
    // slower than the doorbells it saves (Kalia et al., ATC 2016, section 5.2.1). Software has no such wait.
    let alone = those.n == 1 && !subject.is_software();
    if alone
        || subject.waits_for_device()
        || !is_pipelined(&those.sum, &traffic.all)
        || (traffic.has_rates() && rate * dearer < subject.limit(&RATE))
    {
        return Verdict::Clear;
    }
    let (severity, confidence, cost) = match mover {
        // Without a doorbell a list saves a call in the program alone.
        Mover::Untimed => {
            (Severity::Note, Confidence::Low, untimed("150 ns a message for the call and its doorbell"))
        }
        Mover::Software => {
            let core = (rate * SYSTEM_CALL_NS / 1e9).min(1.0);
            let text = format!(
                "some {} of a core at {} a second, if the system call of a post takes {SYSTEM_CALL_NS} ns (assumed, not \
                 measured here)",
                percent(core),
                count(rate as u64)
            );
            let cost = Cost {
                us_per_message: Some(SYSTEM_CALL_NS / 1e3),
                cpu_share: Some(core),
                text,
                ..Cost::default()
            };
            (severity(core), Confidence::Medium, cost)
        }
        _ => (
            severity(rate * POST_NS / 1e9),
            Confidence::Medium,
            core(rate, POST_NS, "the call and its doorbell"),
        ),
    };
    let mut case = Case::new(
        severity,
        confidence,
        format!("{} a second are posted one by one", many(rate as u64, "work request")),
    )
    .because(format!(
        "{:.2} work requests per call, {} on average, on {}",
        per_call(&those.sum),
        bytes(mean_bytes(&those.sum) as u64),
        many(those.n, "queue pair")
    ))
    .because_of(Some(those.which))
    .because_of(subject.slowly());
    if mover == Mover::Untimed {
        case = case
            .because(format!("{in_a_row:.1} calls in a row on each queue pair for every poll"))
            .cause("Each ibv_post_send takes the queue's lock and rings the device's doorbell, a write over PCIe. A list pays both once. Requests are posted in a row here, with no look at completions in between: they were ready at the same time. What that costs a NIC is not seen on this device.");
    }
    if traffic.has_rates() {
        case = case.costs(cost);
    }
    case.found()
}

fn mergeable(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let (least, small, limit) = (subject.limit(&MANY), subject.limit(&SMALL), subject.limit(&MERGE_SHARE));
    let merge = |counts: &QueueCounts| {
        let d = detail(counts)?;
        Some((d.mergeable?, d.examined_wrs.unwrap_or(counts.wrs)))
    };
    if traffic.all.wrs as f64 >= least && !traffic.senders().any(|(_, counts)| merge(counts).is_some()) {
        return Verdict::NotObservable("where payloads lie is not seen");
    }
    let apart = |counts: &QueueCounts| {
        traffic.enough(counts, least)
            && per_call(counts) >= 1.9
            && mean_bytes(counts) <= small
            && merge(counts).is_some_and(|(n, of)| share(n, of) >= limit)
    };
    let Some(those) = traffic.those(|_, counts| apart(counts)) else { return Verdict::Clear };
    let (n, of) = merge(&those.sum).unwrap_or_default();
    let rate = subject.per_device_second(those.sum.wrs) * share(n, of);
    Case::new(
        severity(rate * POST_NS / 1e9),
        Confidence::Medium,
        format!("{} of the work requests continue the one before", percent(share(n, of))),
    )
    .because(format!(
        "{} of {} looked at, {} on average, {:.1} in a list",
        count(n),
        count(of),
        bytes(mean_bytes(&those.sum) as u64),
        per_call(&those.sum)
    ))
    .because_of(Some(those.which))
    .costs(saved(
        rate,
        POST_NS / 2.0,
        "a request that another could carry, if it costs half as much as a post (assumed)",
    ))
    .found()
}

fn not_inlined(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let confidence = match subject.mover() {
        Mover::Software | Mover::Untimed => {
            return Verdict::NotObservable("software moves the data: there is no PCIe and no cache of a NIC");
        }
        Mover::Nic => Confidence::Medium,
        Mover::Modelled | Mover::Unknown => Confidence::Low,
    };
    let (least, fits, limit) = (subject.limit(&FEW), subject.limit(&FITS), subject.limit(&NOT_INLINE));
    // Class n holds payloads of at most 2^n bytes.
    let largest = (fits as u64).checked_ilog2();
    let could = |counts: &QueueCounts| -> u64 {
        let fetched = of_opcodes(counts, &READS).saturating_add(of_opcodes(counts, &ATOMICS));
        let sends = counts.wrs.saturating_sub(fetched);
        let known = detail(counts).and_then(|d| d.could_inline);
        let by_size = detail(counts).filter(|d| !d.sizes.is_empty()).map(|d| {
            d.sizes
                .iter()
                .filter(|(class, _)| largest.is_some_and(|largest| u32::from(**class) <= largest))
                .map(|(_, n)| *n)
                .sum::<u64>()
        });
        let by_mean = if mean_bytes(counts) <= fits { sends } else { 0 };
        known.filter(|n| *n > 0).or(by_size).unwrap_or(by_mean).min(sends).saturating_sub(counts.inline)
    };
    // The most that was ever outstanding is of the worst moment: a stall of the machine makes it large, and so does
    // signalling one in many. Where rate and latency are known, what is under way on average is, too.
    let under_way = subject.under_way();
    let by_sge = |counts: &QueueCounts| {
        traffic.enough(counts, least)
            && counts.bytes > 0
            // Where many are under way the round trips overlap.
            && (under_way.is_some()
                || detail(counts).and_then(|d| d.most_outstanding).is_none_or(|n| n < MANY_UNDER_WAY))
            && share(could(counts), counts.wrs) >= limit
    };
    let Some(those) = traffic.those(|_, counts| by_sge(counts)) else { return Verdict::Clear };
    let rate = subject.per_device_second(those.sum.wrs);
    let pipelined = match under_way {
        // A few on each of many queue pairs are many: the round trips overlap there too, as do those of a list.
        Some(n) => {
            n >= MANY_UNDER_WAY as f64
                || (per_call(&those.sum) >= 2.0 && is_pipelined(&those.sum, &traffic.all))
        }
        None => is_pipelined(&those.sum, &traffic.all),
    };
    if pipelined || subject.waits_for_events() || (traffic.has_rates() && rate < subject.limit(&OFTEN)) {
        return Verdict::Clear;
    }
    Case::new(Severity::Note, confidence, NOT_INLINED.title)
        .because(format!(
            "{} of {} work requests would fit ({} on average); {} inline",
            count(could(&those.sum)),
            count(those.sum.wrs),
            bytes(mean_bytes(&those.sum) as u64),
            count(those.sum.inline)
        ))
        .because_of(under_way.map(|n| Evidence {
            text: format!(
                "{n:.1} under way at a time, by their rate and the time from post to reap (median)"
            ),
            qpns: Vec::new(),
        }))
        .because_of(Some(those.which))
        .costs(Cost {
            us_per_message: Some(0.3),
            text: "about 0.3 µs of latency a message (published figure)".to_owned(),
            ..Cost::default()
        })
        .found()
}

fn queue_full(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let least = subject.limit(&REFUSED);
    // Where nothing is signalled, that is the cause, and another rule says so.
    let refused = |counts: &QueueCounts| {
        counts.post_failed as f64 >= least && (counts.signalled > 0 || counts.wrs == 0)
    };
    let with_none: Vec<_> = traffic.queues.iter().filter(|(_, c)| refused(c)).collect();
    let Some((queue, worst)) = with_none.iter().max_by_key(|(_, c)| c.post_failed).map(|(q, c)| (q, c))
    else {
        return Verdict::Clear;
    };
    let failed: u64 = with_none.iter().map(|(_, c)| c.post_failed).sum();
    // Where its creation was not seen, a depth of 0 is none that was granted.
    let qp = subject.qp_at(queue.pointer).filter(|qp| qp.max_send_wr > 0);
    let depth = qp.map_or(0, |qp| u64::from(qp.max_send_wr));
    let outstanding = detail(worst).and_then(|d| d.most_outstanding);
    let ever_full = outstanding.map_or(worst.wrs >= depth && depth > 0, |n| depth > 0 && n * 10 >= depth * 9);
    let errnos: Vec<String> = worst
        .post_errnos
        .iter()
        // Of some calls it is not known: a source that looks at one in many may miss the return.
        .filter(|(number, _)| **number != 0)
        .map(|(number, n)| format!("{} {}", crate::report::errno(*number), times(*n)))
        .collect();
    let mut case = Case::new(
        Severity::Warning,
        if ever_full { Confidence::Medium } else { Confidence::Low },
        match (ever_full, qp) {
            (true, _) => format!("{} refused: the send queue is full", many(failed, "post")),
            (false, Some(_)) => format!("{} refused, and the send queue is not full", many(failed, "post")),
            (false, None) => format!("{} refused", many(failed, "post")),
        },
    )
    .because(format!(
        "{} of {} calls failed on QPN {}{}{}",
        count(worst.post_failed),
        count(worst.post_calls),
        queue.number,
        if errnos.is_empty() { "" } else { ": " },
        errnos.join(", ")
    ))
    .costs(saved(
        subject.per_second(failed),
        POST_NS,
        "a call in vain, if it costs as much as one that succeeds (published figure)",
    ));
    case = match qp {
        Some(qp) if ever_full => case
            .because(match outstanding {
                Some(n) => format!("{} requests under way at most, and the send queue holds {}", count(n), count(depth)),
                None => format!("the send queue holds {}", count(depth)),
            })
            .cause("More is posted than the send queue holds: the call fails with ENOMEM until completions are polled.")
            .remedy(format!(
                "Count what is under way and poll before it reaches {}{}, or create the queue pair with a larger max_send_wr.",
                qp.max_send_wr,
                if worst.signalled * u64::from(qp.max_send_wr / 2).max(1) >= worst.wrs {
                    String::new()
                } else {
                    format!(", signal at least one send in {}", (qp.max_send_wr / 2).max(1))
                }
            )),
        Some(qp) => case
            .because(format!(
                "granted: {} SGEs and {} inline bytes a request, {} requests",
                qp.max_send_sge, qp.max_inline_bytes, qp.max_send_wr
            ))
            .cause("The queue had room, so the request itself was refused: more SGEs than max_send_sge, an inline payload longer than max_inline_data, or an opcode or state that is not allowed (EINVAL).")
            .remedy("Ask for as many SGEs and inline bytes as the longest request has in ibv_create_qp (cap.max_send_sge, cap.max_inline_data), look at what was granted, and check that the queue pair is in RTS."),
        None => case.because("how deep its queues are is not known: it was created before the recording began").because_of(
            outstanding.map(|n| Evidence {
                text: format!("{} requests under way at most", count(n)),
                qpns: Vec::new(),
            }),
        ),
    };
    case.found()
}
