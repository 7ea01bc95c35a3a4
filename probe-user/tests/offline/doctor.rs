//! Rules that no machine at hand can make true, and those on figures that only some sources know, on made-up
//! observations; what they must be silent on beside each.

use std::collections::BTreeMap;

use probe_user::doctor::{Finding, Settings, Severity, Undecided, examine};
use probe_user::model::{Model, bucket_of};
use probe_user::sample::{
    Call, Counting, DataPath, Detail, Device, Event, Facts, FailedCqes, Gid, Header, Histogram, Machine,
    Observed, ObservedBy, Opcode, Placement, Port, ProcessId, ProcessSample, QpAttributes, QueueCounts,
    QueueDetail, QueueKind, QueueSample, ReapLatency, Record, RegistrationSplit, Sample, Strides,
};

use crate::common::{ALICE, event, header, mr, process};

const SECOND: u64 = 1_000_000_000;

/// What was seen of one process, made up a piece at a time; ten seconds long.
struct Case(Model);

impl Case {
    fn with(header: Header) -> Self {
        let mut model = Model::new();
        model.push(&Record::Header(header));
        model.push(&process(ALICE, "app"));
        Self(model)
    }

    fn new() -> Self {
        Self::with(Header { kernel: "6.12.0".into(), ..header() })
    }

    fn event(mut self, t_ns: u64, duration_ns: u64, call: Call, detail: Detail) -> Self {
        self.0.push(&Record::Event(event(ALICE, t_ns, duration_ns, call, detail)));
        self
    }

    fn failed(mut self, call: Call, errno: i32, detail: Detail) -> Self {
        self.0.push(&Record::Event(Event { errno, ..event(ALICE, 5, 10, call, detail) }));
        self
    }

    fn facts(mut self, facts: Facts) -> Self {
        self.0.push(&Record::Facts(Facts { id: ALICE, t_ns: 1, ..facts }));
        self
    }

    fn queues(self) -> Self {
        self.event(2, 10, Call::CreateCq, Detail::Cq { cq: 5, cqe: 4096, channel: 0 }).event(
            3,
            10,
            Call::CreateQp,
            qp(10, 17),
        )
    }

    fn rtr(self, attributes: QpAttributes) -> Self {
        let attributes = QpAttributes { qp: 10, qpn: 17, to: Some("RTR".into()), ..attributes };
        self.event(4, 10, Call::ModifyQp, Detail::ModifyQp(attributes))
    }

    fn devices(mut self, devices: Vec<Device>) -> Self {
        self.0.push(&Record::Sample(Sample { t_ns: 9 * SECOND, devices, ..Sample::default() }));
        self
    }

    fn counts(self, qp: QueueCounts, cq: QueueCounts) -> Self {
        self.observed(qp, cq, Observed { by: ObservedBy::Tap, ..Observed::default() })
    }

    fn observed(self, qp: QueueCounts, cq: QueueCounts, observed: Observed) -> Self {
        self.on(1, qp, cq, observed)
    }

    /// So many queue pairs with the same counts, and their completion queue.
    fn on(mut self, qps: u32, qp: QueueCounts, cq: QueueCounts, observed: Observed) -> Self {
        let mut totals = cq.clone();
        (0..qps).for_each(|_| totals.add(&qp));
        let queue = |queue, pointer, number, counts| QueueSample {
            queue,
            object: pointer,
            pointer,
            number,
            counts,
            ..QueueSample::default()
        };
        let mut queues = vec![queue(QueueKind::Cq, 5, 1, cq)];
        queues.extend((0..qps).map(|i| queue(QueueKind::Qp, 10 + u64::from(i), 17 + i, qp.clone())));
        let path = DataPath { observed, totals, queues, ..DataPath::default() };
        let process = ProcessSample { id: ALICE, data_path: Some(path), ..ProcessSample::default() };
        self.0.push(&Record::Sample(Sample {
            t_ns: 10 * SECOND,
            processes: vec![process],
            ..Sample::default()
        }));
        self
    }

    fn findings(mut self) -> Vec<Finding> {
        self.0.push(&Record::Sample(Sample { t_ns: 10 * SECOND, ..Sample::default() }));
        examine(&self.0, &Settings::default()).findings
    }

    fn has(self, id: &str) -> Finding {
        let findings = self.findings();
        let ids: Vec<_> = findings.iter().map(|f| f.id).collect();
        let found = findings.iter().find(|f| f.id == id).cloned();
        found.unwrap_or_else(|| panic!("{id} is not among {ids:?}"))
    }

    fn lacks(self, id: &str) {
        let found = self.findings().into_iter().find(|f| f.id == id);
        assert!(found.is_none(), "{found:#?}");
    }
}

fn qp(qp: u64, qpn: u32) -> Detail {
    crate::common::qp(qp, qpn, 128)
}

fn port(counters: &[(&str, u64)]) -> Port {
    Port {
        number: 1,
        state: "ACTIVE".into(),
        link_layer: "Ethernet".into(),
        rate_100mbps: 1000,
        active_mtu_bytes: 4096,
        counters: counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        ..Port::default()
    }
}

fn nic(counters: &[(&str, u64)]) -> Device {
    Device {
        name: "mlx5_0".into(),
        driver: "mlx5_core".into(),
        ports: vec![port(counters)],
        ..Device::default()
    }
}

fn with_nic(device: Device) -> Case {
    Case::with(Header { devices: vec![device], ..header() }).queues()
}

fn region(length_bytes: u64, split: RegistrationSplit) -> Detail {
    Detail::Mr { mr: 1, pd: 1, addr: 1 << 30, length_bytes, access: 1, lkey: 1, rkey: 1, split }
}

/// Counts of a busy, healthy queue pair and its completion queue.
fn busy() -> (QueueCounts, QueueCounts) {
    let wrs = 1_600_000;
    let qp = QueueCounts {
        post_calls: wrs / 16,
        wrs,
        signalled: wrs / 16,
        bytes: wrs * 256,
        sges: wrs,
        longest_unsignalled: 15,
        opcodes: BTreeMap::from([(Opcode::RdmaWrite, wrs)]),
        threads: Some(1),
        detail: Some(Box::new(QueueDetail {
            sizes: BTreeMap::from([(8, wrs)]),
            unaligned_64: Some(0),
            mergeable: Some(0),
            could_inline: Some(0),
            most_outstanding: Some(64),
            remote_strides: Some(Strides { sequential: wrs, ..Strides::default() }),
            ..QueueDetail::default()
        })),
        ..QueueCounts::default()
    };
    let cq = QueueCounts {
        polls: 300_000,
        empty_polls: 200_000,
        cqes: wrs / 16,
        statuses: BTreeMap::from([(0, wrs / 16)]),
        ..QueueCounts::default()
    };
    (qp, cq)
}

/// The busy queue pair with a change.
fn changed(change: impl FnOnce(&mut QueueCounts, &mut QueueDetail)) -> Case {
    let (mut qp, cq) = busy();
    let mut detail = *qp.detail.take().unwrap();
    change(&mut qp, &mut detail);
    qp.detail = Some(Box::new(detail));
    with_nic(nic(&[])).counts(qp, cq)
}

#[test]
fn a_busy_and_healthy_process_has_no_finding() {
    let (qp, cq) = busy();
    let findings = with_nic(nic(&[])).counts(qp, cq).findings();
    assert!(findings.is_empty(), "{findings:#?}");
}

#[test]
fn memory_touched_first_inside_registration() {
    let touched = |faults| {
        let split = RegistrationSplit { page_faults: Some(faults), ..RegistrationSplit::default() };
        Case::new().event(10, 50_000_000, Call::RegMr, region(128 << 20, split))
    };
    touched(32_768).has("registration-first-touch");
    touched(64).lacks("registration-first-touch");
}

#[test]
fn huge_memory_registered_one_piece_after_the_other() {
    let pieces = |start: fn(u64) -> u64| {
        (0..4).fold(Case::new(), |case, i| {
            case.event(start(i), SECOND, Call::RegMr, mr(i + 1, (i + 1) << 40, 8 << 30))
        })
    };
    let found = pieces(|i| i * SECOND).has("registration-serial");
    assert!(found.cost.cpu_share.unwrap() > 0.3, "{found:#?}");
    pieces(|i| i).lacks("registration-serial");
}

#[test]
fn registering_threads_that_wait_for_each_other() {
    let threads = |stretch: u64| {
        (0..400).fold(Case::new(), |case, i| {
            let duration = if i % 8 == 0 { 10_000 } else { 10_000 * stretch };
            case.event(i * 2000, duration, Call::RegMr, mr(i + 1, (i + 1) << 20, 4096))
        })
    };
    threads(8).has("registration-contended");
    threads(1).lacks("registration-contended");
}

#[test]
fn on_demand_paging_that_faults() {
    let on_demand = |faults: u64| {
        let mut case = Case::with(Header { devices: vec![nic(&[("page_faults", 10)])], ..header() });
        case = case.event(
            10,
            5,
            Call::RegMr,
            Detail::Mr {
                mr: 1,
                pd: 1,
                addr: 0,
                length_bytes: 1 << 30,
                access: 1 << 6,
                lkey: 1,
                rkey: 1,
                split: RegistrationSplit::default(),
            },
        );
        case.devices(vec![nic(&[("page_faults", 10 + faults)])])
    };
    on_demand(5000).has("odp-faults");
    on_demand(5).lacks("odp-faults");
}

#[test]
fn the_limit_on_locked_memory_is_told_from_other_wants_of_memory() {
    let limited = |may_lock_more| Facts {
        memlock_limit_bytes: Some(65_536),
        may_lock_more: Some(may_lock_more),
        ..Facts::default()
    };
    let failed = || Case::new().failed(Call::RegMr, libc::ENOMEM, mr(0, 1, 1 << 20));
    let found = failed().facts(limited(false)).findings();
    assert_eq!((found[0].id, found.len()), ("memlock-limit", 1));
    assert!(found[0].title.contains("64 KiB"), "{}", found[0].title);
    let found = failed().facts(limited(true)).findings();
    assert_eq!((found[0].id, found.len()), ("registration-failed", 1));
}

#[test]
fn huge_pages_under_fork_protection_and_gpu_memory_have_rules_of_their_own() {
    let refused = || Case::new().failed(Call::RegMr, libc::EINVAL, mr(0, 1, 1 << 20));
    let fork = Facts {
        hugetlb_bytes: Some(1 << 30),
        environment: BTreeMap::from([("RDMAV_FORK_SAFE".into(), "1".into())]),
        ..Facts::default()
    };
    let found = refused().facts(fork).findings();
    assert_eq!(found[0].id, "hugepages-fork-unsafe");
    assert!(!found.iter().any(|f| f.id == "registration-failed"));
    let gpu = Facts { gpus: vec!["/dev/nvidia0".into()], ..Facts::default() };
    assert_eq!(refused().facts(gpu).findings()[0].id, "gpu-memory-refused");
    assert_eq!(refused().findings()[0].id, "registration-failed");
}

#[test]
fn giving_memory_back_for_seconds() {
    let gives = |ns| {
        Case::new().event(1, 10, Call::RegMr, mr(1, 0, 1 << 30)).event(
            SECOND,
            ns,
            Call::DeregMr,
            mr(1, 0, 1 << 30),
        )
    };
    gives(3 * SECOND).has("deregistration-slow");
    gives(1_000_000).lacks("deregistration-slow");
}

#[test]
fn a_device_nearly_full() {
    let device = |max_qp| {
        let mut device = nic(&[]);
        device.limits.max_qp = Some(max_qp);
        with_nic(device)
    };
    device(1).has("device-limit-near");
    device(100_000).lacks("device-limit-near");
}

#[test]
fn a_peer_that_does_not_resolve_is_told_from_a_refused_attribute() {
    let to_rtr = QpAttributes { qp: 10, qpn: 17, to: Some("RTR".into()), ..QpAttributes::default() };
    let fails = |errno| {
        Case::new().queues().failed(Call::ModifyQp, errno, Detail::ModifyQp(to_rtr.clone())).findings()
    };
    let found = fails(libc::ETIMEDOUT);
    assert_eq!((found[0].id, found.len()), ("peer-unresolved", 1));
    let found = fails(libc::EINVAL);
    assert_eq!((found[0].id, found.len()), ("qp-change-failed", 1));
}

#[test]
fn a_completion_queue_that_ran_over() {
    let told = |kind| Case::new().event(5, 1, Call::GetAsyncEvent, Detail::Wait { object: 1, value: kind });
    told(0).has("cq-overrun");
    told(9).lacks("cq-overrun");
}

#[test]
fn path_mtu_against_the_ports() {
    let mtu = |bytes| {
        with_nic(nic(&[])).rtr(QpAttributes { path_mtu_bytes: Some(bytes), ..QpAttributes::default() })
    };
    mtu(1024).has("path-mtu-small");
    mtu(4096).lacks("path-mtu-small");
    mtu(4096).lacks("path-mtu-large");
    let mut slow = nic(&[]);
    slow.ports[0].active_mtu_bytes = 1024;
    with_nic(slow)
        .rtr(QpAttributes { path_mtu_bytes: Some(4096), ..QpAttributes::default() })
        .has("path-mtu-large");
}

#[test]
fn a_gid_that_is_not_routed() {
    let gid = |index, gid: &str, kind: &str| Gid { index, gid: gid.into(), gid_type: kind.into() };
    let goes_out = |index| {
        let mut device = nic(&[]);
        device.ports[0].gids = vec![
            gid(0, "fe80:0000::1", "IB/RoCE v1"),
            gid(1, "fe80:0000::1", "RoCE v2"),
            gid(3, "0000::ffff:0a00:0001", "RoCE v2"),
        ];
        with_nic(device).rtr(QpAttributes {
            sgid_index: Some(index),
            port: Some(1),
            ..QpAttributes::default()
        })
    };
    assert!(goes_out(0).has("gid-wrong-type").title.contains("RoCE v1"));
    assert!(goes_out(1).has("gid-wrong-type").title.contains("link-local"));
    goes_out(3).lacks("gid-wrong-type");
}

#[test]
fn one_queue_pair_outside_the_traffic_class() {
    let classes = |last: u8| {
        (0..10).fold(Case::new(), |case, i| {
            let attributes = QpAttributes {
                qp: 10 + i,
                qpn: i as u32,
                to: Some("RTR".into()),
                traffic_class: Some(if i == 9 { last } else { 106 }),
                ..QpAttributes::default()
            };
            case.event(3 + i, 1, Call::CreateQp, qp(10 + i, i as u32)).event(
                20 + i,
                1,
                Call::ModifyQp,
                Detail::ModifyQp(attributes),
            )
        })
    };
    let found = classes(0).has("traffic-class-mixed");
    assert_eq!(found.evidence[1].qpns, [9]);
    classes(106).lacks("traffic-class-mixed");
}

#[test]
fn connections_that_take_long_or_are_refused() {
    let connects = |after_ns, kind, status| {
        let cm = |event, status| Detail::Cm { id: 9, event, status };
        Case::new().event(10, 5, Call::CmConnect, cm(0, 0)).event(
            10 + after_ns,
            5,
            Call::CmGetEvent,
            cm(kind, status),
        )
    };
    connects(SECOND, 9, 0).has("connect-slow");
    connects(1_000_000, 9, 0).lacks("connect-slow");
    connects(1_000_000, 8, 28).has("connect-failed");
}

#[test]
fn counters_of_the_ports_that_grow() {
    let grows =
        |name: &'static str, by: u64| with_nic(nic(&[(name, 7)])).devices(vec![nic(&[(name, 7 + by)])]);
    let found = grows("out_of_sequence", 500).has("packets-lost");
    assert!(found.process.is_none() && found.evidence[0].text.contains("+500"), "{found:#?}");
    grows("out_of_sequence", 1).lacks("packets-lost");
    grows("np_cnp_sent", 100_000).has("network-congested");
    grows("np_cnp_sent", 10).lacks("network-congested");
    grows("rnr_nak_retry_err", 5000).has("receiver-not-ready");
    grows("rnr_nak_retry_err", 5).lacks("receiver-not-ready");
}

#[test]
fn placement_of_process_and_device() {
    let on = |cpu_nodes: Vec<u32>| {
        let mut device = nic(&[]);
        device.placement.node = Some(1);
        let machine = Machine { nodes: vec![0, 1], ..Machine::default() };
        Case::with(Header { devices: vec![device], machine, ..header() })
            .queues()
            .facts(Facts { cpu_nodes, ..Facts::default() })
    };
    assert!(on(vec![0]).has("numa-remote").remedy.contains("--cpunodebind=1"));
    on(vec![0, 1]).lacks("numa-remote");
    let slot = |lanes| {
        let placement = Placement {
            pcie_lanes: Some(lanes),
            pcie_max_lanes: Some(16),
            pcie_mtps: Some(8000),
            pcie_max_mtps: Some(8000),
            ..Placement::default()
        };
        with_nic(Device { placement, ..nic(&[]) })
    };
    slot(8).has("pcie-narrow");
    slot(16).lacks("pcie-narrow");
    let through = |iommu: &str| {
        let placement = Placement { iommu: iommu.into(), ..Placement::default() };
        with_nic(Device { placement, ..nic(&[]) })
    };
    through("DMA-FQ").has("iommu-translates");
    through("identity").lacks("iommu-translates");
}

#[test]
fn a_data_path_that_cannot_be_seen_is_said_so() {
    let nothing = Observed { why: "work requests are written without a call".into(), ..Observed::default() };
    let rts = QpAttributes { to: Some("RTS".into()), ..QpAttributes::default() };
    let none = QueueCounts::default();
    let found = Case::new().queues().rtr(rts.clone()).observed(none.clone(), none.clone(), nothing);
    // `rtr` sets its own state; go on to RTS.
    let ready = QpAttributes { qp: 10, qpn: 17, ..rts };
    found.event(6, 1, Call::ModifyQp, Detail::ModifyQp(ready)).has("data-path-unseen");
    Case::new().queues().lacks("data-path-unseen");
}

#[test]
fn what_sources_tell_of_places_and_order() {
    changed(|c, d| d.unaligned_64 = Some(c.wrs)).has("unaligned-payload");
    changed(|c, d| d.mergeable = Some(c.wrs / 16 * 15)).has("adjacent-wrs");
    changed(|c, d| {
        c.opcodes = BTreeMap::from([(Opcode::AtomicCmpAndSwp, c.wrs)]);
        d.remote_strides = Some(Strides { same: c.wrs, ..Strides::default() });
    })
    .has("atomics-hot");
    changed(|c, _| c.opcodes = BTreeMap::from([(Opcode::AtomicCmpAndSwp, c.wrs)])).lacks("atomics-hot");
    changed(|c, _| {
        c.opcodes = BTreeMap::from([(Opcode::RdmaRead, c.wrs / 2), (Opcode::RdmaWrite, c.wrs / 2)]);
    })
    .has("reads-and-writes-mixed");
    changed(|c, _| c.threads = Some(4)).has("threads-share-qp");
    let small = |inline: bool, outstanding: u64| {
        changed(|c, d| {
            (c.bytes, c.inline) = (c.wrs * 32, if inline { c.wrs } else { 0 });
            d.sizes = BTreeMap::from([(5, c.wrs)]);
            d.most_outstanding = Some(outstanding);
        })
    };
    small(false, 1).has("small-not-inlined");
    small(true, 1).lacks("small-not-inlined");
    small(false, 64).lacks("small-not-inlined");
    // 160,000 a second, each 1 ms under way: 160 at a time, on how many queue pairs ever.
    let lasting = |ns: u64| {
        changed(|c, d| {
            (c.bytes, c.inline) = (c.wrs * 32, 0);
            d.sizes = BTreeMap::from([(5, c.wrs)]);
            d.most_outstanding = Some(4);
            let latency_ns = Histogram(BTreeMap::from([(bucket_of(ns), c.wrs)]));
            d.post_to_reap_ns = vec![ReapLatency { opcode: Opcode::RdmaWrite, size_class: 5, latency_ns }];
        })
    };
    lasting(1_000_000).lacks("small-not-inlined");
    lasting(3_000).has("small-not-inlined");
    // Waking up takes longer than the message.
    small(false, 1).event(SECOND, 6 * SECOND, Call::GetCqEvent, Detail::None).lacks("small-not-inlined");
}

#[test]
fn what_a_post_costs_is_said_only_where_the_posting_thread_limits() {
    let posts = |driver: &str, qps: u32, empty_polls: u64| {
        let (qp, mut cq) = busy();
        let qp = QueueCounts { signalled: qp.wrs, post_calls: qp.wrs, ..qp };
        cq.empty_polls = empty_polls;
        cq.polls = empty_polls + cq.cqes;
        let device = Device { driver: driver.into(), ..nic(&[]) };
        with_nic(device).on(qps, qp, cq, Observed { by: ObservedBy::Tap, ..Observed::default() })
    };
    let (busy, waiting) = (0, 20_000_000);
    posts("mlx5_core", 1, busy).has("everything-signalled");
    posts("mlx5_core", 1, busy).lacks("one-wr-per-post");
    posts("mlx5_core", 1, busy).lacks("one-queue-pair");
    posts("mlx5_core", 2, busy).has("one-wr-per-post");
    posts("rdma_rxe", 1, busy).has("one-wr-per-post");
    posts("mlx5_core", 1, waiting).has("one-queue-pair");
    // An empty poll after each post, and one in vain for every other: as busy as can be.
    posts("mlx5_core", 1, 2_400_000).lacks("one-queue-pair");
    for id in ["everything-signalled", "one-wr-per-post"] {
        posts("mlx5_core", 2, waiting).lacks(id);
    }
}

#[test]
fn on_the_emulated_device_without_timing_what_a_nic_would_save_ranks_behind_what_is_wrong() {
    let (qp, cq) = busy();
    let mut qp = QueueCounts { signalled: qp.wrs, post_calls: qp.wrs, ..qp };
    qp.detail.as_mut().unwrap().unaligned_64 = Some(qp.wrs);
    let device = Device { name: "emu0".into(), driver: "rnic-emu".into(), emulated: true, ..nic(&[]) };
    let mut model = with_nic(device).counts(qp, cq).0;
    model.push(&Record::Sample(Sample { t_ns: 10 * SECOND, ..Sample::default() }));
    let diagnosis = examine(&model, &Settings::default());
    let ids: Vec<_> = diagnosis.findings.iter().map(|f| f.id).collect();
    assert_eq!(ids, ["unaligned-payload", "everything-signalled", "one-wr-per-post"]);
    let open: Vec<_> = diagnosis.open.iter().flat_map(|open| open.rules.clone()).collect();
    for id in ["small-not-inlined", "one-queue-pair", "random-beyond-reach"] {
        assert!(open.contains(&id), "{id} says nothing of what it cannot see: {open:?}");
    }
}

#[test]
fn queue_pairs_that_come_and_go_are_told_from_a_program_that_ends() {
    let lives = |n: u64, at_once: u64, takes: u64| {
        (0..n).fold(Case::new(), |case, i| {
            let born = 1000 + i * SECOND / n * 9;
            let dies = born + SECOND / n * 9 * at_once;
            let made = case.event(born, takes, Call::CreateQp, qp(100 + i % at_once, 20 + i as u32));
            made.event(dies, takes, Call::DestroyQp, Detail::Object { object: 100 + i % at_once })
        })
    };
    lives(400, 1, 5_000_000).has("qp-churn");
    lives(400, 1, 50_000).lacks("qp-churn");
    lives(30, 1, 5_000_000).lacks("qp-churn");
    // Made one after the other, and destroyed by a program that ends.
    let together = (0..400).fold(Case::new(), |case, i| {
        case.event(1000 + i, 5_000_000, Call::CreateQp, qp(100 + i, 20 + i as u32))
    });
    (0..400)
        .fold(together, |case, i| {
            case.event(9 * SECOND + i, 5_000_000, Call::DestroyQp, Detail::Object { object: 100 + i })
        })
        .lacks("qp-churn");
}

#[test]
fn a_completion_queue_is_too_small_only_where_it_could_run_over() {
    let of = |cqe: u32, under_way: u64| {
        let (mut qp, cq) = busy();
        qp.detail.as_mut().unwrap().most_outstanding = Some(under_way);
        Case::new()
            .event(2, 10, Call::CreateCq, Detail::Cq { cq: 5, cqe, channel: 0 })
            .event(3, 10, Call::CreateQp, crate::common::qp(10, 17, 128))
            .counts(qp, cq)
    };
    of(64, 64).has("cq-too-small");
    of(128, 64).lacks("cq-too-small");
    of(4096, 128).lacks("cq-too-small");
}

#[test]
fn random_access_counts_only_beyond_what_translations_reach() {
    let jumps = |length: u64, facts: Facts| {
        changed(|c, d| d.remote_strides = Some(Strides { random: c.wrs, ..Strides::default() }))
            .event(20, 10, Call::RegMr, mr(1, 1 << 30, length))
            .facts(facts)
    };
    jumps(1 << 30, Facts::default()).has("random-beyond-reach");
    jumps(1 << 20, Facts::default()).lacks("random-beyond-reach");
    let huge = Facts { hugetlb_bytes: Some(1 << 30), ..Facts::default() };
    jumps(1 << 30, huge).lacks("random-beyond-reach");
}

#[test]
fn the_program_and_not_the_device_is_slow() {
    let gap = |ns: u64, wrs: u64| {
        let hist = |ns: u64| Histogram(BTreeMap::from([(bucket_of(ns), wrs)]));
        changed(|c, d| {
            (c.wrs, c.post_calls, c.signalled) = (wrs, wrs, wrs);
            d.most_outstanding = Some(1);
            d.cqe_to_post_ns = Some(hist(ns));
            d.post_to_reap_ns =
                vec![ReapLatency { opcode: Opcode::RdmaWrite, size_class: 8, latency_ns: hist(3000) }];
        })
    };
    gap(200_000, 40_000).has("host-gap-dominates");
    gap(500, 40_000).lacks("host-gap-dominates");
    // It sleeps between its requests: nothing is wrong with that.
    gap(1_000_000, 10_000).lacks("host-gap-dominates");
}

#[test]
fn an_error_is_traced_to_its_queue_pair_and_peer() {
    let (qp, mut cq) = busy();
    cq.statuses = BTreeMap::from([(0, 10), (12, 1), (5, 30)]);
    cq.detail = Some(Box::new(QueueDetail {
        failed_by_qp: vec![FailedCqes { status: 12, qpn: 17, count: 1 }],
        ..QueueDetail::default()
    }));
    let peer =
        QpAttributes { dest_qpn: Some(99), dgid: Some("::ffff:10.0.0.7".into()), ..QpAttributes::default() };
    let findings = Case::new().queues().rtr(peer).counts(qp, cq).findings();
    assert_eq!((findings[0].id, findings[0].severity), ("retry-exceeded", Severity::Problem));
    assert!(findings[0].evidence[0].text.contains("QPN 17 (to QPN 99 at ::ffff:10.0.0.7)"), "{findings:#?}");
    // What is flushed after the first error is no news.
    assert!(!findings.iter().any(|f| f.id == "requests-flushed"));
}

#[test]
fn what_was_sampled_lowers_the_confidence_and_says_so() {
    let (mut qp, cq) = busy();
    qp.signalled = qp.wrs;
    let sampled =
        Observed { by: ObservedBy::Function, counting: Counting::Ratios, share: 0.1, ..Observed::default() };
    let whole = Case::new().queues().counts(qp.clone(), cq.clone()).has("everything-signalled");
    let part = Case::new().queues().observed(qp, cq, sampled).has("everything-signalled");
    assert!(part.confidence < whole.confidence);
    assert_eq!(part.cost.cpu_share, None, "ratios tell no rate");
}

#[test]
fn rules_on_posts_say_that_posts_were_not_seen() {
    let mut model = Case::new().queues().0;
    model.push(&Record::Sample(Sample { t_ns: 10 * SECOND, ..Sample::default() }));
    let open = examine(&model, &Settings::default()).open;
    let unseen = open.iter().find(|o| o.rules.contains(&"one-wr-per-post")).unwrap();
    assert_eq!(
        (unseen.verdict, unseen.processes.as_slice()),
        (Undecided::NotObservable, [ALICE.pid].as_slice())
    );
}

#[test]
fn several_faults_are_all_named_the_dearest_first() {
    let (mut qp, cq) = busy();
    qp.signalled = qp.wrs;
    qp.post_calls = qp.wrs;
    let mut case = with_nic(Device { driver: "rdma_rxe".into(), ..nic(&[]) }).counts(qp, cq);
    for i in 0..1000 {
        case = case.event(SECOND + i * 1_000_000, 500_000, Call::RegMr, mr(1, 4096, 4096)).event(
            SECOND + i * 1_000_000 + 500_000,
            100_000,
            Call::DeregMr,
            mr(1, 4096, 4096),
        );
    }
    let found: Vec<_> = case.findings().iter().map(|f| f.id).collect();
    assert_eq!(found[..3], ["registration-repeated", "one-wr-per-post", "everything-signalled"], "{found:?}");
}

/// A queue pair goes to RTR, connected with the peer's of that number.
fn to_rtr(qp: u64, qpn: u32, dest_qpn: u32) -> Detail {
    Detail::ModifyQp(QpAttributes {
        qp,
        qpn,
        to: Some("RTR".into()),
        dest_qpn: Some(dest_qpn),
        ..QpAttributes::default()
    })
}

/// A process beside ALICE: the other end of her queue pairs.
const BOB: ProcessId = ProcessId { pid: 200, start_ns: 9 };

/// ALICE's QP 17 and BOB's QP 18 connected with each other, BOB with a region of that access, and ALICE's request for it
/// refused at 5 s.
fn refused(access: u32, more: impl FnOnce(Case) -> Case) -> Finding {
    let of = |id, t_ns, call, detail| Record::Event(event(id, t_ns, 10, call, detail));
    let mut case = Case::new().queues();
    case.0.push(&process(BOB, "server"));
    let Detail::Mr { mr, pd, addr, length_bytes, lkey, rkey, split, .. } = mr(7, 1 << 30, 1 << 21) else {
        unreachable!("a region")
    };
    let region = Detail::Mr { mr, pd, addr, length_bytes, access, lkey, rkey, split };
    for record in [
        of(ALICE, 10, Call::ModifyQp, to_rtr(10, 17, 18)),
        of(BOB, 10, Call::CreateQp, qp(10, 18)),
        of(BOB, 20, Call::RegMr, region),
        of(BOB, 30, Call::ModifyQp, to_rtr(10, 18, 17)),
    ] {
        case.0.push(&record);
    }
    let (sends, mut cq) = busy();
    cq.statuses = BTreeMap::from([(0, 10), (10, 1)]);
    cq.detail = Some(Box::new(QueueDetail {
        failed_by_qp: vec![FailedCqes { status: 10, qpn: 17, count: 1 }],
        ..QueueDetail::default()
    }));
    more(case).counts(sends, cq).has("remote-access-error")
}

#[test]
fn refused_access_is_traced_to_the_regions_of_the_other_end() {
    let text = |finding: &Finding| {
        finding.evidence.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
    };
    let dereg = |t_ns| {
        move |mut case: Case| {
            case.0.push(&Record::Event(event(BOB, t_ns, 10, Call::DeregMr, Detail::Object { object: 7 })));
            case
        }
    };
    let found = refused(7, dereg(3 * SECOND));
    assert!(found.cause.contains("deregistered at the other end"), "{found:#?}");
    assert!(text(&found).contains("3.00 s after RTR: 0x40000000 + 2 MiB (rkey 0x7)"), "{found:#?}");
    let found = refused(1, |case| case);
    assert!(found.cause.contains("registered without IBV_ACCESS_REMOTE_WRITE"), "{found:#?}");
    let found = refused(7, |case| case);
    assert!(found.cause.contains("reaches beyond the region"), "{found:#?}");
    assert!(text(&found).contains("QPN 18 of server, pid 200"), "{found:#?}");
    // Given back long after the failure, at the end of the program.
    let found = refused(7, dereg(20 * SECOND));
    assert!(found.cause.contains("reaches beyond the region"), "{found:#?}");
}

/// Thirteen samples, a second apart: in every fourth one the counter grows, and in the next latencies are `slow_ns`, as of
/// what was lost at its end; else 3 µs.
fn with_loss(counter: &'static str, slow_ns: u64) -> Case {
    let mut case = with_nic(nic(&[(counter, 0)]));
    let (mut latency_ns, mut wrs) = (Histogram::default(), 0);
    for second in 1..=13 {
        let late = second % 4 == 1 && second > 1;
        (0..1000).for_each(|_| latency_ns.record(if late { slow_ns } else { 3000 }));
        wrs += 1000;
        let latency =
            ReapLatency { opcode: Opcode::RdmaWrite, size_class: 8, latency_ns: latency_ns.clone() };
        let detail = QueueDetail { post_to_reap_ns: vec![latency], ..QueueDetail::default() };
        let counts =
            QueueCounts { wrs, post_calls: wrs, detail: Some(Box::new(detail)), ..QueueCounts::default() };
        let queue = QueueSample {
            queue: QueueKind::Qp,
            object: 1,
            pointer: 10,
            number: 17,
            counts: counts.clone(),
            ..QueueSample::default()
        };
        let observed = Observed { by: ObservedBy::Tap, ..Observed::default() };
        let path = DataPath { observed, totals: counts, queues: vec![queue], ..DataPath::default() };
        case.0.push(&Record::Sample(Sample {
            t_ns: second * SECOND,
            processes: vec![ProcessSample { id: ALICE, data_path: Some(path), ..ProcessSample::default() }],
            devices: vec![nic(&[(counter, second / 4 * 500)])],
            ..Sample::default()
        }));
    }
    case
}

#[test]
fn latency_that_rises_with_the_counters_of_loss_and_only_with_those() {
    let found = with_loss("out_of_sequence", 40_000_000).has("latency-with-loss");
    assert_eq!(found.severity, Severity::Problem);
    let text: String = found.evidence.iter().map(|line| line.text.as_str()).collect();
    assert!(text.contains("counters grew in 3 of 13 samples"), "{found:#?}");
    assert!(text.contains("QPN 17") && text.contains("out_of_sequence +1,500"), "{found:#?}");
    assert!(found.cost.us_per_message.is_some_and(|us| us > 15_000.0), "{found:#?}");
    assert_eq!(with_loss("np_cnp_sent", 60_000).has("latency-with-loss").severity, Severity::Warning);
    // Counters that grow and latency that stays, and the other way round.
    with_loss("out_of_sequence", 3100).lacks("latency-with-loss");
    with_loss("rx_write_requests", 40_000_000).lacks("latency-with-loss");
}

#[test]
fn what_a_port_waits_is_told_in_ticks_and_not_in_marked_packets() {
    let waits =
        |ticks: u64| with_nic(nic(&[("port_xmit_wait", 0)])).devices(vec![nic(&[("port_xmit_wait", ticks)])]);
    waits(1_000_000).lacks("network-congested");
    assert!(waits(1_000_000_000).has("network-congested").title.contains("cannot"));
}

#[test]
fn messages_that_lie_in_a_queue_nobody_drains_show_though_the_wait_itself_is_not_seen() {
    let sent = |messages: u64| {
        let sends = QueueCounts {
            wrs: messages,
            post_calls: messages,
            opcodes: BTreeMap::from([(Opcode::Send, messages)]),
            ..QueueCounts::default()
        };
        let cq = QueueCounts { notifies: 100, polls: 100, cqes: 100, ..QueueCounts::default() };
        // Both queue pairs count as senders: half of it each.
        Case::new()
            .queues()
            .event(3, 10, Call::CreateQp, qp(11, 18))
            .event(5, 10, Call::ModifyQp, to_rtr(10, 17, 18))
            .event(6, 10, Call::ModifyQp, to_rtr(11, 18, 17))
            .on(2, sends, cq, Observed { by: ObservedBy::Tap, ..Observed::default() })
    };
    sent(90).has("event-lost-wakeup");
    sent(50).lacks("event-lost-wakeup");
}

#[test]
fn a_process_that_posts_nothing_is_not_said_to_hide_its_posts() {
    let silent = |device: Device| {
        let nothing = Observed { why: probe_user::sample::NO_POST_SEEN.into(), ..Observed::default() };
        let rts = QpAttributes { qp: 10, qpn: 17, to: Some("RTS".into()), ..QpAttributes::default() };
        let none = QueueCounts::default();
        with_nic(device).event(6, 1, Call::ModifyQp, Detail::ModifyQp(rts)).observed(
            none.clone(),
            none,
            nothing,
        )
    };
    let found = silent(nic(&[])).has("data-path-unseen");
    assert!(found.title.contains("was seen"), "{found:#?}");
    // Every post on the emulated device is seen.
    let emulated = Device { name: "emu0".into(), driver: "rnic-emu".into(), emulated: true, ..nic(&[]) };
    silent(emulated).lacks("data-path-unseen");
}

#[test]
fn a_completion_queue_for_both_ends_of_each_connection_is_one_for_each_connection() {
    let connections = |n: u64, connected: bool| {
        (0..n).fold(Case::new(), |case, i| {
            let (cq, a, b) = (1000 + i, 2000 + i, 3000 + i);
            let end = |pointer: u64| {
                let Detail::Qp { pd, qp_type, srq, max_send_wr, max_recv_wr, .. } = qp(pointer, 0) else {
                    unreachable!("a queue pair")
                };
                Detail::Qp {
                    qp: pointer,
                    pd,
                    qpn: pointer as u32,
                    qp_type,
                    send_cq: cq,
                    recv_cq: cq,
                    srq,
                    max_send_wr,
                    max_recv_wr,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_bytes: 0,
                    sq_sig_all: false,
                }
            };
            let to = |qp: u64, peer: u64| {
                let dest_qpn = Some(if connected { peer as u32 } else { 77 });
                Detail::ModifyQp(QpAttributes { qp, qpn: qp as u32, dest_qpn, ..QpAttributes::default() })
            };
            case.event(10, 1, Call::CreateCq, Detail::Cq { cq, cqe: 512, channel: 0 })
                .event(11, 1, Call::CreateQp, end(a))
                .event(12, 1, Call::CreateQp, end(b))
                .event(13, 1, Call::ModifyQp, to(a, b))
                .event(14, 1, Call::ModifyQp, to(b, a))
        })
    };
    connections(20, true).has("cq-per-qp");
    connections(20, false).lacks("cq-per-qp");
    connections(8, true).lacks("cq-per-qp");
}
