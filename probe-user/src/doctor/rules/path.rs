//! The path to the peer: MTU, GID, reads outstanding, traffic class.

use std::collections::HashMap;

use super::super::finding::{Confidence, Cost, Evidence, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::super::traffic::{ATOMICS, READS, Traffic, detail, mean_bytes, of_opcodes};
use super::man;
use crate::model::Qp;
use crate::report::units::{count, percent};
use crate::sample::Gid;

/// Below the port's.
pub static MTU_SMALL: Rule = Rule {
    id: "path-mtu-small",
    title: "queue pairs have a path MTU below the port's",
    looks_at: "path_mtu at RTR against the active MTU of the ports, and the length of messages where posts are observed",
    plane: Plane::Device,
    thresholds: &[],
    cause: "A path MTU below the port's makes more packets of the same bytes, each with its headers (82 B on Ethernet, RoCE v2) and its work in the NIC.",
    remedy: "Use the smaller of both ends' active_mtu (ibv_query_port) as path_mtu when going to RTR (perftest: -m).",
    unless: "the peer's port or a switch on the way allows no more. Nothing is said where messages fit one packet as it is.",
    workload: None,
    shown: Shown::By("path-mtu-small"),
    links: &[man!("3", "ibv_modify_qp"), man!("3", "ibv_query_port")],
    met: &["kvcache-ai/Mooncake#3868"],
    check: Check::Process(mtu_small),
};

/// Above the port's.
pub static MTU_LARGE: Rule = Rule {
    id: "path-mtu-large",
    title: "queue pairs have a path MTU above the port's",
    looks_at: "path_mtu at RTR against the active MTU of the ports",
    plane: Plane::Device,
    thresholds: &[],
    cause: "Packets longer than the port's MTU are not sent or not received: small messages pass, large ones hang or fail with an invalid request.",
    remedy: "Use the smaller of both ends' active_mtu (ibv_query_port) as path_mtu when going to RTR, and the same at both ends.",
    unless: "",
    workload: None,
    shown: Shown::Synthetic { why: "devices at hand refuse such a path MTU" },
    links: &[man!("3", "ibv_modify_qp"), man!("3", "ibv_query_port")],
    met: &["kvcache-ai/Mooncake#3868", "NVIDIA/nccl#2135", "tensorflow/tensorflow#9432"],
    check: Check::Process(mtu_large),
};

/// A GID of the wrong kind.
pub static GID_TYPE: Rule = Rule {
    id: "gid-wrong-type",
    title: "queue pairs go out with a RoCE v1 or link-local GID",
    looks_at: "sgid_index at RTR against the port's table of GIDs",
    plane: Plane::Device,
    thresholds: &[],
    cause: "RoCE v1 and link-local addresses are not routed: within one network segment they work, across a router the connection times out (retry exceeded, status 12, or ETIMEDOUT at RTR). Index 0 is often of that kind.",
    remedy: "Take the index of a RoCE v2 GID with an IP address as sgid_index at RTR (`rdma-probe devices` lists them; NCCL_IB_GID_INDEX, UCX_IB_GID_INDEX, perftest -x).",
    unless: "both ends are in one network segment.",
    workload: None,
    shown: Shown::Synthetic { why: "the emulated device has one kind of GID" },
    links: &[man!("3", "ibv_query_gid_ex")],
    met: &[
        "NVIDIA/nccl#769",
        "NVIDIA/nccl#426",
        "ofiwg/libfabric#12673",
        "kvcache-ai/Mooncake#204",
        "uccl-project/uccl#641",
    ],
    check: Check::Process(gid_type),
};

/// One READ at a time.
pub static READS_ONE: Rule = Rule {
    id: "reads-one-at-a-time",
    title: "only one READ or atomic may be outstanding per queue pair",
    looks_at: "max_rd_atomic at RTS, the share of READs and atomics, and how many requests of a queue pair are under way at a time where that is known",
    plane: Plane::Control,
    thresholds: &[&READ_SHARE],
    cause: "With max_rd_atomic 1 a READ or atomic starts when the one before has come back: throughput is one message per round trip (2 µs: half a million a second on each queue pair at most). 0 or a forgotten mask bit has the same effect, or forbids them.",
    remedy: "Set max_rd_atomic at RTS to the device's max_qp_init_rd_atom and max_dest_rd_atomic at RTR to its max_qp_rd_atom (ibv_query_device; 16 on most NICs), with IBV_QP_MAX_QP_RD_ATOMIC and IBV_QP_MAX_DEST_RD_ATOMIC in the mask, at both ends.",
    unless: "the program never has two READs or atomics outstanding on one queue pair.",
    workload: None,
    shown: Shown::By("reads-one-at-a-time"),
    links: &[man!("3", "ibv_modify_qp")],
    met: &[
        "bytedance/InfiniStore#160",
        "meta-pytorch/torchcomms#2637",
        "meta-pytorch/torchcomms#3926",
        "spdk/spdk#2261",
        "spdk/spdk#3069",
        "kvcache-ai/Mooncake#3977",
    ],
    check: Check::Process(reads_one),
};

const READ_SHARE: Threshold = Threshold {
    key: "min_read_share",
    value: 0.05,
    unit: "share of work requests",
    why: "now and then a READ does not suffer from waiting for the one before",
};

const MAJORITY: Threshold = Threshold {
    key: "min_same_share",
    value: 0.8,
    unit: "share of queue pairs with the common traffic class",
    why: "with less agreement no class is the usual one",
};

/// A few queue pairs outside the traffic class of the others.
pub static TRAFFIC_CLASS: Rule = Rule {
    id: "traffic-class-mixed",
    title: "some queue pairs miss the traffic class that the others have",
    looks_at: "traffic_class at RTR of all queue pairs of the host",
    plane: Plane::Control,
    thresholds: &[&MAJORITY],
    cause: "Lossless service on RoCE is given by traffic class. Queue pairs with class 0 among others that have one travel in the lossy class: they alone lose packets.",
    remedy: "Set the same traffic_class in the address handle (ah_attr.grh.traffic_class) of all of them (NCCL_IB_TC, UCX_IB_TRAFFIC_CLASS, perftest --tclass), or a default for the device (cma_roce_tos for librdmacm).",
    unless: "they are meant to be of another class.",
    workload: None,
    shown: Shown::Synthetic { why: "the emulated device's path carries no traffic class" },
    links: &[man!("3", "ibv_modify_qp")],
    met: &["NVIDIA/nccl#2383"],
    check: Check::Process(traffic_class),
};

fn connected(qp: &Qp) -> bool {
    qp.attributes.path_mtu_bytes.is_some()
}

fn mtu_small(subject: &Subject<'_>) -> Verdict {
    if !subject.qps.iter().any(|qp| connected(qp)) {
        return Verdict::Clear;
    }
    // With several devices nobody knows which one a QP is on; the smallest is a bound for all.
    let Some((smallest, _)) = subject.host.active_mtu() else {
        return Verdict::NotObservable("the active MTU of the ports is not known");
    };
    let small = |qp: &Qp| qp.attributes.path_mtu_bytes.is_some_and(|mtu| mtu < smallest);
    let Some((n, which)) = subject.those(small) else { return Verdict::Clear };
    let mtu = subject.qps.iter().filter_map(|qp| qp.attributes.path_mtu_bytes).min().unwrap_or(0);
    // Messages of one packet stay messages of one packet.
    if subject
        .traffic
        .is_some_and(|traffic| traffic.all.wrs > 0 && mean_bytes(&traffic.all) <= f64::from(mtu))
    {
        return Verdict::Clear;
    }
    Case::new(
        Severity::Note,
        Confidence::Medium,
        format!("{} with a path MTU below the port's", many(n, "queue pair")),
    )
    .because(format!("path MTU {mtu} B, the ports' active MTU is {smallest} B"))
    .because_of(Some(which))
    .costs(headers(mtu, smallest))
    .found()
}

/// Bytes around the payload of a RoCE v2 packet in the middle of a message, on the wire: preamble and gap 20, Ethernet 18,
/// IP 20, UDP 8, BTH 12, ICRC 4.
const AROUND: f64 = 82.0;

/// What the smaller path MTU costs on Ethernet.
fn headers(mtu: u32, port: u32) -> Cost {
    let of_the_wire = |mtu: u32| percent(AROUND / (AROUND + f64::from(mtu)));
    Cost {
        text: format!(
            "on Ethernet (RoCE v2) headers take {} of the wire, {} at the port's MTU",
            of_the_wire(mtu),
            of_the_wire(port)
        ),
        ..Cost::default()
    }
}

fn mtu_large(subject: &Subject<'_>) -> Verdict {
    let Some((_, largest)) = subject.host.active_mtu() else { return Verdict::Clear };
    let large = |qp: &Qp| qp.attributes.path_mtu_bytes.is_some_and(|mtu| mtu > largest);
    let Some((n, which)) = subject.those(large) else { return Verdict::Clear };
    Case::new(
        Severity::Problem,
        Confidence::Medium,
        format!("{} with a path MTU above the port's", many(n, "queue pair")),
    )
    .because(format!("the ports' active MTU is {largest} B"))
    .because_of(Some(which))
    .found()
}

/// What keeps a GID from being routed, if anything does.
fn unroutable(gid: &Gid) -> Option<&'static str> {
    if gid.gid_type.contains("v1") && !gid.gid_type.contains("v2") {
        Some("RoCE v1")
    } else if gid.gid.to_lowercase().starts_with("fe8") {
        Some("link-local")
    } else {
        None
    }
}

fn gid_type(subject: &Subject<'_>) -> Verdict {
    let port_of = |number: u32| {
        let mut ports = subject.host.ports().map(|(_, port)| port).filter(|port| port.number == number);
        // With several devices nobody knows which table the index is in.
        ports.next().filter(|_| ports.next().is_none())
    };
    let kind = |qp: &Qp| {
        let index = u32::from(qp.attributes.sgid_index?);
        let port = port_of(u32::from(qp.attributes.port.unwrap_or(1)))?;
        if port.link_layer != "Ethernet" {
            return None;
        }
        let routable = port.gids.iter().any(|gid| unroutable(gid).is_none());
        let gid = port.gids.iter().find(|gid| gid.index == index)?;
        unroutable(gid).filter(|_| routable)
    };
    let Some((n, which)) = subject.those(|qp| kind(qp).is_some()) else { return Verdict::Clear };
    let first = subject.qps.iter().find(|qp| kind(qp).is_some());
    let routable = first
        .and_then(|qp| port_of(u32::from(qp.attributes.port.unwrap_or(1))))
        .and_then(|port| port.gids.iter().find(|gid| unroutable(gid).is_none()));
    let kinds: std::collections::BTreeSet<&str> = subject.qps.iter().filter_map(|qp| kind(qp)).collect();
    let kinds: Vec<&str> = kinds.into_iter().collect();
    Case::new(
        Severity::Warning,
        Confidence::Medium,
        format!("{} with a GID that is not routed ({})", many(n, "queue pair"), kinds.join(", ")),
    )
    .because_of(Some(which))
    .because(match routable {
        Some(gid) => {
            format!("the port has a routable one too: index {}, {}, {}", gid.index, gid.gid, gid.gid_type)
        }
        None => "the port has a routable one too".to_owned(),
    })
    .found()
}

fn reads_one(subject: &Subject<'_>) -> Verdict {
    let one = |qp: &Qp| qp.attributes.max_rd_atomic.is_some_and(|n| n <= 1);
    if subject.those(one).is_none() {
        return Verdict::Clear;
    }
    let (share, wrs) = match subject.reads_share() {
        // Nobody knows whether it reads at all: perftest's write tests set 1 and lose nothing.
        None => return Verdict::NotObservable("whether READs or atomics are posted is not seen"),
        Some((share, _)) if share < subject.limit(&READ_SHARE) => return Verdict::Clear,
        Some(known) => known,
    };
    // Who has one request under way at a time waits for the round trip in any case.
    let waiting: HashMap<(u64, u32), Option<u64>> = subject
        .traffic
        .into_iter()
        .flat_map(Traffic::senders)
        .filter_map(|(queue, counts)| {
            let reads = of_opcodes(counts, &READS).saturating_add(of_opcodes(counts, &ATOMICS));
            let most = detail(counts).and_then(|d| d.most_outstanding);
            (reads > 0 && most.is_none_or(|n| n >= 2)).then_some(((queue.pointer, queue.number), most))
        })
        .collect();
    let those = |qp: &Qp| one(qp) && waiting.contains_key(&(qp.qp, qp.qpn));
    let Some((n, which)) = subject.those(those) else { return Verdict::Clear };
    let most = waiting.values().copied().flatten().max();
    Case::new(
        Severity::Warning,
        Confidence::High,
        format!("{} with one READ or atomic at a time", many(n, "queue pair")),
    )
    .because(format!("{} of {} work requests are READs or atomics", percent(share), count(wrs)))
    .because_of(most.map(|n| Evidence {
        text: format!(
            "up to {} posted at a time on one of them, of which one is under way",
            many(n, "request")
        ),
        qpns: Vec::new(),
    }))
    .because_of(Some(which))
    .found()
}

fn traffic_class(subject: &Subject<'_>) -> Verdict {
    let classes = subject.host.traffic_classes();
    let total: u64 = classes.values().sum();
    let Some((class, n)) = classes.iter().filter(|(class, _)| **class != 0).max_by_key(|(_, n)| **n) else {
        return Verdict::Clear;
    };
    if (*n as f64) < total as f64 * subject.limit(&MAJORITY) || total < 5 {
        return Verdict::Clear;
    }
    let Some((without, which)) =
        subject.those(|qp| qp.destroyed_ns.is_none() && qp.attributes.traffic_class == Some(0))
    else {
        return Verdict::Clear;
    };
    Case::new(
        Severity::Warning,
        Confidence::Low,
        format!("{} without the traffic class that the others have", many(without, "queue pair")),
    )
    .because_of(Some(Evidence {
        text: format!("{} of {} queue pairs of the host have class {class}", count(*n), count(total)),
        qpns: Vec::new(),
    }))
    .because_of(Some(which))
    .found()
}
