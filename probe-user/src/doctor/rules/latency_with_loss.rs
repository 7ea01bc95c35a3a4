//! Latency that rises together with what the ports count of loss and congestion.

use super::super::finding::{Confidence, Cost, Evidence, Severity, many, per_second};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{Subject, peer_of};
use super::fabric::{growth, known};
use super::man;
use crate::model::{CONGESTION_COUNTERS, LOSS_COUNTERS, SENT_AGAIN, Tally, bounds};
use crate::report::units::duration;
use crate::sample::Histogram;

const OFTEN: Threshold = Threshold {
    key: "min_samples",
    value: 3.0,
    unit: "samples in which counters grew, and as many in which they did not",
    why: "what happens twice at the same time may be chance",
};

const SLOWER: Threshold = Threshold {
    key: "min_ratio",
    value: 2.0,
    unit: "99th percentile of the latency while counters grew, over that while they did not",
    why: "less is what latencies differ by from one second to the next",
};

const FELT: Threshold = Threshold {
    key: "min_rise_us",
    value: 20.0,
    unit: "µs by which the 99th percentile rises",
    why: "the smallest loss costs a round trip and a resend; below 20 µs it is the processor that was late",
};

/// Latencies that a percentile needs.
const ENOUGH: u64 = 100;

/// From here on a rise is a problem: ten times as long, and a millisecond or more.
const MUCH: (f64, u64) = (10.0, 1_000_000);

/// Queue pairs told of.
const TOLD: usize = 6;

/// Loss that is felt.
pub static TOGETHER: Rule = Rule {
    id: "latency-with-loss",
    title: "latency rises whenever counters of loss or congestion do",
    looks_at: "latency from post to reap of each queue pair in samples in which, or right after which, counters of loss or congestion of the host's ports grew (those of packets-lost and network-congested; the emulated device's retries and soft-RoCE's completer_retry_err), against the other samples",
    plane: Plane::Data,
    thresholds: &[&OFTEN, &SLOWER, &FELT],
    cause: "Counters and latency rise in the same samples: a lost packet is sent again after a round trip or, where nothing follows it, after the ACK timeout, and all behind it on its queue pair waits; congestion control makes senders wait. The program gets no error.",
    remedy: "Find which counter grows (evidence), and read its rule: packets-lost (rdma-probe doctor --explain packets-lost) or network-congested. Then look for what else sends at those moments, at this host or towards the peers named. Where one peer alone is slow, look at that peer and its link.",
    unless: "the program's own load rose in the same samples (evidence): more requests under way wait longer, and fill the network, without a fault of it.",
    workload: None,
    shown: Shown::By("latency-with-loss"),
    links: &[
        man!("3", "ibv_modify_qp"),
        "https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html",
    ],
    met: &["NVIDIA/nccl#378", "bytedance/byteps#179", "openucx/ucx#6000"],
    check: Check::Process(together),
};

/// Latency of a queue, or of all, while counters grew and while they did not.
struct Apart {
    while_ns: Histogram,
    else_ns: Histogram,
}

impl Apart {
    fn of(tally: &Tally) -> Option<Self> {
        let while_ns = &tally.troubled()?.latency_ns;
        let all = tally.seen().detail.as_deref()?.post_to_reap()?;
        let else_ns = all.since(while_ns);
        (while_ns.total() >= ENOUGH && else_ns.total() >= ENOUGH)
            .then(|| Self { while_ns: while_ns.clone(), else_ns })
    }

    /// 99th percentiles, while and else.
    fn late(&self) -> (u64, u64) {
        (self.while_ns.quantile(0.99).unwrap_or(0), self.else_ns.quantile(0.99).unwrap_or(0))
    }

    fn ratio(&self) -> f64 {
        let (with, without) = self.late();
        with as f64 / without.max(1) as f64
    }

    fn words(&self) -> String {
        let of = |latency: &Histogram| {
            let at = |share| duration(latency.quantile(share).unwrap_or(0));
            format!("{} in the median and {} or more in one of a hundred", at(0.5), at(0.99))
        };
        format!("{} while they grew, {} while they did not", of(&self.while_ns), of(&self.else_ns))
    }
}

/// Mean of a histogram, ns, each value at the lower bound of its bucket.
fn mean(latency: &Histogram) -> f64 {
    let sum: f64 = latency.0.iter().map(|(bucket, n)| bounds(*bucket).0 as f64 * *n as f64).sum();
    sum / latency.total().max(1) as f64
}

fn together(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let trouble = subject.model.trouble;
    if !known(subject.host) {
        return Verdict::NotObservable("no port tells its counters");
    }
    if trouble.grew == 0 {
        return Verdict::Clear;
    }
    let least = subject.limit(&OFTEN);
    if (trouble.grew as f64) < least || ((trouble.intervals - trouble.troubled) as f64) < least {
        return Verdict::NotEnoughData(
            "counters of loss or congestion grew in too few samples, or in nearly all, to compare latencies: record for longer",
        );
    }
    let rises = |apart: &Apart| {
        let (with, without) = apart.late();
        apart.ratio() >= subject.limit(&SLOWER)
            && with.saturating_sub(without) as f64 >= subject.limit(&FELT) * 1e3
    };
    let mut slower: Vec<(u32, Apart)> = traffic
        .senders()
        .filter_map(|(queue, _)| Some((queue.number, Apart::of(&queue.tally)?)))
        .filter(|(_, apart)| rises(apart))
        .collect();
    slower.sort_by(|(a, x), (b, y)| y.ratio().total_cmp(&x.ratio()).then(a.cmp(b)));
    // Some sources keep latencies for the process alone.
    let whole = Apart::of(&subject.process.data_path.totals);
    let worst = match (slower.first(), whole.as_ref().filter(|apart| rises(apart))) {
        (Some((_, apart)), _) => apart,
        (None, Some(apart)) => apart,
        (None, None) => return Verdict::Clear,
    };
    let (with, without) = worst.late();
    let much = worst.ratio() >= MUCH.0 && with >= MUCH.1;
    let mut case = Case::new(
        if much { Severity::Problem } else { Severity::Warning },
        Confidence::Medium,
        format!(
            "one message in a hundred takes {} or more while counters of loss or congestion grow, {} otherwise",
            duration(with),
            duration(without)
        ),
    )
    .because(format!(
        "counters grew in {} of {}, which are compared, with the ones right after, with the others",
        trouble.grew,
        many(trouble.intervals, "sample")
    ));
    let names: Vec<&str> =
        LOSS_COUNTERS.iter().chain(&CONGESTION_COUNTERS).chain(&SENT_AGAIN).copied().collect();
    for line in growth(subject.host, &names).1 {
        case = case.because_of(Some(line));
    }
    for (qpn, apart) in slower.iter().take(TOLD) {
        let peer =
            subject.qp_of(*qpn).and_then(peer_of).map_or_else(String::new, |peer| format!(" (to {peer})"));
        case = case.because_of(Some(Evidence {
            text: format!("QPN {qpn}{peer}: {}", apart.words()),
            qpns: vec![*qpn],
        }));
    }
    if slower.is_empty() {
        case = case.because(format!("all queue pairs together: {}", worst.words()));
    } else if slower.len() > TOLD {
        case = case.because(format!("and {} more", many((slower.len() - TOLD) as u64, "queue pair")));
    }
    let rise_us = (mean(&worst.while_ns) - mean(&worst.else_ns)).max(0.0) / 1e3;
    case.because_of(load(subject))
        .costs(Cost {
            us_per_message: Some(rise_us),
            text: format!("{} a message on average while they grow", duration((rise_us * 1e3) as u64)),
            ..Cost::default()
        })
        .found()
}

/// How much the process sent while counters grew and while they did not.
fn load(subject: &Subject<'_>) -> Option<Evidence> {
    let totals = &subject.process.data_path.totals;
    let with = totals.troubled()?.wrs;
    let without = totals.count(|counts| counts.wrs).saturating_sub(with);
    let with_ns = subject.model.trouble.troubled_ns;
    let without_ns = subject.busy_ns().saturating_sub(with_ns);
    let rate = |n: u64, ns: u64| per_second(n as f64 * 1e9 / ns.max(1) as f64);
    Some(Evidence {
        text: format!(
            "{} requests a second while they grew, {} while they did not",
            rate(with, with_ns),
            rate(without, without_ns)
        ),
        qpns: Vec::new(),
    })
}
