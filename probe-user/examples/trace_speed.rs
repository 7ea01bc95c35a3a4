//! How fast traces are written and read on this machine, how large they are, and how much memory reading takes.
//!
//! `cargo run --release -p probe-user --example trace_speed -- [EVENTS] [FOLDER]`

use std::path::{Path, PathBuf};
use std::time::Instant;

use probe_user::model::Model;
use probe_user::sample::{
    Call, CallCount, Detail, Event, Footer, Header, Histogram, Process, ProcessId, ProcessSample, Record,
    RegistrationSplit, Sample,
};
use probe_user::trace::{Options, Reader, Writer};

const DEFAULT_EVENTS: u64 = 2_000_000;
const LIVE_REGIONS: u64 = 1000;
const EVENTS_PER_SAMPLE: u64 = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let events = arguments.next().map_or(Ok(DEFAULT_EVENTS), |text| text.parse())?;
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    for name in ["trace_speed.jsonl", "trace_speed.jsonl.zst"] {
        let path = folder.join(name);
        let outcome = measure(&path, events);
        std::fs::remove_file(&path)?;
        outcome?;
    }
    Ok(())
}

fn measure(path: &Path, events: u64) -> Result<(), Box<dyn std::error::Error>> {
    let made: Vec<Record> = (0..2 * LIVE_REGIONS).map(event).collect();
    let began = Instant::now();
    let mut writer = Writer::create(path, &Header::default(), Options::default())?;
    writer.push(&Record::Process(Process { id: PROCESS, comm: "speed".into(), ..Process::default() }))?;
    for i in 0..events {
        writer.push(&made[(i % made.len() as u64) as usize])?;
        if (i + 1).is_multiple_of(EVENTS_PER_SAMPLE) {
            writer.push(&sample(i + 1))?;
        }
    }
    let summary = writer.finish(Footer { reason: "done".into(), ..Footer::default() })?;
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{}: {:.2} M events/s written, {:.1} MB, {:.1} bytes an event",
        path.display(),
        events as f64 / seconds / 1e6,
        summary.bytes as f64 / 1e6,
        summary.bytes as f64 / events as f64
    );
    let began = Instant::now();
    let mut model = Model::new();
    for record in Reader::open(path)? {
        model.push(&record?);
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "  read: {:.2} M events/s, {:.0} MB/s of the file; {} objects live, most memory {} kB",
        events as f64 / seconds / 1e6,
        summary.bytes as f64 / seconds / 1e6,
        model.objects(),
        most_memory_kb().unwrap_or_default()
    );
    Ok(())
}

const PROCESS: ProcessId = ProcessId { pid: 4711, start_ns: 88_120_000_000 };

/// Registrations, then deregistrations, of as many regions.
fn event(i: u64) -> Record {
    let (call, k) = if i < LIVE_REGIONS { (Call::RegMr, i) } else { (Call::DeregMr, i - LIVE_REGIONS) };
    Record::Event(Event {
        t_ns: 34_601_729_190 + i * 7919,
        duration_ns: 81_340 + k * 17 % 9999,
        id: PROCESS,
        tid: 4712,
        call,
        errno: 0,
        detail: Detail::Mr {
            mr: 94_554_768_499_136 + k * 64,
            pd: 94_554_768_457_360,
            addr: 0x7f12_3400_0000 + k * 65_536,
            length_bytes: 65_536,
            access: 7,
            lkey: k as u32 * 256 + 7,
            rkey: k as u32 * 256 + 7,
            split: RegistrationSplit {
                kernel_ns: Some(70_000),
                pin_ns: Some(40_000),
                dma_map_ns: Some(1380),
                driver_ns: Some(20_000),
                page_faults: Some(0),
            },
        },
        stack: Vec::new(),
    })
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
            data_path: None,
        }],
        ..Sample::default()
    })
}

fn most_memory_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
