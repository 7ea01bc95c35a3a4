//! Traces made up for tests and benchmarks: deterministic, and consistent as a real recording is, so that the counts
//! of the samples are those of the events.

use std::collections::BTreeMap;

use probe_user::model::bucket_of;
use probe_user::sample::{
    Call, CallCount, Detail, Device, Event, Footer, Header, Histogram, Lost, Observed, ObservedBy, Opcode,
    Port, Probe, Process, ProcessId, ProcessSample, QpAttributes, QueueCounts, QueueDetail, QueueKind,
    QueueSample, ReapLatency, Record, RegistrationSplit, SCHEMA, Sample, Strides, Symbol, Verdict,
};

use rdma_tui::app::history::registers;

const SECOND: u64 = 1_000_000_000;
/// 2026-03-01 12:00:00 UTC.
const WALL_NS: u64 = 1_772_366_400 * SECOND;

/// Numbers that look random and are the same every time (the constants of Knuth's MMIX).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2_654_435_761).wrapping_add(1))
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// Builds a trace.
pub struct Made {
    pub records: Vec<Record>,
    now_ns: u64,
    counters: BTreeMap<ProcessId, ProcessSample>,
    devices: Vec<Device>,
    next_object: u64,
    pub dice: Dice,
    changed: std::collections::BTreeSet<ProcessId>,
    lost: Lost,
    /// Where registrations are made from, from now on.
    stack: Vec<u64>,
}

impl Made {
    pub fn new(host: &str, devices: Vec<Device>) -> Self {
        let header = Header {
            schema: SCHEMA.into(),
            writer: "rdma-probe 0.1.0".into(),
            host: host.into(),
            kernel: "6.12.0".into(),
            arch: "x86_64".into(),
            t_ns: 1000 * SECOND,
            wall_ns: WALL_NS,
            devices: devices.clone(),
            ..Header::default()
        };
        Self {
            records: vec![Record::Header(header)],
            now_ns: 1000 * SECOND,
            counters: BTreeMap::new(),
            devices,
            next_object: 0x5581_0000_1000,
            dice: Dice::new(7),
            changed: std::collections::BTreeSet::new(),
            lost: Lost::default(),
            stack: Vec::new(),
        }
    }

    pub fn process(&mut self, pid: u32, comm: &str, cgroup: &str) -> ProcessId {
        let id = ProcessId { pid, start_ns: u64::from(pid) * 1000 };
        self.records.push(Record::Process(Process {
            id,
            t_ns: self.now_ns,
            comm: comm.into(),
            exe: format!("/usr/bin/{comm}"),
            uid: 1000,
            parent_pid: 1,
            cgroup: cgroup.into(),
            exited: false,
            host: String::new(),
        }));
        id
    }

    /// Names an address of a process.
    pub fn symbol(&mut self, id: ProcessId, addr: u64, name: &str, source: &str, line: u32) {
        self.records.push(Record::Symbol(Symbol {
            id,
            addr,
            name: name.into(),
            source: source.into(),
            line,
            ..Symbol::default()
        }));
    }

    pub fn exit(&mut self, id: ProcessId, comm: &str) {
        let exited = Process { id, t_ns: self.now_ns, comm: comm.into(), exited: true, ..Process::default() };
        self.records.push(Record::Process(exited));
    }

    pub fn probe(&mut self, name: &str, place: &str, call: Option<Call>, verdict: Verdict) {
        let t_ns = self.now_ns;
        self.records.push(Record::Probe(Probe {
            name: name.into(),
            place: place.into(),
            call,
            t_ns,
            late_ns: None,
            verdict,
        }));
    }

    fn object(&mut self) -> u64 {
        self.next_object += 0x140;
        self.next_object
    }

    pub fn call(&mut self, id: ProcessId, call: Call, duration_ns: u64, errno: i32, detail: Detail) {
        let bytes = match &detail {
            Detail::Mr { length_bytes, .. } if call != Call::DeregMr && errno == 0 => *length_bytes,
            _ => 0,
        };
        let counters =
            self.counters.entry(id).or_insert_with(|| ProcessSample { id, ..ProcessSample::default() });
        let count: &mut CallCount = counters.calls.entry(call).or_default();
        count.entered += 1;
        count.returned += 1;
        count.failed += u64::from(errno != 0);
        count.bytes += bytes;
        count.total_ns += duration_ns;
        *counters.latency_ns.entry(call).or_default().0.entry(bucket_of(duration_ns)).or_default() += 1;
        self.changed.insert(id);
        self.now_ns += 1_000 + duration_ns / 64;
        self.records.push(Record::Event(Event {
            t_ns: self.now_ns,
            duration_ns,
            id,
            tid: id.pid + 1,
            call,
            errno,
            detail,
            stack: if registers(call) { self.stack.clone() } else { Vec::new() },
        }));
    }

    pub fn register(&mut self, id: ProcessId, addr: u64, length_bytes: u64) -> Detail {
        let pages = length_bytes.div_ceil(4096);
        let duration = 18_000 + pages * (110 + self.dice.below(40)) + self.dice.below(9_000);
        let duration = if self.dice.below(200) == 0 { duration * 12 } else { duration };
        let split = RegistrationSplit {
            kernel_ns: Some(duration * 88 / 100),
            pin_ns: Some(duration * 55 / 100),
            dma_map_ns: None,
            driver_ns: Some(duration * 25 / 100),
            page_faults: Some(0),
        };
        let mr = self.object();
        let detail = Detail::Mr {
            mr,
            pd: 0x77,
            addr,
            length_bytes,
            access: 7,
            lkey: mr as u32,
            rkey: mr as u32,
            split,
        };
        self.call(id, Call::RegMr, duration, 0, detail.clone());
        detail
    }

    pub fn deregister(&mut self, id: ProcessId, mr: Detail) {
        let duration = 9_000 + self.dice.below(4_000);
        self.call(id, Call::DeregMr, duration, 0, mr);
    }

    pub fn cq(&mut self, id: ProcessId, cqe: u32, channel: u64) -> u64 {
        let cq = self.object();
        let duration = 60_000 + self.dice.below(20_000);
        self.call(id, Call::CreateCq, duration, 0, Detail::Cq { cq, cqe, channel });
        cq
    }

    #[expect(clippy::too_many_arguments, reason = "a QP has as many properties")]
    pub fn qp(
        &mut self,
        id: ProcessId,
        qpn: u32,
        qp_type: &str,
        cq: u64,
        depth: u32,
        sq_sig_all: bool,
        peer: &str,
        to: &[&str],
    ) -> u64 {
        let qp = self.object();
        let duration = 110_000 + self.dice.below(50_000);
        self.call(
            id,
            Call::CreateQp,
            duration,
            0,
            Detail::Qp {
                qp,
                pd: 0x77,
                qpn,
                qp_type: qp_type.into(),
                send_cq: cq,
                recv_cq: cq,
                srq: 0,
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 4,
                max_recv_sge: 1,
                max_inline_bytes: 220,
                sq_sig_all,
            },
        );
        let mut from = "RESET";
        for state in to {
            let mut a = QpAttributes {
                qp,
                qpn,
                attr_mask: 1,
                from: Some(from.into()),
                to: Some((*state).into()),
                ..Default::default()
            };
            if *state == "RTR" {
                a.path_mtu_bytes = Some(4096);
                a.dest_qpn = Some(qpn + 10_000);
                a.dgid = Some(format!("::ffff:{peer}"));
                a.min_rnr_timer = Some(12);
                a.sgid_index = Some(3);
            }
            if *state == "RTS" {
                a.timeout = Some(14);
                a.retry_cnt = Some(7);
                a.rnr_retry = Some(7);
                a.max_rd_atomic = Some(16);
            }
            let duration = 30_000 + self.dice.below(30_000);
            self.call(id, Call::ModifyQp, duration, 0, Detail::ModifyQp(a));
            from = state;
        }
        qp
    }

    /// Adds to what a queue has counted; the sample tells it.
    pub fn counted(
        &mut self,
        id: ProcessId,
        queue: QueueKind,
        pointer: u64,
        number: u32,
        more: &QueueCounts,
    ) {
        let counters =
            self.counters.entry(id).or_insert_with(|| ProcessSample { id, ..ProcessSample::default() });
        let path = counters.data_path.get_or_insert_default();
        path.observed = Observed { by: ObservedBy::Site, ..Observed::default() };
        path.totals.add(more);
        let object = pointer;
        match path.queues.iter_mut().find(|q| q.object == object) {
            Some(queue) => queue.counts.add(more),
            None => path.queues.push(QueueSample {
                queue,
                object,
                pointer,
                number,
                counts: more.clone(),
                ..QueueSample::default()
            }),
        }
        self.changed.insert(id);
    }

    /// `calls` posts of `batch` WRs of `bytes` each, of which every `signal`-th asks for a completion.
    pub fn posts(&mut self, id: ProcessId, qp: (u64, u32), calls: u64, batch: u64, bytes: u64, signal: u64) {
        let wrs = calls * batch;
        let class = probe_user::model::size_class(bytes);
        let latency_ns = Histogram(
            (0..6).map(|i| (bucket_of((2_000 + bytes / 12) << i), (wrs / signal) >> (2 * i))).collect(),
        );
        let detail = QueueDetail {
            sizes: BTreeMap::from([(class, wrs)]),
            unaligned_64: Some(wrs / 5),
            could_inline: Some(if bytes <= 220 { wrs } else { 0 }),
            remote_strides: Some(Strides { sequential: wrs / 8, same: 0, random: wrs - wrs / 8 }),
            most_outstanding: Some(batch * 4),
            post_to_reap_ns: vec![ReapLatency { opcode: Opcode::RdmaWrite, size_class: class, latency_ns }],
            ..QueueDetail::default()
        };
        let counts = QueueCounts {
            post_calls: calls,
            wrs,
            signalled: wrs / signal,
            bytes: wrs * bytes,
            sges: wrs,
            longest_unsignalled: signal - 1,
            opcodes: BTreeMap::from([(Opcode::RdmaWrite, wrs - wrs / 9), (Opcode::Send, wrs / 9)]),
            detail: Some(Box::new(detail)),
            ..QueueCounts::default()
        };
        self.counted(id, QueueKind::Qp, qp.0, qp.1, &counts);
    }

    /// `cqes` completions, `errors` of them with an error, and `empty` polls that found none.
    pub fn polls(&mut self, id: ProcessId, cq: u64, cqes: u64, errors: u64, empty: u64) {
        let counts = QueueCounts {
            polls: cqes + empty,
            empty_polls: empty,
            cqes,
            cqe_errors: errors,
            statuses: BTreeMap::from([(0, cqes - errors), (12, errors)]),
            ..QueueCounts::default()
        };
        self.counted(id, QueueKind::Cq, cq, 0, &counts);
    }

    /// Ends a second: a sample of what changed, device counters moved on by `bytes` sent.
    pub fn sample(&mut self, at_second: u64, sent: u64) {
        self.now_ns = self.now_ns.max((1000 + at_second) * SECOND);
        for device in &mut self.devices {
            for port in &mut device.ports {
                let add = [
                    ("port_xmit_data", sent / 4),
                    ("port_rcv_data", sent / 9),
                    ("port_xmit_packets", sent / 4096),
                    ("port_rcv_packets", sent / 8192),
                    ("out_of_sequence", u64::from(at_second.is_multiple_of(17)) * 3),
                ];
                for (name, more) in add {
                    if let Some(value) = port.counters.get_mut(name) {
                        *value += more;
                    }
                }
            }
        }
        let processes =
            std::mem::take(&mut self.changed).iter().map(|id| self.counters[id].clone()).collect();
        self.records.push(Record::Sample(Sample {
            t_ns: self.now_ns,
            processes,
            lost: self.lost.clone(),
            devices: self.devices.clone(),
        }));
    }

    pub fn lose(&mut self, events: u64) {
        self.lost.ring_events += events;
    }

    pub fn end(mut self, reason: &str) -> Vec<Record> {
        let footer =
            Footer { t_ns: self.now_ns, reason: reason.into(), lost: self.lost.clone(), ..Footer::default() };
        self.records.push(Record::Footer(footer));
        self.records
    }
}

pub fn device(name: &str, driver: &str, emulated: bool) -> Device {
    let names = [
        "excessive_buffer_overrun_errors",
        "local_ack_timeout_err",
        "out_of_sequence",
        "packet_seq_err",
        "port_rcv_data",
        "port_rcv_errors",
        "port_rcv_packets",
        "port_xmit_data",
        "port_xmit_discards",
        "port_xmit_packets",
        "port_xmit_wait",
        "rnr_nak_retry_err",
        "symbol_error",
    ];
    Device {
        name: name.into(),
        driver: driver.into(),
        node_guid: "b83f:d203:00a4:1c20".into(),
        firmware: if emulated { String::new() } else { "20.39.3004".into() },
        emulated,
        placement: Default::default(),
        limits: Default::default(),
        ports: vec![Port {
            number: 1,
            state: "ACTIVE".into(),
            link_layer: "Ethernet".into(),
            rate_100mbps: 1000,
            active_mtu_bytes: 4096,
            netdev: "ens1f0np0".into(),
            gids: Vec::new(),
            counters: names
                .iter()
                .enumerate()
                .map(|(i, n)| ((*n).to_owned(), if i % 3 == 2 { 81_000 } else { 0 }))
                .collect(),
        }],
    }
}

fn probes(made: &mut Made) {
    let library = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0";
    for (i, (name, call)) in [
        ("ibv_reg_mr_iova2", Call::RegMr),
        ("ibv_dereg_mr", Call::DeregMr),
        ("ibv_create_qp", Call::CreateQp),
        ("ibv_modify_qp", Call::ModifyQp),
        ("ibv_destroy_qp", Call::DestroyQp),
        ("ibv_create_cq", Call::CreateCq),
        ("ibv_destroy_cq", Call::DestroyCq),
        ("ibv_alloc_pd", Call::AllocPd),
        ("ibv_get_cq_event", Call::GetCqEvent),
    ]
    .into_iter()
    .enumerate()
    {
        made.probe(name, &format!("{library}+0x{:x}", 0x9a30 + i * 0x1d0), Some(call), Verdict::Live);
    }
    made.probe(
        "ibv_reg_dmabuf_mr",
        "",
        Some(Call::RegDmabufMr),
        Verdict::NotHere { why: "libibverbs 44 has no such function".into() },
    );
    made.probe("kernel:ib_umem_get", "ib_umem_get", Some(Call::KernelPin), Verdict::Live);
    made.probe("kernel:ib_umem_release", "ib_umem_release", Some(Call::KernelUnpin), Verdict::Live);
    made.probe(
        "kernel:ib_uverbs_reg_mr",
        "",
        Some(Call::KernelRegMr),
        Verdict::Denied {
            missing: "CAP_PERFMON: run as root, or `setcap cap_bpf,cap_perfmon+ep rdma-probe`".into(),
        },
    );
}

/// Two minutes of a host where three things are wrong: memory registered per message, every send signalled, and a
/// completion queue for each of 256 queue pairs.
pub fn troubled_host() -> Vec<Record> {
    let mut made =
        Made::new("db7", vec![device("mlx5_0", "mlx5_core", false), device("mlx5_1", "mlx5_core", false)]);
    made.devices[1].ports[0].state = "DOWN".into();
    made.devices[1].ports[0].netdev = "ens1f1np1".into();
    probes(&mut made);
    let store = made.process(4711, "kv-store", "/system.slice/kv-store.service");
    let trainer = made.process(5120, "trainer", "/kubepods/pod3f/ctr9");
    let perf = made.process(6001, "ib_write_bw", "/user.slice/user-1000.slice");
    let short = made.process(6100, "ibv_devinfo", "/user.slice/user-1000.slice");

    let mut pool = Vec::new();
    let (mut stores, mut trainers) = (Vec::new(), Vec::new());
    for second in 1..=120_u64 {
        if second == 2 {
            let cq = made.cq(store, 4096, 0x9000);
            for i in 0..8 {
                let qp = made.qp(store, 200 + i, "RC", cq, 512, false, "10.0.0.21", &["INIT", "RTR", "RTS"]);
                stores.push((qp, 200 + i, cq));
            }
            made.symbol(store, 0x40_1a24, "fill_pool", "pool.c", 88);
            made.symbol(store, 0x40_2b68, "handle_put", "put.c", 214);
            made.stack = vec![0x40_1a24];
            for i in 0..6_u64 {
                let mr = made.register(store, 0x7f10_0000_0000 + (i << 30), 256 << 20);
                pool.push(mr);
            }
            made.stack.clear();
            made.exit(short, "ibv_devinfo");
        }
        if (5..37).contains(&second) {
            for i in 0..8 {
                let cq = made.cq(trainer, 128, 0);
                let qpn = 1000 + (second as u32 - 5) * 8 + i;
                let peer = format!("10.0.1.{}", 1 + i);
                let qp = made.qp(trainer, qpn, "RC", cq, 128, true, &peer, &["INIT", "RTR", "RTS"]);
                trainers.push((qp, qpn, cq));
            }
        }
        if second == 40 {
            let cq = made.cq(perf, 128, 0);
            for i in 0..4 {
                made.qp(perf, 60 + i, "RC", cq, 128, false, "10.0.0.9", &["INIT", "RTR", "RTS"]);
            }
            made.register(perf, 0x7f55_0000_0000, 131_072);
        }
        if second == 90 {
            let qp = Detail::ModifyQp(QpAttributes {
                qp: 1,
                qpn: 9999,
                to: Some("RTR".into()),
                from: Some("INIT".into()),
                ..Default::default()
            });
            made.call(store, Call::ModifyQp, 41_000, 110, qp);
        }
        for (i, (qp, qpn, cq)) in stores.clone().into_iter().enumerate() {
            let calls = 4_000 + (second * 377) % 1_900 * (i as u64 + 1);
            made.posts(store, (qp, qpn), calls, 4, 4096, 4);
            made.polls(store, cq, calls, 0, calls * 3);
        }
        // Every send signalled, one a call.
        for (qp, qpn, cq) in trainers.iter().copied().filter(|(_, qpn, _)| qpn % 16 == 0) {
            let calls = 700 + (second * 91 + u64::from(qpn)) % 500;
            made.posts(trainer, (qp, qpn), calls, 1, 64, 1);
            made.polls(trainer, cq, calls, u64::from(second == 80 && qpn == 1008) * 5, calls * 12);
        }
        let busy = 20 + made.dice.below(25) + if (50..70).contains(&second) { 60 } else { 0 };
        made.stack = vec![0x40_2b68];
        for i in 0..busy {
            let size = [4096, 4096, 16_384, 65_536, 1 << 20][made.dice.below(5) as usize];
            let mr = made.register(store, 0x7f30_0000_0000 + (i % 24) * (2 << 20), size);
            made.deregister(store, mr);
        }
        made.stack.clear();
        if second.is_multiple_of(40) {
            let failed = Detail::Mr {
                mr: 0,
                pd: 0x77,
                addr: 0x1000,
                length_bytes: 1 << 34,
                access: 7,
                lkey: 0,
                rkey: 0,
                split: RegistrationSplit::default(),
            };
            made.call(store, Call::RegMr, 31_000, libc::ENOMEM, failed);
        }
        let sent = 1_000_000_000
            + made.dice.below(600_000_000)
            + if (50..70).contains(&second) { 2_500_000_000 } else { 0 };
        made.sample(second, sent);
    }
    made.end("interrupted")
}

/// A host of the size that the dashboard must still be quick on: `processes` with `qps` in all, `seconds` long.
pub fn large_host(processes: u32, qps: u32, seconds: u64) -> Vec<Record> {
    let mut made = Made::new("big1", vec![device("mlx5_0", "mlx5_core", false)]);
    probes(&mut made);
    let ids: Vec<ProcessId> = (0..processes)
        .map(|i| made.process(10_000 + i, &format!("rank-{i}"), &format!("/kubepods/pod{i}")))
        .collect();
    let each = qps / processes.max(1);
    let mut qpn = 1;
    for id in &ids {
        let cq = made.cq(*id, 1024, 0);
        for i in 0..each {
            made.qp(
                *id,
                qpn,
                "RC",
                cq,
                256,
                i % 2 == 0,
                &format!("10.1.{}.{}", i % 200, qpn % 250),
                &["INIT", "RTR", "RTS"],
            );
            qpn += 1;
        }
    }
    for second in 1..=seconds {
        for id in &ids {
            if made.dice.below(8) == 0 {
                let addr = 0x7f00_0000_0000 + (made.dice.below(64) << 21);
                let mr = made.register(*id, addr, 1 << 16);
                made.deregister(*id, mr);
            }
        }
        made.sample(second, 5_000_000_000);
    }
    made.end("interrupted")
}

/// A histogram with one value, for tests that need no more.
pub fn one(ns: u64) -> Histogram {
    Histogram([(bucket_of(ns), 1)].into())
}
