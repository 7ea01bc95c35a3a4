//! Writing and reading trace files: what comes back, and what happens to those that are cut off, foreign or hostile.

use std::io::{Cursor, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use probe_user::sample::{Call, CallCount, Detail, ProcessSample, QueueKind, QueueSample, Record, Sample};
use probe_user::trace::{MAX_LINE_BYTES, Options, ReadError, Reader, WriteError, Writer};
use proptest::prelude::*;

fn read(bytes: impl Into<Vec<u8>>) -> Result<(Vec<Record>, Reader), ReadError> {
    let mut reader = Reader::new("t", Cursor::new(bytes.into()))?;
    let records = reader.by_ref().collect::<Result<_, _>>()?;
    Ok((records, reader))
}

fn line(record: &Record) -> String {
    serde_json::to_string(record).unwrap() + "\n"
}

fn some_records() -> Vec<Record> {
    vec![
        process(ALICE, "alice"),
        Record::Event(event(ALICE, 10, 5, Call::RegMr, mr(0x1000, 0x2000, 4096))),
        Record::Event(event(ALICE, 20, 5, Call::DeregMr, mr(0x1000, 0, 0))),
        sample(ALICE, 30, Call::RegMr, CallCount { entered: 1, ..CallCount::default() }, &[(5, 1)]),
    ]
}

fn write(path: &Path) -> Vec<Record> {
    let mut writer = Writer::create(path, &header(), Options::default()).unwrap();
    let records = some_records();
    for record in &records {
        writer.push(record).unwrap();
    }
    let summary = writer.finish(footer("interrupted")).unwrap();
    assert_eq!((summary.events, summary.samples), (2, 1));
    assert_eq!(summary.bytes, path.metadata().unwrap().len());
    records
}

#[test]
fn what_was_written_is_what_is_read_plain_and_compressed() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["t.jsonl", "t.jsonl.zst"] {
        let path = folder.path().join(name);
        let written = write(&path);
        let mut reader = Reader::open(&path).unwrap();
        let read: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!(read[1..read.len() - 1], written);
        let Record::Footer(end) = read.last().unwrap() else { panic!("no footer") };
        assert_eq!((end.reason.as_str(), end.events, end.samples), ("interrupted", 2, 1));
        assert!(!reader.notes().no_footer);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn only_a_trace_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "my thesis").unwrap();
    let error = Writer::create(&path, &header(), Options::default()).unwrap_err();
    assert!(matches!(error, WriteError::Refused { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"my thesis");

    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Writer::create(&link, &header(), Options::default()).is_err());

    for name in ["t.jsonl", "t.zst"] {
        let path = folder.path().join(name);
        write(&path);
        write(&path);
    }
}

#[test]
fn a_killed_recording_reads_back_to_its_last_sample() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["t.jsonl", "t.jsonl.zst"] {
        let path = folder.path().join(name);
        let mut writer = Writer::create(&path, &header(), Options::default()).unwrap();
        for record in some_records() {
            writer.push(&record).unwrap();
        }
        std::mem::forget(writer);
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.by_ref().skip(1).map(Result::unwrap).collect::<Vec<_>>(), some_records());
        assert!(reader.notes().no_footer, "{name}");
        assert_eq!(reader.notes().cut_off_line, None);
    }
}

#[test]
fn a_file_cut_anywhere_is_read_up_to_the_last_whole_line() {
    let whole: String =
        std::iter::once(Record::Header(header())).chain(some_records()).map(|r| line(&r)).collect();
    let first = whole.find('\n').unwrap() + 1;
    for cut in first..whole.len() {
        let (records, reader) =
            read(&whole.as_bytes()[..cut]).unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
        let ended_in_a_line = !whole[..cut].ends_with('\n');
        // Cut just before a newline, the line is still whole.
        let whole_without_newline = ended_in_a_line && whole[cut..].starts_with('\n');
        let expected = whole[..cut].matches('\n').count() + usize::from(whole_without_newline);
        assert_eq!(records.len(), expected, "cut at {cut}");
        assert_eq!(reader.notes().cut_off_line.is_some(), ended_in_a_line && !whole_without_newline);
        assert!(reader.notes().no_footer);
    }
}

#[test]
fn kinds_calls_and_keys_of_a_newer_version_are_skipped() {
    let text = line(&Record::Header(header()))
        + "{\"t_ns\":3,\"kind\":\"hologram\",\"x\":[1,{\"kind\":\"event\"}]}\n"
        + "{\"kind\":\"event\",\"t_ns\":1,\"duration_ns\":2,\"pid\":3,\"start_ns\":4,\"tid\":5,\"call\":\"teleport\",\
           \"detail\":{\"of\":\"beam\",\"n\":1},\"new_key\":7}\n"
        + "{\"kind\":\"probe\",\"name\":\"p\",\"t_ns\":1,\"verdict\":\"dreaming\",\"of\":\"sheep\"}\n"
        + "{\"kind\":\"sample\",\"t_ns\":9,\"processes\":[{\"pid\":3,\"start_ns\":4,\
           \"calls\":{\"teleport\":{\"entered\":1},\"reg_mr\":{\"entered\":2,\"new\":1}}}]}\n";
    let (records, reader) = read(text).unwrap();
    assert_eq!(records.len(), 4);
    assert_eq!(reader.notes().unknown_kinds, 1);
    let Record::Event(event) = &records[1] else { panic!("{records:?}") };
    assert_eq!((event.call, &event.detail), (Call::Unknown, &Detail::Unknown));
    let Record::Sample(sample) = &records[3] else { panic!("{records:?}") };
    assert_eq!(sample.processes[0].calls[&Call::RegMr].entered, 2);
}

#[test]
fn unreadable_files_are_answered_with_file_line_and_reason() {
    let header_line = line(&Record::Header(header()));
    let cases: [(Vec<u8>, &str); 12] = [
        (b"".into(), "line 1: the file is empty"),
        (b"\n".into(), "line 1: not a trace of rdma-probe"),
        (b"PK\x03\x04\xff".into(), "line 1: not a trace of rdma-probe"),
        (b"{\"a\":1}\n".into(), "line 1: not a trace of rdma-probe"),
        (b"[".repeat(100_000), "line 1: not a trace of rdma-probe"),
        (b"{\"kind\":\"header\",\"schema\":\"rdma-trace/2\"}\n".into(), "schema is 'rdma-trace/2'"),
        (b"\x1f\x8b\x08\x00".into(), "gzip"),
        (
            (header_line.clone() + "{\"kind\":\"event\",\"t_ns\":-1}\nx\n").into(),
            "line 2: invalid value: integer `-1`",
        ),
        ((header_line.clone() + "nonsense\n{}\n").into(), "line 2: expected"),
        (
            [header_line.as_bytes(), b"{\"kind\":\"footer\",\"reason\":\"\xff\"}\n"].concat(),
            "line 2: not UTF-8 after 27",
        ),
        ((header_line.clone() + &header_line).into(), "line 2: a second header"),
        ([header_line.as_bytes(), &vec![b' '; MAX_LINE_BYTES]].concat(), "line 2: longer than"),
    ];
    for (bytes, reason) in cases {
        let error = read(bytes).expect_err(reason).to_string();
        assert!(
            error.contains(reason) && error.starts_with("'t', line"),
            "{error:?} should contain {reason:?}"
        );
    }
    let error = Reader::open(Path::new("/nowhere/t.jsonl")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/t.jsonl") && error.contains("No such file"), "{error}");
    assert!(Reader::open(Path::new("/tmp")).unwrap_err().to_string().contains("directory"));
}

#[test]
fn a_sample_too_long_for_one_line_is_written_in_parts_of_the_same_moment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let processes: Vec<_> = (0..20_000)
        .map(|pid| {
            let Record::Sample(mut one) =
                sample(ALICE, 7, Call::RegMr, CallCount::default(), &[(300, 1), (301, 2)])
            else {
                unreachable!()
            };
            one.processes[0].id.pid = pid;
            one.processes.remove(0)
        })
        .collect();
    let mut writer = Writer::create(&path, &header(), Options::default()).unwrap();
    writer.push(&Record::Sample(Sample { t_ns: 7, processes, ..Sample::default() })).unwrap();
    let parts = writer.finish(footer("x")).unwrap().samples;
    assert!(parts > 1);
    let read: Vec<ProcessSample> = Reader::open(&path)
        .unwrap()
        .filter_map(|r| match r.unwrap() {
            Record::Sample(sample) => Some(sample.processes),
            _ => None,
        })
        .flatten()
        .collect();
    assert!(read.iter().map(|p| p.id.pid).eq(0..20_000));
}

#[test]
fn a_process_with_more_queues_than_a_line_holds_is_written_in_parts_that_each_tell_its_totals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let queues = (0..12_000).map(|object| QueueSample {
        queue: QueueKind::Qp,
        object,
        counts: posted(object),
        ..QueueSample::default()
    });
    let whole = exact(queues.collect());
    let mut writer = Writer::create(&path, &header(), Options::default()).unwrap();
    writer.push(&queues_sample(ALICE, 7, whole.clone())).unwrap();
    assert!(writer.finish(footer("x")).unwrap().samples > 1);
    let mut read = Vec::new();
    for record in Reader::open(&path).unwrap() {
        let Record::Sample(sample) = record.unwrap() else { continue };
        let part = sample.processes[0].data_path.clone().unwrap();
        assert_eq!(part.totals, whole.totals);
        read.extend(part.queues);
    }
    assert_eq!(read, whole.queues);
}

#[test]
fn the_size_limit_ends_the_recording_with_a_footer_inside_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let limit = Options::MIN_LIMIT_BYTES;
    let mut writer = Writer::create(&path, &header(), Options { limit_bytes: Some(limit) }).unwrap();
    let mut pushed = 0;
    let error = loop {
        pushed += 1;
        if let Err(error) = writer.push(&some_records()[1]) {
            break error;
        }
        assert!(pushed < 100_000, "never full");
    };
    assert!(matches!(error, WriteError::SizeLimit), "{error}");
    assert!(matches!(writer.push(&some_records()[1]), Err(WriteError::SizeLimit)));
    let summary = writer.finish(footer(&error.to_string())).unwrap();
    assert!(summary.bytes <= limit && summary.events == pushed);
    let records: Vec<_> = Reader::open(&path).unwrap().map(Result::unwrap).collect();
    assert_eq!(records.len() as u64, pushed + 2);
}

/// Runs in a mount namespace of its own (see the next test), with the path of a small file system.
#[test]
fn inside_a_small_file_system() {
    let Some(folder) = std::env::var_os("RDMA_PROBE_TEST_SMALL_FS") else { return };
    for name in ["t.jsonl", "t.jsonl.zst"] {
        let path = Path::new(&folder).join(name);
        let mut writer = Writer::create(&path, &header(), Options::default()).unwrap();
        let mut pushed = 0_u64;
        let error = loop {
            let Record::Event(mut event) = some_records().remove(1) else { unreachable!() };
            event.t_ns = pushed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            event.duration_ns = event.t_ns.rotate_left(17);
            pushed += 1;
            if let Err(error) = writer.push(&Record::Event(event)) {
                break error;
            }
            assert!(pushed < 10_000_000, "never full");
        };
        assert!(matches!(error, WriteError::DiskFull), "{error}");
        let summary = writer.finish(footer(&error.to_string())).unwrap();
        assert_eq!(summary.events, pushed);
        let mut reader = Reader::open(&path).unwrap();
        let records: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!(records.len() as u64, pushed + 2, "{name}");
        assert!(!reader.notes().no_footer);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_full_disk_ends_the_recording_with_a_footer_in_the_reserve() {
    let folder = tempfile::tempdir().unwrap();
    let inner = std::env::current_exe().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=3m none '{0}' && RDMA_PROBE_TEST_SMALL_FS='{0}' exec '{1}' --exact trace::inside_a_small_file_system",
        folder.path().display(),
        inner.display()
    );
    let run = Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]).output();
    match run {
        Ok(run) if String::from_utf8_lossy(&run.stderr).contains("ermission") => {
            eprintln!("skipped: this machine allows no mount namespace here");
        }
        Ok(run) => assert!(
            run.status.success(),
            "{}{}",
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr)
        ),
        Err(error) => eprintln!("skipped: unshare cannot be run: {error}"),
    }
}

#[test]
fn a_device_that_is_always_full_is_an_error_and_no_panic() {
    assert!(matches!(
        Writer::create(Path::new("/dev/full"), &header(), Options::default()),
        Err(WriteError::DiskFull)
    ));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_after_a_header_never_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut file = line(&Record::Header(header())).into_bytes();
        file.extend(bytes);
        let _ = read(file);
    }

    #[test]
    fn a_trace_with_some_bytes_changed_never_panics_the_reader(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        compressed in any::<bool>(),
    ) {
        let mut file: Vec<u8> =
            std::iter::once(Record::Header(header())).chain(some_records()).flat_map(|r| line(&r).into_bytes()).collect();
        if compressed {
            let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
            encoder.write_all(&file).unwrap();
            file = encoder.finish().unwrap();
        }
        for (index, byte) in changes {
            let at = index.index(file.len());
            file[at] = byte;
        }
        let _ = read(file);
    }
}
