//! Made-up observations of one process, a piece at a time, and what is found of them.

use std::collections::BTreeMap;

use probe_user::doctor::{Finding, Settings, examine};
use probe_user::model::Model;
use probe_user::sample::{
    Call, DataPath, Detail, Device, Event, Facts, Header, Observed, ObservedBy, Opcode, Port, ProcessSample,
    QpAttributes, QueueCounts, QueueDetail, QueueKind, QueueSample, Record, RegistrationSplit, Sample,
    Strides,
};

use crate::common::{ALICE, event, header, process};

pub const SECOND: u64 = 1_000_000_000;

/// What was seen of one process, made up a piece at a time; ten seconds long.
pub struct Case(pub Model);

impl Case {
    pub fn with(header: Header) -> Self {
        let mut model = Model::new();
        model.push(&Record::Header(header));
        model.push(&process(ALICE, "app"));
        Self(model)
    }

    pub fn new() -> Self {
        Self::with(Header { kernel: "6.12.0".into(), ..header() })
    }

    pub fn event(mut self, t_ns: u64, duration_ns: u64, call: Call, detail: Detail) -> Self {
        self.0.push(&Record::Event(event(ALICE, t_ns, duration_ns, call, detail)));
        self
    }

    pub fn failed(mut self, call: Call, errno: i32, detail: Detail) -> Self {
        self.0.push(&Record::Event(Event { errno, ..event(ALICE, 5, 10, call, detail) }));
        self
    }

    pub fn facts(mut self, facts: Facts) -> Self {
        self.0.push(&Record::Facts(Facts { id: ALICE, t_ns: 1, ..facts }));
        self
    }

    pub fn queues(self) -> Self {
        self.event(2, 10, Call::CreateCq, Detail::Cq { cq: 5, cqe: 4096, channel: 0 }).event(
            3,
            10,
            Call::CreateQp,
            qp(10, 17),
        )
    }

    pub fn rtr(self, attributes: QpAttributes) -> Self {
        let attributes = QpAttributes { qp: 10, qpn: 17, to: Some("RTR".into()), ..attributes };
        self.event(4, 10, Call::ModifyQp, Detail::ModifyQp(attributes))
    }

    pub fn devices(mut self, devices: Vec<Device>) -> Self {
        self.0.push(&Record::Sample(Sample { t_ns: 9 * SECOND, devices, ..Sample::default() }));
        self
    }

    pub fn counts(self, qp: QueueCounts, cq: QueueCounts) -> Self {
        self.observed(qp, cq, Observed { by: ObservedBy::Tap, ..Observed::default() })
    }

    pub fn observed(self, qp: QueueCounts, cq: QueueCounts, observed: Observed) -> Self {
        self.on(1, qp, cq, observed)
    }

    /// So many queue pairs with the same counts, and their completion queue.
    pub fn on(mut self, qps: u32, qp: QueueCounts, cq: QueueCounts, observed: Observed) -> Self {
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

    /// A sample at that time, of one queue pair with those counts, and of devices.
    pub fn sampled(&mut self, t_ns: u64, counts: QueueCounts, devices: Vec<Device>) {
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
        let process = ProcessSample { id: ALICE, data_path: Some(path), ..ProcessSample::default() };
        self.0.push(&Record::Sample(Sample { t_ns, processes: vec![process], devices, ..Sample::default() }));
    }

    pub fn findings(mut self) -> Vec<Finding> {
        self.0.push(&Record::Sample(Sample { t_ns: 10 * SECOND, ..Sample::default() }));
        examine(&self.0, &Settings::default()).findings
    }

    pub fn has(self, id: &str) -> Finding {
        let findings = self.findings();
        let ids: Vec<_> = findings.iter().map(|f| f.id).collect();
        let found = findings.iter().find(|f| f.id == id).cloned();
        found.unwrap_or_else(|| panic!("{id} is not among {ids:?}"))
    }

    pub fn lacks(self, id: &str) {
        let found = self.findings().into_iter().find(|f| f.id == id);
        assert!(found.is_none(), "{found:#?}");
    }
}

pub fn qp(qp: u64, qpn: u32) -> Detail {
    crate::common::qp(qp, qpn, 128)
}

pub fn port(counters: &[(&str, u64)]) -> Port {
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

pub fn nic(counters: &[(&str, u64)]) -> Device {
    Device {
        name: "mlx5_0".into(),
        driver: "mlx5_core".into(),
        ports: vec![port(counters)],
        ..Device::default()
    }
}

pub fn with_nic(device: Device) -> Case {
    Case::with(Header { devices: vec![device], ..header() }).queues()
}

pub fn region(length_bytes: u64, split: RegistrationSplit) -> Detail {
    Detail::Mr { mr: 1, pd: 1, addr: 1 << 30, length_bytes, access: 1, lkey: 1, rkey: 1, split }
}

/// Counts of a busy, healthy queue pair and its completion queue.
pub fn busy() -> (QueueCounts, QueueCounts) {
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
pub fn changed(change: impl FnOnce(&mut QueueCounts, &mut QueueDetail)) -> Case {
    let (mut qp, cq) = busy();
    let mut detail = *qp.detail.take().unwrap();
    change(&mut qp, &mut detail);
    qp.detail = Some(Box::new(detail));
    with_nic(nic(&[])).counts(qp, cq)
}
