//! Records made up for tests, with as few words as a test needs.

use std::collections::BTreeMap;

use probe_user::doctor;
use probe_user::model::{Model, bucket_of};
use probe_user::sample::{
    Call, CallCount, Connection, Counting, Cqe, DataPath, Detail, Device, End, Event, Facts, FailedCqes,
    FailedRequest, Footer, Gap, Gid, Header, Histogram, Instruction, Judgement, Known, Message, MessageEnd,
    NextRequest, Observed, ObservedBy, Opcode, Poll, Port, Post, PostedTo, PostedWr, Probe, Process,
    ProcessId, ProcessSample, QpAttributes, QueueCounts, QueueDetail, QueueKind, QueueSample, ReapLatency,
    Record, RefusedPosts, RegistrationSplit, SCHEMA, Sample, Strides, Symbol, Verdict, WorkRequest,
};

pub const ALICE: ProcessId = ProcessId { pid: 100, start_ns: 5 };

pub fn header() -> Header {
    Header { schema: SCHEMA.into(), writer: "test".into(), host: "host".into(), t_ns: 0, ..Header::default() }
}

pub fn process(id: ProcessId, comm: &str) -> Record {
    Record::Process(Process { id, comm: comm.into(), exe: format!("/usr/bin/{comm}"), ..Process::default() })
}

pub fn event(id: ProcessId, t_ns: u64, duration_ns: u64, call: Call, detail: Detail) -> Event {
    Event { t_ns, duration_ns, id, tid: id.pid, call, errno: 0, detail, stack: Vec::new() }
}

pub fn mr(mr: u64, addr: u64, length_bytes: u64) -> Detail {
    Detail::Mr {
        mr,
        pd: 1,
        addr,
        length_bytes,
        access: 7,
        lkey: mr as u32,
        rkey: mr as u32,
        split: RegistrationSplit::default(),
    }
}

/// An RC queue pair with both queues of `depth`, one CQ and no inline data.
pub fn qp(qp: u64, qpn: u32, depth: u32) -> Detail {
    Detail::Qp {
        qp,
        pd: 1,
        qpn,
        qp_type: "RC".into(),
        send_cq: 5,
        recv_cq: 5,
        srq: 0,
        max_send_wr: depth,
        max_recv_wr: depth,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_bytes: 0,
        sq_sig_all: false,
    }
}

/// A sample of one process and one call.
pub fn sample(id: ProcessId, t_ns: u64, call: Call, count: CallCount, latency: &[(u16, u64)]) -> Record {
    Record::Sample(Sample {
        t_ns,
        processes: vec![ProcessSample {
            id,
            calls: BTreeMap::from([(call, count)]),
            latency_ns: BTreeMap::from([(call, Histogram(latency.iter().copied().collect()))]),
            data_path: None,
        }],
        ..Sample::default()
    })
}

/// A sample of one process's posts and polls.
pub fn queues_sample(id: ProcessId, t_ns: u64, data_path: DataPath) -> Record {
    let process = ProcessSample { id, data_path: Some(data_path), ..ProcessSample::default() };
    Record::Sample(Sample { t_ns, processes: vec![process], ..Sample::default() })
}

/// Counts of a queue pair: `calls` posts of four WRITEs each, one of them signalled.
pub fn posted(calls: u64) -> QueueCounts {
    QueueCounts {
        post_calls: calls,
        wrs: 4 * calls,
        signalled: calls,
        bytes: 256 * calls,
        sges: 4 * calls,
        longest_unsignalled: 3,
        opcodes: BTreeMap::from([(Opcode::RdmaWrite, 4 * calls)]),
        ..QueueCounts::default()
    }
}

/// Counts of a completion queue: one completion, and one empty poll, for each of `cqes`.
pub fn polled(cqes: u64) -> QueueCounts {
    QueueCounts {
        polls: 2 * cqes,
        empty_polls: cqes,
        cqes,
        statuses: BTreeMap::from([(0, cqes)]),
        ..QueueCounts::default()
    }
}

/// The exact counts of queues, and as totals their sum.
pub fn exact(queues: Vec<QueueSample>) -> DataPath {
    let mut totals = QueueCounts::default();
    queues.iter().for_each(|queue| totals.add(&queue.counts));
    let observed = Observed { by: ObservedBy::Tap, ..Observed::default() };
    DataPath { observed, totals, queues, ..DataPath::default() }
}

/// One queue of each kind, with every figure a source may know.
pub fn every_figure_of_the_data_path() -> DataPath {
    let latency = Histogram(BTreeMap::from([(bucket_of(2_000), 10)]));
    let strides = Strides { sequential: 30, same: 2, random: 7 };
    let detail = QueueDetail {
        examined_wrs: Some(40),
        sizes: BTreeMap::from([(6, 40)]),
        unaligned_64: Some(4),
        unaligned_4096: Some(30),
        odd_lengths: Some(1),
        remote_strides: Some(strides),
        local_strides: Some(strides),
        could_inline: Some(12),
        mergeable: Some(5),
        most_outstanding: Some(16),
        post_to_reap_ns: vec![ReapLatency {
            opcode: Opcode::RdmaWrite,
            size_class: 6,
            latency_ns: latency.clone(),
        }],
        ..QueueDetail::default()
    };
    let request = WorkRequest {
        posted_ns: Some(30),
        opcode: Some(Opcode::RdmaWrite),
        bytes: Some(64),
        inline: true,
        more_buffers: true,
        addr: Some(0x1000),
        lkey: Some(0x16),
        remote_addr: Some(0x5000),
        rkey: Some(0x17),
    };
    let first = FailedRequest {
        t_ns: 40,
        wr_id: Some(7),
        known: Known::Exactly,
        before: Some(1),
        outstanding: Some(3),
        ..FailedRequest::default()
    };
    let qp = QueueCounts {
        post_calls: 12,
        post_failed: 2,
        post_errnos: BTreeMap::from([(12, 2)]),
        inline: 8,
        recv_calls: 3,
        recv_failed: 1,
        recv_wrs: 6,
        recv_bytes: 600,
        recv_sges: 6,
        cut: 1,
        aborted: 1,
        threads: Some(2),
        detail: Some(Box::new(detail)),
        ..posted(10)
    };
    let cq = QueueCounts {
        failed_polls: 1,
        cqe_errors: 2,
        statuses: BTreeMap::from([(0, 8), (5, 2)]),
        notifies: 3,
        threads: Some(1),
        detail: Some(Box::new(QueueDetail {
            most_cqes_per_poll: Some(4),
            cqe_to_post_ns: Some(latency),
            failed_by_qp: vec![FailedCqes {
                status: 5,
                qpn: 17,
                count: 2,
                first: Some(Box::new(FailedRequest {
                    known: Known::Before,
                    next: Some(NextRequest { wr_id: 8, request: request.clone() }),
                    vendor_err: Some(0x88),
                    ..first.clone()
                })),
            }],
            refused: vec![RefusedPosts {
                queue: PostedTo::Send,
                number: 17,
                errno: 12,
                count: 2,
                first: Some(Box::new(FailedRequest {
                    request: Some(request),
                    stack: vec![0x401000],
                    ..first
                })),
            }],
            ..QueueDetail::default()
        })),
        ..polled(10)
    };
    let srq = QueueCounts { recv_calls: 1, recv_wrs: 8, recv_bytes: 800, recv_sges: 8, ..Default::default() };
    let sampled = Observed {
        by: ObservedBy::Function,
        why: "time slices, to stay within --overhead 1".into(),
        counting: Counting::Estimated,
        share: 0.25,
        error: Some(0.02),
        instruction: Some(Instruction::Emulated),
        hit_ns: Some(400),
        overhead: Some(0.0094),
        profiler: Some(0.012),
        slice_slowdown: Some(1.8),
    };
    let queue = |queue, object, pointer, number, counts| QueueSample {
        queue,
        object,
        pointer,
        number,
        counts,
        ..QueueSample::default()
    };
    let mut path = exact(vec![
        queue(QueueKind::Qp, 1, 10, 17, qp),
        queue(QueueKind::Cq, 2, 5, 3, cq),
        QueueSample { observed: Some(sampled), gone: true, ..queue(QueueKind::Srq, 3, 6, 1, srq) },
    ]);
    path.uncounted = 1;
    path.unseen = vec!["a second libibverbs in the process".into()];
    path
}

pub fn footer(reason: &str) -> Footer {
    Footer { reason: reason.into(), ..Footer::default() }
}

/// One record of every kind, one event with every kind of detail, one probe with every verdict.
/// Posts and polls of one process: requests done by their own completion, by a later one, with an error, and not at
/// all; and a message to itself.
fn single_requests() -> Vec<Record> {
    let wr =
        |wr_id, signalled| PostedWr { wr_id, opcode: Some(Opcode::Send), bytes: 64, signalled, inline: true };
    let post = |t_ns, queue, number, wrs| {
        let (duration_ns, id, tid, object) = (90, ALICE, 101, 10);
        Record::Post(Post { t_ns, duration_ns, id, tid, queue, object, number, errno: 0, wrs })
    };
    let receive = PostedWr { wr_id: 5, opcode: None, bytes: 4096, ..PostedWr::default() };
    let cqe = |wr_id, status, receive: Option<bool>| Cqe {
        wr_id,
        qpn: Some(17),
        status,
        receive,
        bytes: receive.filter(|is| *is).map(|_| 64),
    };
    let cqes = vec![cqe(2, 0, Some(false)), cqe(3, 12, None), cqe(5, 0, Some(true))];
    let end = |t_ns, wr_id| MessageEnd { t_ns, duration_ns: 90, id: ALICE, tid: 101, qpn: 17, wr_id };
    let refused =
        Post { t_ns: 66_400, id: ALICE, tid: 101, object: 10, number: 17, errno: 12, ..Post::default() };
    vec![
        post(66_000, PostedTo::Receive, 17, vec![receive]),
        post(66_100, PostedTo::SharedReceive, 6, vec![receive]),
        post(66_200, PostedTo::Send, 17, vec![wr(1, false), wr(2, true), wr(3, false), wr(4, true)]),
        Record::Post(refused),
        Record::Poll(Poll { t_ns: 67_000, duration_ns: 90, id: ALICE, tid: 102, cq: 5, cqes }),
        Record::Message(Message {
            number: 0,
            opcode: Some(Opcode::Send),
            bytes: 64,
            from: end(66_200, 1),
            to: MessageEnd { tid: 102, ..end(67_000, 5) },
        }),
        Record::Gap(Gap { t_ns: 68_000, id: ALICE, entries: 7 }),
    ]
}

pub fn every_kind_of_record() -> Vec<Record> {
    let device = Device {
        name: "rxe0".into(),
        driver: "rdma_rxe".into(),
        ports: vec![Port {
            number: 1,
            state: "ACTIVE".into(),
            gids: vec![Gid { index: 1, gid: "::1".into(), gid_type: "RoCE v2".into() }],
            counters: BTreeMap::from([("sent_pkts".into(), 5)]),
            ..Port::default()
        }],
        ..Device::default()
    };
    let verdicts = [
        Verdict::Live,
        Verdict::Sampled { share: 0.5 },
        Verdict::NotHere { why: "no such symbol".into() },
        Verdict::Denied { missing: "CAP_BPF".into() },
        Verdict::Broken { report: "attach: EINVAL".into() },
    ];
    let split = RegistrationSplit {
        kernel_ns: Some(80),
        pin_ns: Some(50),
        dma_map_ns: Some(10),
        driver_ns: Some(5),
        page_faults: Some(2),
    };
    let mut registered = mr(1, 0x1000, 8192);
    if let Detail::Mr { split: inside, .. } = &mut registered {
        *inside = split;
    }
    let attributes = QpAttributes {
        qp: 10,
        qpn: 17,
        attr_mask: 0x1e_0000,
        from: Some("INIT".into()),
        to: Some("RTR".into()),
        qp_access_flags: Some(7),
        path_mtu_bytes: Some(1024),
        dest_qpn: Some(18),
        dgid: Some("::1".into()),
        dlid: Some(0),
        sgid_index: Some(1),
        traffic_class: Some(0),
        port: Some(1),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        min_rnr_timer: Some(12),
        max_rd_atomic: Some(1),
        max_dest_rd_atomic: Some(1),
    };
    let qp = Detail::Qp {
        qp: 10,
        pd: 1,
        qpn: 17,
        qp_type: "RC".into(),
        send_cq: 5,
        recv_cq: 5,
        srq: 6,
        max_send_wr: 128,
        max_recv_wr: 512,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_bytes: 220,
        sq_sig_all: false,
    };
    let pages = Detail::Pages { addr: 0x1000, length_bytes: 8192, page_faults: 2, in_registration: true };
    let details = [
        (Call::OpenDevice, Detail::Object { object: 2 }),
        (Call::AllocPd, Detail::Object { object: 1 }),
        (Call::KernelPin, pages),
        (Call::RegMr, registered),
        (Call::CreateCq, Detail::Cq { cq: 5, cqe: 256, channel: 7 }),
        (Call::CreateSrq, Detail::Srq { srq: 6, max_wr: 512 }),
        (Call::CreateQp, qp),
        (Call::ModifyQp, Detail::ModifyQp(attributes)),
        (Call::AckCqEvents, Detail::Wait { object: 5, value: 1 }),
        (Call::CmConnect, Detail::Cm { id: 9, event: 0, status: 0 }),
        (Call::CmGetEvent, Detail::Cm { id: 9, event: 9, status: 0 }),
        (Call::GetCqEvent, Detail::None),
    ];
    let mut records = vec![
        Record::Header(Header { command: vec!["app".into()], devices: vec![device.clone()], ..header() }),
        process(ALICE, "alice"),
    ];
    records.push(Record::Facts(Facts {
        id: ALICE,
        t_ns: 1,
        memlock_limit_bytes: Some(65_536),
        may_lock_more: Some(false),
        mappings: Some(40),
        environment: BTreeMap::from([("RDMAV_FORK_SAFE".into(), "1".into())]),
        cpu_nodes: vec![0],
        ..Facts::default()
    }));
    records.extend(verdicts.into_iter().enumerate().map(|(i, verdict)| {
        Record::Probe(Probe {
            name: format!("probe{i}"),
            place: "/lib/x.so+0x10".into(),
            call: Some(Call::RegMr),
            t_ns: 1,
            late_ns: Some(2_000_000),
            verdict,
        })
    }));
    records.extend(details.into_iter().enumerate().map(|(i, (call, detail))| {
        let mut event = event(ALICE, 1000 * (i as u64 + 1), 100, call, detail);
        event.stack = vec![0x1234, 0x5678];
        Record::Event(event)
    }));
    records.push(Record::Symbol(Symbol {
        id: ALICE,
        addr: 0x1234,
        module: "/usr/bin/alice".into(),
        module_offset_bytes: 0x234,
        name: "setup".into(),
        offset_bytes: 4,
        source: "alice.c".into(),
        line: 12,
    }));
    let end = |qpn| End { id: ALICE, qp: 10, qpn };
    records.push(Record::Connection(Connection { t_ns: 9000, a: end(17), b: end(18) }));
    let mut failed = event(ALICE, 50_000, 100, Call::RegMr, Detail::None);
    failed.errno = 12;
    records.push(Record::Event(failed));
    let count = CallCount { entered: 2, returned: 2, failed: 1, bytes: 8192, total_ns: 200 };
    records.push(sample(ALICE, 60_000, Call::RegMr, count, &[(bucket_of(100), 2)]));
    records.push(queues_sample(ALICE, 65_000, every_figure_of_the_data_path()));
    records.push(Record::Sample(Sample { t_ns: 70_000, devices: vec![device], ..Sample::default() }));
    records.extend(single_requests());
    let mut judged = Model::new();
    records.iter().for_each(|record| judged.push(record));
    let findings = doctor::find(&judged);
    assert!(!findings.is_empty());
    records.extend(findings.iter().filter_map(Judgement::of).map(Record::Finding));
    records.push(Record::Footer(Footer { exit_status: Some(0), ..footer("target exited") }));
    records
}
