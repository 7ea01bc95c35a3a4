//! Asking for completions: of everything, of nothing, too late.

use super::super::finding::{Confidence, Cost, Evidence, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{Mover, SPARE, Subject};
use super::super::traffic::{is_pipelined, mean_bytes, share};
use super::man;
use crate::report::units::{count, percent};

const MANY: Threshold = Threshold {
    key: "min_wrs",
    value: 10_000.0,
    unit: "work requests",
    why: "a thousand messages of set-up need no thought",
};

const ALL: Threshold = Threshold {
    key: "min_signalled_share",
    value: 0.9,
    unit: "share of work requests",
    why: "with one in ten unsignalled the program knows how, and most of the cost is still there",
};

const RATE: Threshold = Threshold {
    key: "min_per_second",
    value: 5_000.0,
    unit: "work requests per second",
    why: "below it the completions of a second take less than a thousandth of a core",
};

const SMALL: Threshold = Threshold {
    key: "max_mean_bytes",
    value: 512.0,
    unit: "bytes",
    why: "larger messages are bound by a NIC's link, not by completions: 1 KiB at 10 million a second is 100 Gb/s. Software has no such bound",
};

/// What a completion costs the program and the device, ns: published measurements of unsignalled against signalled
/// small messages (HERD, figure 5: 13.5 against 19.5 million a second) differ by this.
const COMPLETION_NS: f64 = 23.0;

/// A completion for every request.
pub static EVERYTHING: Rule = Rule {
    id: "everything-signalled",
    title: "every send asks for a completion",
    looks_at: "share of signalled work requests, their size, whether several are under way at a time, and whether the thread has time to spare; without observed posts, sq_sig_all of the queue pairs",
    plane: Plane::Control,
    thresholds: &[&MANY, &ALL, &RATE, &SMALL, &SPARE],
    cause: "Every send makes a completion entry that the device must write and the program must poll, also where nobody needs it.",
    remedy: "Create the queue pair with sq_sig_all = 0 and set IBV_SEND_SIGNALED on one send in N only (N = 16 to 64, at most half of max_send_wr); that completion stands for all before it (perftest: -Q 64).",
    unless: "every completion is acted on by itself, only one request is under way at a time, or sends are rare. Nothing is said where the thread waits for the device: there a completion saved is no message won.",
    workload: Some("selective-signaling"),
    shown: Shown::By("everything-signalled"),
    links: &[man!("3", "ibv_post_send"), man!("3", "ibv_create_qp")],
    met: &["meta-pytorch/monarch#4734", "Derecho-Project/derecho#57", "ofiwg/libfabric#3940"],
    check: Check::Process(everything),
};

/// No completion at all.
pub static NOTHING: Rule = Rule {
    id: "nothing-signalled",
    title: "no send asks for a completion: the send queue fills and is never freed",
    looks_at: "queue pairs without a single signalled work request, against the depth of their send queues",
    plane: Plane::Data,
    thresholds: &[],
    cause: "The provider frees places in the send queue when it sees a completion. Without a signalled send there is none: after max_send_wr requests every ibv_post_send fails with ENOMEM, for ever.",
    remedy: "Set IBV_SEND_SIGNALED on one send in N (N at most half of max_send_wr) and poll the completion queue for it.",
    unless: "fewer requests than max_send_wr are ever posted on the queue pair, or the device is known to free its queue otherwise (some software devices do).",
    workload: Some("selective-signaling"),
    shown: Shown::By("nothing-signalled"),
    links: &[man!("3", "ibv_post_send")],
    met: &["Derecho-Project/derecho#57"],
    check: Check::Process(nothing),
};

const CLOSE: Threshold = Threshold {
    key: "min_share_of_depth",
    value: 0.9,
    unit: "share of max_send_wr",
    why: "perftest's usual 100 of 128 leaves room for the next run; above nine tenths the next request meets a full queue",
};

/// The signalled one comes late.
pub static LATE: Rule = Rule {
    id: "unsignalled-run-long",
    title: "almost the whole send queue is posted before a completion is asked for",
    looks_at: "longest run of unsignalled work requests against the depth of the send queue",
    plane: Plane::Data,
    thresholds: &[&CLOSE],
    cause: "Places in the send queue are freed by a signalled send only. With a run nearly as long as the queue, the program stands still with a full queue until that one completion comes: nothing is under way meanwhile.",
    remedy: "Signal at least twice per queue length: one send in max_send_wr / 2 or oftener; or make the queue deeper (max_send_wr at least twice the run).",
    unless: "each run is a batch that is waited for anyway.",
    workload: Some("selective-signaling"),
    shown: Shown::By("unsignalled-run-long"),
    links: &[man!("3", "ibv_post_send"), man!("3", "ibv_create_qp")],
    met: &["Derecho-Project/derecho#57"],
    check: Check::Process(late),
};

fn everything(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return everything_by_creation(subject) };
    let (least, limit) = (subject.limit(&MANY), subject.limit(&ALL));
    // The emulated device without timing is judged as the NIC that the program is meant for.
    let small = if subject.mover() == Mover::Software { f64::INFINITY } else { subject.limit(&SMALL) };
    let signalled = |counts: &crate::sample::QueueCounts| {
        traffic.enough(counts, least)
            && share(counts.signalled, counts.wrs) >= limit
            && mean_bytes(counts) <= small
    };
    let Some(those) = traffic.those(|_, counts| signalled(counts)) else { return Verdict::Clear };
    let rate = subject.per_device_second(those.sum.wrs);
    if subject.waits_for_device()
        || !is_pipelined(&those.sum, &traffic.all)
        || (traffic.has_rates() && rate < subject.limit(&RATE))
    {
        return Verdict::Clear;
    }
    let core = rate * COMPLETION_NS / 1e9;
    let untimed = subject.mover() == Mover::Untimed;
    let mut case = Case::new(
        if core >= 0.01 && !untimed { Severity::Warning } else { Severity::Note },
        if untimed {
            Confidence::Low
        } else if traffic.is_whole() {
            Confidence::High
        } else {
            Confidence::Medium
        },
        format!("{} of all sends ask for a completion", percent(share(those.sum.signalled, those.sum.wrs))),
    )
    .because(format!(
        "{} of {} work requests signalled, on {}",
        count(those.sum.signalled),
        count(those.sum.wrs),
        many(those.n, "queue pair")
    ))
    .because_of(Some(those.which))
    .because_of(subject.slowly());
    if untimed {
        case = case.costs(super::untimed("23 ns a message for its completion"));
    } else if traffic.has_rates() {
        case = case.costs(Cost {
            us_per_message: Some(COMPLETION_NS / 1e3),
            cpu_share: Some(core),
            text: format!(
                "about {COMPLETION_NS} ns a message (published figure), {} of a core at {} a second",
                percent(core),
                count(rate as u64)
            ),
            ..Cost::default()
        });
    }
    case.found()
}

/// Where posts are not observed, the queue pair's own setting tells as much as can be told.
fn everything_by_creation(subject: &Subject<'_>) -> Verdict {
    let Some((n, which)) = subject.those(|qp| qp.sq_sig_all) else {
        return Verdict::NotObservable(super::super::UNSEEN);
    };
    if n * 2 < subject.qps.len() as u64 {
        return Verdict::NotObservable(super::super::UNSEEN);
    }
    Case::new(
        Severity::Note,
        Confidence::Low,
        format!("{} complete every send (sq_sig_all)", many(n, "queue pair")),
    )
    .because("posts were not observed: how many sends that is, is not known")
    .because_of(Some(which))
    .found()
}

fn nothing(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let depth = |queue: &crate::model::Queue| {
        subject.qp_at(queue.pointer).map(|qp| (u64::from(qp.max_send_wr), qp.sq_sig_all))
    };
    let filled = |queue: &crate::model::Queue, counts: &crate::sample::QueueCounts| {
        counts.signalled == 0
            && depth(queue).is_some_and(|(depth, all)| {
                !all && depth > 0
                    && (counts.wrs >= depth || (counts.post_failed > 0 && counts.wrs * 10 >= depth * 9))
            })
    };
    let Some(those) = traffic.those(filled) else { return Verdict::Clear };
    let failed = those.sum.post_failed;
    let title = if failed > 0 {
        "no send asks for a completion, and posts fail: the send queue is full for ever".to_owned()
    } else {
        NOTHING.title.to_owned()
    };
    Case::new(
        if failed > 0 { Severity::Problem } else { Severity::Warning },
        if failed > 0 { Confidence::High } else { Confidence::Low },
        title,
    )
    .because(format!(
        "{} work requests, none signalled; {} refused",
        count(those.sum.wrs),
        if failed == 1 { "1 post was".to_owned() } else { format!("{} posts were", count(failed)) }
    ))
    .because_of(Some(those.which))
    .found()
}

fn late(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let limit = subject.limit(&CLOSE);
    let depth =
        |queue: &crate::model::Queue| subject.qp_at(queue.pointer).map_or(0, |qp| u64::from(qp.max_send_wr));
    let close = |queue: &crate::model::Queue, counts: &crate::sample::QueueCounts| {
        let longest = counts.longest_unsignalled as f64;
        // Looking the queue pair up costs more than all else: most are not near the smallest depth that counts.
        if counts.signalled == 0 || longest < 4.0 * limit {
            return false;
        }
        let depth = depth(queue);
        depth >= 4 && longest >= depth as f64 * limit
    };
    let Some(those) = traffic.those(close) else { return Verdict::Clear };
    let deepest = traffic.senders().filter(|(q, c)| close(q, c)).map(|(q, _)| depth(q)).max().unwrap_or(0);
    Case::new(Severity::Warning, Confidence::Medium, LATE.title)
        .because(format!(
            "up to {} unsignalled requests in a row, and the send queue holds {}",
            count(those.sum.longest_unsignalled),
            count(deepest)
        ))
        .because_of((those.sum.post_failed > 0).then(|| Evidence {
            text: format!("{} refused", many(those.sum.post_failed, "post")),
            qpns: Vec::new(),
        }))
        .because_of(Some(those.which))
        .found()
}
