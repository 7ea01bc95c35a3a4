//! Who shares what, and what keeps the device waiting.

use super::super::finding::{Confidence, Cost, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::super::traffic::{ATOMICS, detail, is_pipelined, mean_bytes, of_opcodes, share, spins_per_wr};
use super::man;
use crate::report::units::{bytes, count, duration, percent};
use crate::sample::QueueCounts;

const MANY: Threshold = Threshold {
    key: "min_wrs",
    value: 10_000.0,
    unit: "work requests",
    why: "a thousand messages of set-up need no thought",
};

const SHARED: Threshold = Threshold {
    key: "min_wrs",
    value: 1_000.0,
    unit: "work requests",
    why: "what is shared stays so: a thousand show it; fewer are set-up",
};

const THREADS: Threshold = Threshold {
    key: "min_threads",
    value: 2.0,
    unit: "threads",
    why: "two already pass the lock and the queue's memory to and fro",
};

/// Threads that share a queue pair.
pub static THREADS_ON_QP: Rule = Rule {
    id: "threads-share-qp",
    title: "several threads post to one queue pair",
    looks_at: "threads that post to each queue pair",
    plane: Plane::Data,
    thresholds: &[&SHARED, &THREADS],
    cause: "Posting takes the queue pair's lock, and its memory moves from one processor's cache to the other's: eight threads on one queue pair were measured at a third of the rate of one thread (0.58 against 1.90 million a second).",
    remedy: "Give each thread a queue pair of its own, and a thread domain (ibv_alloc_td with ibv_alloc_parent_domain), which also gives it a doorbell of its own.",
    unless: "threads post rarely, or one after the other by design.",
    workload: Some("multi-qp"),
    shown: Shown::By("threads-share-qp"),
    links: &[man!("3", "ibv_alloc_td"), man!("3", "ibv_alloc_parent_domain")],
    met: &["linux-rdma/rdma-core#1762", "linux-rdma/rdma-core#902", "ovis-hpc/ldms#754"],
    check: Check::Process(threads_on_qp),
};

const RATE: Threshold = Threshold {
    key: "min_per_second",
    value: 5_000.0,
    unit: "work requests per second",
    why: "below it one queue pair is far from its limit on any device",
};

const SMALL: Threshold = Threshold {
    key: "max_mean_bytes",
    value: 512.0,
    unit: "bytes",
    why: "at some 10 million a second, which one queue pair of a current NIC does, 1 KiB already fills a link of 100 Gb/s",
};

const KEEPS_UP: Threshold = Threshold {
    key: "min_spins_per_wr",
    value: 1.0,
    unit: "empty polls per work request, beyond one for each call to post",
    why: "an empty poll takes about as long as a post: a thread that looks in vain less often than for every request is itself what limits, and cannot feed a second queue pair (perftest: 0 to 0.5 where more queue pairs brought nothing, 3 and more where they did)",
};

/// All through one.
pub static ONE_QP: Rule = Rule {
    id: "one-queue-pair",
    title: "all small messages go through one queue pair",
    looks_at: "how work requests are spread over the queue pairs of a process, their size, how many are under way, and whether polls find nothing: the thread waits for the device",
    plane: Plane::Data,
    thresholds: &[&MANY, &RATE, &SMALL, &KEEPS_UP],
    cause: "A NIC works at a queue pair with one of its processing units (8 to 32 of them), and a bonded pair of ports carries one queue pair over one port: one queue pair uses a part of the device. Published for one NIC: 18 million small WRITEs a second on one queue pair, 113 million on six, each with a core.",
    remedy: "Spread independent messages over 2 to 4 queue pairs per unit that is to work: begin with 8 (NCCL_IB_QPS_PER_CONNECTION, perftest -q 8), and measure.",
    unless: "messages must stay in order, or the rate that is wanted is reached. Nothing is said where the posting thread is busy all the time, of atomics and of datagrams. How many units a NIC has is not published for all.",
    workload: Some("multi-qp"),
    shown: Shown::By("one-queue-pair"),
    links: &[man!("3", "ibv_create_qp")],
    met: &["NVIDIA/nccl#1015", "NVIDIA/nccl-tests#191", "openucx/ucx#10430"],
    check: Check::Process(one_qp),
};

const UNITS: Threshold = Threshold {
    key: "min_busy_qps",
    value: 128.0,
    unit: "busy queue pairs",
    why: "4 for each of 32 units, the most any published NIC has; 8 to 16 units are usual",
};

/// Far more than the units need.
pub static MANY_BUSY: Rule = Rule {
    id: "qps-above-units",
    title: "far more queue pairs are busy than a NIC's processing units need",
    looks_at: "queue pairs that post at least a tenth of the average",
    plane: Plane::Data,
    thresholds: &[&UNITS],
    cause: "2 to 4 queue pairs keep a processing unit of the NIC busy. More bring no more rate, take memory, and push each other's context out of the NIC's cache.",
    remedy: "Send through fewer queue pairs: some dozen per device, shared by the connections of one peer.",
    unless: "each of them leads to another peer. How many units a NIC has is not published for all.",
    workload: Some("multi-qp"),
    shown: Shown::By("qps-above-units"),
    links: &[man!("3", "ibv_create_qp")],
    met: &["valkey-io/valkey#477"],
    check: Check::Process(many_busy),
};

const GAP: Threshold = Threshold {
    key: "min_gap_ratio",
    value: 2.0,
    unit: "gap over latency",
    why: "from twice on the device waits for the program two thirds of the time",
};

const AT_WORK: Threshold = Threshold {
    key: "min_per_second",
    value: 3_000.0,
    unit: "work requests per second",
    why: "a program that makes fewer has time left: it waits for something else, and that is no fault",
};

/// The program is what is slow.
pub static GAP_DOMINATES: Rule = Rule {
    id: "host-gap-dominates",
    title: "the device waits for the program: time between completion and next post dominates",
    looks_at: "time from the poll that brought a completion to the next post of that thread, against post to reap",
    plane: Plane::Data,
    thresholds: &[&GAP, &AT_WORK],
    cause: "Between a completion and the next post the program does other work, and the device has nothing to do: the network is not what limits it, and a faster one would not help.",
    remedy: "Post the next request before working on the result of the last (two or more under way), move the work to another thread, or make it shorter.",
    unless: "each request depends on the work in between.",
    workload: None,
    shown: Shown::By("host-gap-dominates"),
    links: &[man!("3", "ibv_post_send")],
    met: &["NVIDIA/nccl#2409"],
    check: Check::Process(gap_dominates),
};

fn threads_on_qp(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let (least, threads) = (subject.limit(&SHARED), subject.limit(&THREADS));
    if traffic.all.wrs as f64 >= least && traffic.senders().all(|(_, counts)| counts.threads.is_none()) {
        return Verdict::NotObservable("which threads post is not seen");
    }
    let shared = |counts: &QueueCounts| {
        traffic.enough(counts, least) && counts.threads.is_some_and(|n| f64::from(n) >= threads)
    };
    let Some(those) = traffic.those(|_, counts| shared(counts)) else { return Verdict::Clear };
    let most = traffic.senders().filter_map(|(_, counts)| counts.threads).max().unwrap_or(0);
    Case::new(Severity::Warning, Confidence::Medium, format!("up to {most} threads post to one queue pair"))
        .because(format!("{} on {}", many(those.sum.wrs, "work request"), many(those.n, "shared queue pair")))
        .because_of(Some(those.which))
        .found()
}

fn one_qp(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    // One queue pair is as good as many there.
    if subject.is_software() {
        return Verdict::NotObservable("software moves the data: there are no processing units of a NIC");
    }
    let Some((queue, counts)) = traffic.senders().max_by_key(|(_, counts)| counts.wrs) else {
        return Verdict::Clear;
    };
    let of_all = share(counts.wrs, traffic.all.wrs);
    let rate = subject.per_device_second(counts.wrs);
    if (counts.wrs as f64) < subject.limit(&MANY)
        || of_all < 0.9
        || mean_bytes(counts) > subject.limit(&SMALL)
        || !is_pipelined(counts, &traffic.all)
        || (traffic.has_rates() && rate < subject.limit(&RATE))
        // Atomics wait for the lock of their address, whatever queue pair they come from.
        || of_opcodes(counts, &ATOMICS) * 2 >= counts.wrs
        // A datagram queue pair reaches every peer: more of them bring nothing that posting lists does not.
        || subject.qp_at(queue.pointer).is_some_and(|qp| qp.qp_type == "UD")
        || (traffic.all.polls > 0 && spins_per_wr(&traffic.all) < subject.limit(&KEEPS_UP))
    {
        return Verdict::Clear;
    }
    Case::new(Severity::Note, Confidence::Low, ONE_QP.title)
        .because(format!(
            "{} of {} work requests on QPN {}, {} on average, {} a second",
            percent(of_all),
            count(traffic.all.wrs),
            queue.number,
            bytes(mean_bytes(counts) as u64),
            count(rate as u64)
        ))
        .found()
}

fn many_busy(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    if subject.is_software() {
        return Verdict::NotObservable("software moves the data: there are no processing units of a NIC");
    }
    let senders = traffic.senders().count() as u64;
    let average = traffic.all.wrs / senders.max(1);
    let busy = |counts: &QueueCounts| counts.wrs * 10 >= average;
    if average < 10 || (senders as f64) < subject.limit(&UNITS) {
        return Verdict::Clear;
    }
    let Some(those) = traffic.those(|_, counts| busy(counts)) else { return Verdict::Clear };
    if (those.n as f64) < subject.limit(&UNITS) {
        return Verdict::Clear;
    }
    Case::new(Severity::Note, Confidence::Low, format!("{} are busy", many(those.n, "queue pair")))
        .because(format!("{} work requests, {} on each", count(those.sum.wrs), count(average)))
        .because_of(Some(those.which))
        .costs(Cost {
            memory_bytes: Some(those.n * 256),
            text: format!("about {} of contexts on the device", bytes(those.n * 256)),
            ..Cost::default()
        })
        .found()
}

fn gap_dominates(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let all = traffic.all.detail.as_deref();
    let gap = all
        .and_then(|d| d.cqe_to_post_ns.clone())
        .or_else(|| {
            let mut sum = crate::sample::Histogram::default();
            for (_, counts) in &traffic.queues {
                detail(counts).and_then(|d| d.cqe_to_post_ns.as_ref()).into_iter().for_each(|h| sum.merge(h));
            }
            Some(sum)
        })
        .filter(|gap| gap.total() > 0);
    let Some(gap) = gap else {
        return Verdict::NotObservable("the time between completion and next post is not seen");
    };
    if gap.total() < 100 {
        return Verdict::NotEnoughData("fewer than 100 completions were followed by a post");
    }
    let reap = traffic.post_to_reap().unwrap_or_default();
    let (Some(gap_p50), Some(reap_p50)) = (gap.quantile(0.5), reap.quantile(0.5)) else {
        return Verdict::NotObservable("the time from post to reap is not seen");
    };
    // A program that polls much between two posts is slowed by being looked at.
    let looks = traffic.all.polls as f64 / traffic.all.post_calls.max(1) as f64;
    let hit_ns = subject.process.data_path.observed.hit_ns.filter(|_| traffic.is_whole()).unwrap_or(0);
    let gap_p50 = gap_p50.saturating_sub((looks * hit_ns as f64) as u64);
    let of_queues = traffic.senders().filter_map(|(_, c)| detail(c)?.most_outstanding).max();
    let outstanding = of_queues.or(all.and_then(|d| d.most_outstanding)).unwrap_or(1);
    // Most of a gap in which the thread did not run at all still counts; a pause of the whole program does not.
    let longest = gap_p50.saturating_mul(100);
    let in_gaps =
        gap.0.iter().map(|(bucket, n)| crate::model::bounds(*bucket).0.min(longest).saturating_mul(*n));
    let of_time = in_gaps.fold(0, u64::saturating_add) as f64 / subject.busy_ns() as f64;
    // With many under way the device has work during the gap; and a gap that is not most of the time costs nothing.
    if (gap_p50 as f64) < reap_p50 as f64 * subject.limit(&GAP)
        || outstanding > 2
        || traffic.all.wrs < 1000
        || (traffic.has_rates() && subject.per_second(traffic.all.wrs) < subject.limit(&AT_WORK))
        || of_time < 0.25
    {
        return Verdict::Clear;
    }
    Case::new(Severity::Note, Confidence::Medium, GAP_DOMINATES.title)
        .because(format!(
            "{} between completion and next post, what looking at polls took not counted; {} from post to reap (medians)",
            duration(gap_p50),
            duration(reap_p50)
        ))
        .because(format!("at most {outstanding} under way"))
        .costs(Cost {
            us_per_message: Some(gap_p50 as f64 / 1e3),
            text: format!("{} a message in which the device has nothing to do", duration(gap_p50)),
            ..Cost::default()
        })
        .found()
}
