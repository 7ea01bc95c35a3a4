//! Recordings cut into files, and kept in memory: what is left must read as if it had been recorded by itself.

use std::path::{Path, PathBuf};

use probe_user::model::Model;
use probe_user::replay::{Window, replay};
use probe_user::sample::{
    Call, CallCount, Event, Footer, Header, Histogram, ProcessId, ProcessSample, Record, Sample,
};
use probe_user::trace::{Extent, Options, Reader, Ring, Rotating, Rotation, numbered};

use crate::common::{ALICE, event, footer, header, mr, process};

const SECOND: u64 = 1_000_000_000;
const PER_SECOND: u64 = 100;

/// One process that registers a hundred regions a second and deregisters all but one of them.
struct Recording {
    registered: u64,
    deregistered: u64,
    records: Vec<Record>,
}

fn count(calls: u64) -> (CallCount, Histogram) {
    let mut latency = Histogram::default();
    (0..calls).for_each(|_| latency.record(1000));
    let bytes = calls * 4096;
    (CallCount { entered: calls, returned: calls, failed: 0, bytes, total_ns: calls * 1000 }, latency)
}

fn recording(seconds: u64) -> Recording {
    let mut made = Recording { registered: 0, deregistered: 0, records: vec![process(ALICE, "alice")] };
    for second in 0..seconds {
        let at = SECOND * (1 + second);
        for n in 0..PER_SECOND {
            let object = 1 + second * PER_SECOND + n;
            let region = mr(object, object << 12, 4096);
            made.records.push(Record::Event(event(
                ALICE,
                at + n * 1_000_000,
                1000,
                Call::RegMr,
                region.clone(),
            )));
            made.registered += 1;
            if n > 0 {
                made.records.push(Record::Event(event(
                    ALICE,
                    at + n * 1_000_000 + 5000,
                    1000,
                    Call::DeregMr,
                    region,
                )));
                made.deregistered += 1;
            }
        }
        let ((registered, of_reg), (deregistered, of_dereg)) =
            (count(made.registered), count(made.deregistered));
        made.records.push(Record::Sample(Sample {
            t_ns: at + SECOND / 2,
            processes: vec![ProcessSample {
                id: ALICE,
                calls: [(Call::RegMr, registered), (Call::DeregMr, deregistered)].into(),
                latency_ns: [(Call::RegMr, of_reg), (Call::DeregMr, of_dereg)].into(),
                ..ProcessSample::default()
            }],
            ..Sample::default()
        }));
    }
    made
}

fn read(path: &Path) -> Model {
    replay(Reader::open(path).unwrap(), Window::default()).unwrap()
}

fn live(model: &Model, id: ProcessId) -> u64 {
    model.processes[&id].registrations.population.live
}

fn begin() -> Header {
    Header { t_ns: SECOND, wall_ns: 50 * SECOND, ..header() }
}

#[test]
fn the_files_of_a_rotated_recording_add_up_and_each_knows_what_lives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl.zst");
    let rotation = Rotation { ns: Some(3 * SECOND), ..Rotation::default() };
    let mut files = Rotating::create(&path, &begin(), Options::default(), rotation).unwrap();
    let made = recording(10);
    made.records.iter().for_each(|record| files.push(record).unwrap());
    let names: Vec<PathBuf> = files.files().map(Path::to_owned).collect();
    files.finish(Footer { t_ns: 12 * SECOND, ..footer("interrupted") }).unwrap();
    assert_eq!(names.len(), 4);
    let (mut registered, mut events) = (0, 0);
    for (n, name) in names.iter().enumerate() {
        let model = read(name);
        let process = &model.processes[&ALICE];
        registered += process.count(Call::RegMr).entered;
        assert_eq!(process.info.comm, "alice");
        // A part that begins with what is still to come would count it.
        assert!(
            process.count(Call::RegMr).entered <= 4 * PER_SECOND,
            "{n}: {:?}",
            process.count(Call::RegMr)
        );
        let seconds = process.count(Call::RegMr).entered / PER_SECOND;
        events += seconds;
        assert_eq!(live(&model, ALICE), events, "{n}: one region a second is left");
        assert_eq!(process.object_calls_without_event(), 0, "{n}");
    }
    assert_eq!(registered, made.registered);
}

#[test]
fn only_the_latest_files_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let rotation = Rotation { ns: Some(SECOND), keep: Some(2), ..Rotation::default() };
    let mut files = Rotating::create(&path, &begin(), Options::default(), rotation).unwrap();
    recording(6).records.iter().for_each(|record| files.push(record).unwrap());
    files.finish(footer("interrupted")).unwrap();
    let mut left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
    left.sort();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(!numbered(&path, 1).exists());
    assert_eq!(live(&read(&left[1]), ALICE), 6);
}

#[test]
fn what_memory_holds_is_the_last_seconds_with_everything_that_lives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl.zst");
    let mut ring = Ring::new(&begin(), Extent { ns: 3 * SECOND, bytes: 64 << 20 });
    recording(20).records.iter().for_each(|record| ring.push(record).unwrap());
    let held = ring.bytes();
    let summary = ring.snapshot().write(&path, Options::default(), "trigger SIGUSR1").unwrap();
    let model = read(&path);
    let process = &model.processes[&ALICE];
    let registered = process.count(Call::RegMr).entered;
    assert!((3 * PER_SECOND..=4 * PER_SECOND).contains(&registered), "{registered}");
    assert_eq!(live(&model, ALICE), 20);
    assert_eq!(process.object_calls_without_event(), 0);
    assert_eq!(model.footer.as_ref().unwrap().reason, "trigger SIGUSR1");
    assert!(held < 64 << 10, "{held} bytes for {} events", summary.events);
    // Wall time goes on counting from the same anchor.
    assert_eq!(model.wall_ns(model.header.t_ns) - 50 * SECOND, model.header.t_ns - SECOND);
}

#[test]
fn memory_that_is_too_small_keeps_less_time_and_never_more_than_it_has() {
    let mut ring = Ring::new(&begin(), Extent { ns: 3600 * SECOND, bytes: 16 << 10 });
    let made = recording(60);
    for record in &made.records {
        ring.push(record).unwrap();
        if matches!(record, Record::Sample(_)) {
            assert!(ring.bytes() <= 16 << 10);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    ring.snapshot().write(&path, Options::default(), "trigger x").unwrap();
    let model = read(&path);
    let registered = model.processes[&ALICE].count(Call::RegMr).entered;
    assert!(registered >= PER_SECOND && registered < made.registered, "{registered}");
    assert_eq!(live(&model, ALICE), 60);
}

#[test]
fn a_process_that_ended_long_ago_is_not_carried_on() {
    let mut ring = Ring::new(&begin(), Extent { ns: SECOND, bytes: 64 << 20 });
    let short = ProcessId { pid: 5, start_ns: 5 };
    ring.push(&process(short, "short")).unwrap();
    ring.push(&Record::Event(event(short, SECOND, 10, Call::RegMr, mr(1, 1, 4096)))).unwrap();
    let Record::Process(ended) = process(short, "short") else { unreachable!("made as such") };
    ring.push(&Record::Process(probe_user::sample::Process { exited: true, ..ended })).unwrap();
    recording(20).records.iter().for_each(|record| ring.push(record).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    ring.snapshot().write(&path, Options::default(), "trigger x").unwrap();
    let model = read(&path);
    assert!(!model.processes.contains_key(&short));
    assert!(model.processes.contains_key(&ALICE));
}

#[test]
fn every_line_of_a_kept_recording_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    let mut ring = Ring::new(&begin(), Extent { ns: 3600 * SECOND, bytes: 64 << 20 });
    let records = crate::common::every_kind_of_record();
    let plain: Vec<&Record> =
        records.iter().filter(|r| !matches!(r, Record::Header(_) | Record::Footer(_))).collect();
    plain.iter().for_each(|record| ring.push(record).unwrap());
    ring.snapshot().write(&path, Options::default(), "x").unwrap();
    let events = |records: &mut dyn Iterator<Item = Record>| -> Vec<Event> {
        records.filter_map(|r| if let Record::Event(e) = r { Some(e) } else { None }).collect()
    };
    let back = events(&mut Reader::open(&path).unwrap().map(Result::unwrap));
    assert_eq!(back, events(&mut records.into_iter()));
}
