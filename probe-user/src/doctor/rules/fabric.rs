//! What the ports' counters say of loss and congestion.

use super::super::finding::{Confidence, Cost, Evidence, Severity, many, per_second};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{Host, Subject, rnr_wait_ns};
use super::man;
use crate::model::{CONGESTED_PER_SECOND, CONGESTION_COUNTERS, LOSS_COUNTERS, Queue};
use crate::report::units::{count, duration};
use crate::sample::QueueKind;

const LOST: Threshold = Threshold {
    key: "min_events",
    value: 10.0,
    unit: "events during the recording",
    why: "one bit error now and then is in the specification of every link",
};

/// Packets lost on the way.
pub static LOSS: Rule = Rule {
    id: "packets-lost",
    title: "packets are lost, damaged or sent again",
    looks_at: "growth of loss counters over the recording: out_of_sequence, packet_seq_err, implied_nak_seq_err, local_ack_timeout_err, roce_adp_retrans, symbol and receive errors, discards",
    plane: Plane::Device,
    thresholds: &[&LOST],
    cause: "Reliable transports send again what was lost, and go back to where the loss was: each loss costs a round trip or an ACK timeout, and throughput falls far more than the share of lost packets.",
    remedy: "Where symbol_error, port_rcv_errors or rx_icrc_encapsulated grow: cables and optics (ethtool -S, mlxlink). Where the others grow on RoCE: make the traffic class lossless (PFC on the priority of its DSCP, at NICs and switches alike), or switch congestion control on (ECN at the switches, DCQCN at the NICs).",
    unless: "the loss comes from a link that is going up or down now.",
    workload: None,
    shown: Shown::Synthetic { why: "no lossy network is at hand" },
    links: &["https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html"],
    met: &["NVIDIA/nccl#378", "NVIDIA/nccl#306", "openucx/ucx#6000", "bytedance/byteps#179"],
    check: Check::Host(loss),
};

const MARKS: Threshold = Threshold {
    key: "min_per_second",
    value: CONGESTED_PER_SECOND,
    unit: "congestion notifications per second",
    why: "a few are how congestion control feels its way",
};

const TICKS: Threshold = Threshold {
    key: "min_wait_ticks_per_second",
    value: 15_000_000.0,
    unit: "ticks of port_xmit_wait per second",
    why: "a hundredth of the time of a port of 100 Gb/s that counts one for every 8 bytes it could have sent; what a tick is differs by device",
};

/// Congestion.
pub static CONGESTION: Rule = Rule {
    id: "network-congested",
    title: "the network is congested",
    looks_at: "growth of congestion counters over the recording: np_cnp_sent, rp_cnp_handled, np_ecn_marked_roce_packets, port_xmit_wait",
    plane: Plane::Device,
    thresholds: &[&MARKS, &TICKS],
    cause: "More is sent towards one port than it takes: switches mark packets, receivers ask senders to slow down (CNP, congestion notification packets), or a port must wait until the next switch has room.",
    remedy: "Where many senders meet at one receiver (incast): send to it in turn, or less at a time. Where single links are full: spread the traffic over more paths (several queue pairs, which ECMP sends different ways). Check that all NICs and switches have the same ECN and PFC settings.",
    unless: "the link is meant to be full.",
    workload: None,
    shown: Shown::Synthetic { why: "no network that congests is at hand" },
    links: &["https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html"],
    met: &["NVIDIA/nccl#378", "openucx/ucx#6000"],
    check: Check::Host(congestion),
};

const RNRS: Threshold = Threshold {
    key: "min_events",
    value: 100.0,
    unit: "receiver-not-ready events during the recording",
    why: "some at the start are receives posted a moment late",
};

/// Receivers that are not ready, for ever tried again.
pub static RNR_GROWING: Rule = Rule {
    id: "receiver-not-ready",
    title: "senders meet no posted receive, again and again",
    looks_at: "growth of receiver-not-ready counters (rnr_nak_retry_err, out_of_buffer, rcvd_rnr_err, send_rnr_err; the emulated device's rnr_naks_received), with rnr_retry and min_rnr_timer of the queue pairs",
    plane: Plane::Device,
    thresholds: &[&RNRS],
    cause: "Messages arrive faster than receives are posted. With rnr_retry 7 (for ever, NCCL's ordinary setting) nothing fails: each such message only waits, min_rnr_timer at least.",
    remedy: "Post more receives ahead (a deeper receive queue or an SRQ with a limit event), before going to RTR, and from a thread that is not delayed by the work on messages; keep min_rnr_timer short (12: 0.64 ms).",
    unless: "waiting is the flow control that is wanted.",
    workload: None,
    shown: Shown::By("receiver-not-ready"),
    links: &[man!("3", "ibv_post_recv"), man!("3", "ibv_modify_qp")],
    met: &["ydb-platform/nbs#5790", "meta-pytorch/torchcomms#3345", "spdk/spdk#2937"],
    check: Check::Process(rnr_growing),
};

const LATE: Threshold = Threshold {
    key: "min_late_ms",
    value: 1.0,
    unit: "ms between RTR and the first receive, at least",
    why: "a peer that is told of the connection at once sends within a millisecond",
};

/// Receives that come after the queue pair can be sent to.
pub static RECEIVES_LATE: Rule = Rule {
    id: "receives-after-rtr",
    title: "receives are posted only after the queue pair can be sent to, and senders met none",
    looks_at: "when a queue pair went to RTR against the last sample that knew of no posted receive, and growth of receiver-not-ready counters",
    plane: Plane::Data,
    thresholds: &[&LATE],
    cause: "From RTR on a queue pair takes messages. The peer sent before the first receive was posted: it was told to come again later (RNR), and waited min_rnr_timer each time, or broke with rnr_retry 0.",
    remedy: "Post receives in the state INIT, before ibv_modify_qp to RTR: a receive queue takes them from INIT on. With librdmacm post them before rdma_accept or rdma_connect.",
    unless: "",
    workload: None,
    shown: Shown::By("receives-after-rtr"),
    links: &[man!("3", "ibv_post_recv"), man!("3", "ibv_modify_qp")],
    met: &["meta-pytorch/torchcomms#3345"],
    check: Check::Process(receives_late),
};

/// Share of the time that waits for a receive take together, below which they are hardly felt.
const LITTLE: f64 = 0.01;

/// Ticks in which a port had something to send and could not. How long one is differs by device.
const WAITING: &str = "port_xmit_wait";

const RNR_COUNTERS: [&str; 5] =
    ["rnr_nak_retry_err", "out_of_buffer", "rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err"];

/// Growth by counter and port, as evidence.
pub(super) fn growth(host: &Host<'_>, names: &[&str]) -> (u64, Vec<Evidence>) {
    let (mut sum, mut lines) = (0_u64, Vec::new());
    for name in names {
        for (place, n) in host.grown(name) {
            sum = sum.saturating_add(n);
            lines.push(Evidence { text: format!("{place}: {name} +{}", count(n)), qpns: Vec::new() });
        }
    }
    lines.truncate(8);
    (sum, lines)
}

pub(super) fn known(host: &Host<'_>) -> bool {
    host.ports().any(|(_, port)| !port.counters.is_empty())
}

fn loss(host: &Host<'_>) -> Verdict {
    if !known(host) {
        return Verdict::NotObservable("no port tells its counters");
    }
    let (sum, lines) = growth(host, &LOSS_COUNTERS);
    if (sum as f64) < host.limit(&LOST) {
        return Verdict::Clear;
    }
    let mut case = Case::new(
        Severity::Warning,
        Confidence::High,
        format!("{} of loss on the host's ports", many(sum, "sign")),
    );
    for line in lines {
        case = case.because_of(Some(line));
    }
    case.because_of(slower(host)).found()
}

fn congestion(host: &Host<'_>) -> Verdict {
    if !known(host) {
        return Verdict::NotObservable("no port tells its counters");
    }
    let a_second = |n: u64| n as f64 * 1e9 / host.model.duration_ns().max(1) as f64;
    let (sum, mut lines) = growth(host, &CONGESTION_COUNTERS);
    let (ticks, waiting) = growth(host, &[WAITING]);
    let marked = a_second(sum) >= host.limit(&MARKS);
    if !marked && a_second(ticks) < host.limit(&TICKS) {
        return Verdict::Clear;
    }
    lines.extend(waiting);
    let (confidence, title) = if marked {
        let rate = per_second(a_second(sum));
        (Confidence::Medium, format!("{rate} signs of congestion a second on the host's ports"))
    } else {
        (Confidence::Low, "the host's ports often have something to send and cannot".to_owned())
    };
    let mut case = Case::new(Severity::Note, confidence, title);
    for line in lines {
        case = case.because_of(Some(line));
    }
    case.because_of(slower(host)).found()
}

/// Latencies of the queue pairs that suffer, where they are observed: those whose slowest hundredth waits long.
fn slower(host: &Host<'_>) -> Option<Evidence> {
    let mut worst: Option<(u32, u64, u64)> = None;
    for process in host.model.processes.values() {
        for queue in process.data_path.queues() {
            let counts = queue.tally.seen();
            let Some(latency) = counts.detail.as_deref().and_then(|d| d.post_to_reap()) else { continue };
            let (Some(p50), Some(p99)) = (latency.quantile(0.5), latency.quantile(0.99)) else { continue };
            if p99 > p50.saturating_mul(10) && worst.is_none_or(|(_, _, known)| p99 > known) {
                worst = Some((queue.number, p50, p99));
            }
        }
    }
    worst.map(|(qpn, p50, p99)| Evidence {
        text: format!(
            "QPN {qpn}: {} from post to reap in the median, {} in one of a hundred",
            duration(p50),
            duration(p99)
        ),
        qpns: vec![qpn],
    })
}

/// Growth of receiver-not-ready counters. The emulated device counts both ends of a connection on one host: once is
/// enough.
fn rnrs(host: &Host<'_>) -> (u64, Vec<Evidence>) {
    let kernel = growth(host, &RNR_COUNTERS);
    if kernel.0 > 0 {
        return kernel;
    }
    let met = growth(host, &["rnr_naks_received"]);
    if met.0 > 0 { met } else { growth(host, &["rnr_naks_sent"]) }
}

/// Queue pairs that were in RTR, and knew no receive, when a sample was taken: how many, how long at most, and which.
fn late(subject: &Subject<'_>) -> Option<(u64, u64, Evidence)> {
    let waited = |queue: &Queue| {
        let until = queue.no_receive_until_ns?;
        let qp = subject.qp_at(queue.pointer)?;
        let ready = qp.transitions.iter().find(|change| change.to == "RTR" && change.errno == 0)?;
        let waited = until.saturating_sub(ready.t_ns);
        (waited as f64 >= subject.limit(&LATE) * 1e6).then_some((queue.number, waited))
    };
    let queues = subject.traffic?.queues.iter().filter(|(queue, _)| queue.kind == QueueKind::Qp);
    let late: Vec<(u32, u64)> = queues.filter_map(|(queue, _)| waited(queue)).collect();
    let longest = late.iter().map(|(_, waited)| *waited).max()?;
    let qpns: Vec<u32> = late.iter().take(6).map(|(number, _)| *number).collect();
    let text = format!("QPN {}", qpns.iter().map(u32::to_string).collect::<Vec<_>>().join(", "));
    Some((late.len() as u64, longest, Evidence { text, qpns }))
}

fn receives_late(subject: &Subject<'_>) -> Verdict {
    let Some((n, longest, which)) = late(subject) else { return Verdict::Clear };
    let (sum, lines) = rnrs(subject.host);
    if sum == 0 {
        return Verdict::Clear;
    }
    let mut case = Case::new(
        Severity::Warning,
        Confidence::High,
        format!(
            "{} could be sent to before a receive was posted, and senders met none",
            many(n, "queue pair")
        ),
    )
    .because(format!("no receive for at least {} after RTR", duration(longest)))
    .because_of(Some(which));
    for line in lines {
        case = case.because_of(Some(line));
    }
    case.found()
}

fn rnr_growing(subject: &Subject<'_>) -> Verdict {
    // Receives that came late at the beginning are another rule's.
    if late(subject).is_some() {
        return Verdict::Clear;
    }
    // Said once, of the process with most queue pairs.
    if subject.host.most_qps != Some(subject.process.info.id) {
        return Verdict::Clear;
    }
    let (sum, lines) = rnrs(subject.host);
    if (sum as f64) < subject.limit(&RNRS) {
        return Verdict::Clear;
    }
    // Each event is a wait of the receiver's min_rnr_timer: many of a short one are felt less than few of a long one.
    let timer = subject.host.longest_rnr_timer();
    let waited_ns = timer.map(|timer| sum.saturating_mul(rnr_wait_ns(timer)));
    let little = waited_ns.is_some_and(|ns| (ns as f64) < subject.busy_ns() as f64 * LITTLE);
    let mut case = Case::new(
        if little { Severity::Note } else { Severity::Warning },
        Confidence::Medium,
        format!("{} of senders that met no receive", many(sum, "event")),
    );
    if let (Some(timer), Some(ns)) = (timer, waited_ns) {
        case = case.costs(Cost {
            text: format!(
                "up to {} of waiting in {}, over all queue pairs together: {} for each (min_rnr_timer {timer})",
                duration(ns),
                duration(subject.busy_ns()),
                duration(rnr_wait_ns(timer))
            ),
            ..Cost::default()
        });
    }
    for line in lines {
        case = case.because_of(Some(line));
    }
    let forever = subject.those(|qp| qp.attributes.rnr_retry == Some(7));
    case.because_of(forever.map(|(n, which)| Evidence {
        text: format!(
            "{} {} for ever: {}",
            many(n, "queue pair"),
            if n == 1 { "tries" } else { "try" },
            which.text
        ),
        ..which
    }))
    .found()
}
