//! `cargo xtask bench doctor`: how long all rules take on a host of 10,000 queue pairs.
//!
//! `--check` fails where it is longer than promised. Time is that of this thread on a processor.

use std::collections::BTreeMap;
use std::time::Duration;

use probe_user::doctor::{RULES, Settings, examine};
use probe_user::model::Model;
use probe_user::sample::{
    Call, DataPath, Detail, Event, Header, Observed, ObservedBy, Opcode, Process, ProcessId, ProcessSample,
    QpAttributes, QueueCounts, QueueDetail, QueueKind, QueueSample, Record, Sample, Strides,
};

/// Longest time all rules may take.
const PROMISED: Duration = Duration::from_millis(5);
/// Queue pairs of the host.
const QPS: u64 = 10_000;
/// Measurements.
const RUNS: usize = 101;

fn main() {
    let check = std::env::args().any(|argument| argument == "--check");
    println!("{} rules on {QPS} queue pairs, CPU time of one examination:", RULES.len());
    println!("{:<34} {:>10} {:>10} {:>9}", "", "median", "p99", "findings");
    let mut exceeded = false;
    for (name, processes, observed) in [
        ("one process, posts not observed", 1, false),
        ("one process, posts observed", 1, true),
        ("100 processes, posts observed", 100, true),
        ("1,000 processes, not observed", 1000, false),
        ("1,000 processes, posts observed", 1000, true),
    ] {
        let model = host(processes, observed);
        let settings = Settings::default();
        let mut times: Vec<Duration> = (0..RUNS)
            .map(|_| {
                let begun = cpu();
                std::hint::black_box(examine(std::hint::black_box(&model), &settings));
                cpu().saturating_sub(begun)
            })
            .collect();
        times.sort_unstable();
        let (median, p99) = (times[RUNS / 2], times[RUNS * 99 / 100]);
        let findings = examine(&model, &settings).findings.len();
        println!("{name:<34} {median:>10.2?} {p99:>10.2?} {findings:>9}");
        exceeded |= median > PROMISED;
    }
    if check && exceeded {
        eprintln!("longer than the {PROMISED:?} that are promised");
        std::process::exit(1);
    }
}

/// CPU time of this thread. Not from /proc: some kernels bring those figures up to date at each tick alone.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A host of [`QPS`] connected queue pairs, over so many processes.
fn host(processes: u32, observed: bool) -> Model {
    let mut model = Model::new();
    model.push(&Record::Header(Header { kernel: "6.12.0".into(), ..Header::default() }));
    for pid in 1..=processes {
        let id = ProcessId { pid, start_ns: 1 };
        model.push(&Record::Process(Process { id, comm: "app".into(), ..Process::default() }));
        let of_process = QPS / u64::from(processes);
        for n in 1..=of_process {
            let event = |call, detail| {
                Record::Event(Event {
                    t_ns: n,
                    duration_ns: 1,
                    id,
                    tid: pid,
                    call,
                    errno: 0,
                    detail,
                    stack: vec![],
                })
            };
            model.push(&event(Call::CreateQp, qp(n)));
            let attributes = QpAttributes {
                qp: n << 8,
                qpn: n as u32,
                to: Some("RTS".into()),
                path_mtu_bytes: Some(4096),
                dest_qpn: Some(n as u32),
                dgid: Some("::ffff:10.0.0.1".into()),
                timeout: Some(14),
                rnr_retry: Some(7),
                min_rnr_timer: Some(12),
                max_rd_atomic: Some(16),
                ..QpAttributes::default()
            };
            model.push(&event(Call::ModifyQp, Detail::ModifyQp(attributes)));
        }
        let queues: Vec<QueueSample> = (1..=of_process).map(queue).collect();
        let mut totals = QueueCounts::default();
        queues.iter().for_each(|queue| totals.add(&queue.counts));
        let path = DataPath {
            observed: Observed { by: ObservedBy::Tap, ..Observed::default() },
            totals,
            queues,
            ..DataPath::default()
        };
        let data_path = observed.then_some(path);
        let process = ProcessSample { id, data_path, ..ProcessSample::default() };
        let t_ns = 10_000_000_000;
        model.push(&Record::Sample(Sample { t_ns, processes: vec![process], ..Sample::default() }));
    }
    model
}

fn qp(n: u64) -> Detail {
    Detail::Qp {
        qp: n << 8,
        pd: 1,
        qpn: n as u32,
        qp_type: "RC".into(),
        send_cq: 5,
        recv_cq: 5,
        srq: 0,
        max_send_wr: 128,
        max_recv_wr: 128,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_bytes: 64,
        sq_sig_all: false,
    }
}

fn queue(n: u64) -> QueueSample {
    let counts = QueueCounts {
        post_calls: 1000,
        wrs: 16_000,
        signalled: 1000,
        bytes: 16_000 * 256,
        opcodes: BTreeMap::from([(Opcode::RdmaWrite, 16_000)]),
        threads: Some(1),
        detail: Some(Box::new(QueueDetail {
            sizes: BTreeMap::from([(8, 16_000)]),
            unaligned_64: Some(0),
            most_outstanding: Some(64),
            remote_strides: Some(Strides { sequential: 16_000, ..Strides::default() }),
            ..QueueDetail::default()
        })),
        ..QueueCounts::default()
    };
    QueueSample {
        queue: QueueKind::Qp,
        object: n,
        pointer: n << 8,
        number: n as u32,
        counts,
        ..QueueSample::default()
    }
}
