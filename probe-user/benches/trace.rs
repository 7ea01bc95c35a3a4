//! How fast traces are written and read on this machine, how large they are, and how much memory reading takes.
//!
//! `cargo xtask bench trace [EVENTS [FOLDER]]`. Rates are per second of processor time of the one thread that does
//! the work, so that other load on the machine does not count; all in one run, so that they can be compared.

use std::path::{Path, PathBuf};
use std::time::Instant;

use probe_common::wire::{CallMessage, Header as WireHeader, MessageKind, PARTS, PAYLOAD_WORDS};
use probe_common::{CallId, Layout};
use probe_user::collect::{decode, wire};
use probe_user::model::Model;
use probe_user::sample::{
    Call, CallCount, DataPath, Footer, Header, Histogram, Process, ProcessId, ProcessSample, QueueCounts,
    QueueKind, QueueSample, Record, Sample,
};
use probe_user::trace::{Options, Reader, Writer};

const DEFAULT_EVENTS: u64 = 2_000_000;
const LIVE_REGIONS: u64 = 1000;
const EVENTS_PER_SAMPLE: u64 = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // cargo itself adds --bench.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let events = arguments.next().map_or(Ok(DEFAULT_EVENTS), |text| text.parse())?;
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    println!("{events} events, half registrations, a sample every {EVENTS_PER_SAMPLE}");
    for name in ["rdma-probe-bench.jsonl", "rdma-probe-bench.jsonl.zst"] {
        let path = folder.join(name);
        let outcome = measure(&path, events);
        std::fs::remove_file(&path)?;
        outcome?;
        queue_hours(&path)?;
    }
    Ok(())
}

/// What an hour of a busy queue pair takes, with its completion queue and a sample a second.
fn queue_hours(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    const QUEUE_PAIRS: u64 = 64;
    let size = |queue_pairs: u64| -> Result<u64, Box<dyn std::error::Error>> {
        let mut writer = Writer::create(path, &Header::default(), Options::default())?;
        for second in 1..=3600 {
            writer.push(&data_path_sample(second, queue_pairs))?;
        }
        let bytes = writer.finish(Footer::default())?.bytes;
        std::fs::remove_file(path)?;
        Ok(bytes)
    };
    let (one, many) = (size(1)?, size(QUEUE_PAIRS)?);
    println!(
        "  QP-hour  {:8.0} kB on disk ({:.0} bytes a sample of a process with one queue pair, {:.0} more for each further one)",
        (many - one) as f64 / (QUEUE_PAIRS - 1) as f64 / 1e3,
        one as f64 / 3600.0,
        (many - one) as f64 / (QUEUE_PAIRS - 1) as f64 / 3600.0
    );
    Ok(())
}

/// Every queue pair posts 100,000 WRITEs a second, in slightly uneven numbers, as real ones do.
fn data_path_sample(second: u64, queue_pairs: u64) -> Record {
    let mut queues = Vec::new();
    let mut totals = QueueCounts::default();
    for n in 0..queue_pairs {
        let wrs = second * 100_000 + (second * 7919 + n * 104_729) % 1000;
        let posts = QueueCounts {
            post_calls: wrs / 4,
            wrs,
            signalled: wrs / 16,
            bytes: wrs * 4096,
            ..QueueCounts::default()
        };
        let polls =
            QueueCounts { polls: wrs, empty_polls: wrs - wrs / 16, cqes: wrs / 16, ..QueueCounts::default() };
        totals.wrs += wrs;
        for (queue, object, counts) in [(QueueKind::Qp, 2 * n, posts), (QueueKind::Cq, 2 * n + 1, polls)] {
            let number = 0x100 + n as u32;
            let pointer = 94_554_768_499_136 + object * 512;
            queues.push(QueueSample { queue, object, pointer, number, counts, ..QueueSample::default() });
        }
    }
    let data_path = Some(DataPath { totals, queues, ..DataPath::default() });
    let processes = vec![ProcessSample { id: PROCESS, data_path, ..ProcessSample::default() }];
    Record::Sample(Sample { t_ns: second * 1_000_000_000, processes, ..Sample::default() })
}

fn measure(path: &Path, events: u64) -> Result<(), Box<dyn std::error::Error>> {
    // What the BPF programs would have put into the ring.
    let messages: Vec<Vec<u8>> = (0..2 * LIVE_REGIONS).map(|i| bytes_of(&message(i))).collect();
    let clock = Clock::start();
    let mut writer = Writer::create(path, &Header::default(), Options::default())?;
    writer.push(&Record::Process(Process { id: PROCESS, comm: "speed".into(), ..Process::default() }))?;
    for i in 0..events {
        let bytes = &messages[(i % messages.len() as u64) as usize];
        let event = wire::call_message(bytes).as_ref().and_then(decode::event).ok_or("not a message")?;
        writer.push(&Record::Event(event))?;
        if (i + 1).is_multiple_of(EVENTS_PER_SAMPLE) {
            writer.push(&sample(i + 1))?;
        }
    }
    let summary = writer.finish(Footer { reason: "done".into(), ..Footer::default() })?;
    let writing = clock.seconds();

    let clock = Clock::start();
    let mut records = 0_u64;
    let mut bytes_uncompressed = 0_u64;
    for record in Reader::open(path)? {
        records += 1;
        std::hint::black_box(record?);
    }
    let reading = clock.seconds();

    let clock = Clock::start();
    let mut model = Model::new();
    for record in Reader::open(path)? {
        model.push(&record?);
    }
    let modelling = clock.seconds();

    if summary.events != events || records < events {
        return Err(format!("{} of {events} events written, {records} records read", summary.events).into());
    }
    for line in Lines::open(path)? {
        bytes_uncompressed += line?;
    }
    let megabytes = bytes_uncompressed as f64 / 1e6;
    let millions = events as f64 / 1e6;
    println!("{}", path.display());
    println!(
        "  size     {:8.1} MB on disk, {:.1} bytes an event ({:.1} uncompressed)",
        summary.bytes as f64 / 1e6,
        summary.bytes as f64 / events as f64,
        bytes_uncompressed as f64 / events as f64
    );
    println!("  write    {:8.2} M events/s, ring message to file", millions / writing);
    for (name, seconds) in [("read", reading), ("report", modelling)] {
        println!(
            "  {name:8} {:8.0} MB/s of JSON Lines, {:.2} M events/s ({:.2} of the time to write)",
            megabytes / seconds,
            millions / seconds,
            seconds / writing
        );
    }
    println!(
        "  memory   {:8} kB at most, {} objects live",
        most_memory_kb().unwrap_or_default(),
        model.objects()
    );
    Ok(())
}

/// Processor time of this thread; wall time where the kernel does not tell it.
struct Clock(Option<u64>, Instant);

impl Clock {
    fn start() -> Self {
        Self(on_processor_ns(), Instant::now())
    }

    fn seconds(&self) -> f64 {
        match (self.0, on_processor_ns()) {
            (Some(before), Some(now)) if now > before => (now - before) as f64 / 1e9,
            _ => self.1.elapsed().as_secs_f64(),
        }
    }
}

fn on_processor_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

/// Lengths of the uncompressed pieces of a trace.
struct Lines(Box<dyn std::io::Read>);

impl Lines {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::File::open(path)?;
        let zstd = path.extension().is_some_and(|e| e == "zst");
        Ok(Self(if zstd { Box::new(zstd::Decoder::new(file)?) } else { Box::new(file) }))
    }
}

impl Iterator for Lines {
    type Item = std::io::Result<u64>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = [0; 64 << 10];
        match self.0.read(&mut piece) {
            Ok(0) => None,
            Ok(n) => Some(Ok(n as u64)),
            Err(error) => Some(Err(error)),
        }
    }
}

const PROCESS: ProcessId = ProcessId { pid: 4711, start_ns: 88_120_000_000 };

/// Registrations, then deregistrations, of as many regions.
fn message(i: u64) -> CallMessage {
    let (call, layout, k) = if i < LIVE_REGIONS {
        (CallId::RegMr, Layout::RegMr, i)
    } else {
        (CallId::DeregMr, Layout::DeregMr, i - LIVE_REGIONS)
    };
    let mut payload = [0; PAYLOAD_WORDS];
    let key = k * 256 + 7;
    payload[..6].copy_from_slice(&[
        94_554_768_499_136 + k * 64,
        94_554_768_457_360,
        0x7f12_3400_0000 + k * 65_536,
        65_536,
        7,
        key << 32 | key,
    ]);
    let mut part_ns = [0; PARTS];
    part_ns.copy_from_slice(&[0, 70_000, 40_000, 1380, 60_000][..PARTS]);
    CallMessage {
        header: WireHeader {
            kind: MessageKind::Call as u32,
            tgid: PROCESS.pid,
            tid: 4712,
            zero: 0,
            start_ns: PROCESS.start_ns,
            t_ns: 34_601_729_190 + i * 7919,
        },
        duration_ns: 81_340 + k * 17 % 9999,
        errno: 0,
        call: call as u8,
        layout: layout as u8,
        parts_seen: 0b1_1110,
        part_ns,
        page_faults: 16,
        payload,
    }
}

/// The message as it lies in the ring: its fields in order, without padding.
fn bytes_of(m: &CallMessage) -> Vec<u8> {
    let h = &m.header;
    let mut bytes = Vec::new();
    for word in [h.kind, h.tgid, h.tid, h.zero] {
        bytes.extend(word.to_ne_bytes());
    }
    for word in [h.start_ns, h.t_ns, m.duration_ns] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(m.errno.to_ne_bytes());
    bytes.extend([m.call, m.layout]);
    bytes.extend(m.parts_seen.to_ne_bytes());
    for word in m.part_ns.iter().chain([&m.page_faults]).chain(&m.payload) {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

fn sample(events: u64) -> Record {
    let count = CallCount {
        entered: events / 2,
        returned: events / 2,
        failed: 0,
        bytes: events * 32_768,
        total_ns: events * 40_000,
    };
    let histogram = Histogram((200..260).map(|bucket| (bucket, events / 120)).collect());
    Record::Sample(Sample {
        t_ns: events * 7919,
        processes: vec![ProcessSample {
            id: PROCESS,
            calls: [(Call::RegMr, count), (Call::DeregMr, count)].into(),
            latency_ns: [(Call::RegMr, histogram.clone()), (Call::DeregMr, histogram)].into(),
            ..ProcessSample::default()
        }],
        ..Sample::default()
    })
}

fn most_memory_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
