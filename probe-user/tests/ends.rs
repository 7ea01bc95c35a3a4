//! Both ends of real connections, recorded apart and merged. Attaching probes needs root; the programs run on the
//! emulated device, which must have been built.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod support;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use probe_user::merge::{Merger, Summary};
use probe_user::sample::{OffsetFrom, Record};
use probe_user::trace::{Options, Reader, Writer};
use support::{RECORDER, is_root};

/// What starts a program on the emulated device, built beside these tests.
fn emulator() -> Option<PathBuf> {
    let tests = std::env::current_exe().ok()?;
    let folder = tests.parent()?.parent()?;
    let (program, library) = (folder.join("rnic-emu"), folder.join("librnic_emu.so"));
    if program.exists() && library.exists() {
        return Some(program);
    }
    eprintln!("skipped: the emulated device is not built (cargo build -p rnic-emu -p rnic-emu-preload)");
    None
}

fn record(emulator: &Path, output: &Path, command: &[&str]) -> Child {
    Command::new("timeout")
        .args(["-k", "5", "100", RECORDER, "record", "--quiet", "--no-kernel", "--output"])
        .arg(output)
        .arg("--")
        .arg(emulator)
        .arg("--")
        .args(command)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finished(child: Child) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Records client and server of `ib_write_bw` over several queue pairs, each by itself.
fn both_ends(folder: &Path, emulator: &Path, queue_pairs: &str) -> [PathBuf; 2] {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let [client, server] = ["client", "server"].map(|name| folder.join(name));
    let common = ["ib_write_bw", "-q", queue_pairs, "-n", "200", "-p", &port];
    let serving = record(emulator, &server, &common);
    // The server listens when its recorder has attached; the client tries only once.
    thread::sleep(Duration::from_secs(8));
    finished(record(emulator, &client, &[&common[..], &["127.0.0.1"]].concat()));
    finished(serving);
    [client, server]
}

/// The same recording as another host would have made it, whose clock shows `shift_ns` more.
fn as_of_another_host(path: &Path, shift_ns: u64, wall_error_ns: u64) -> PathBuf {
    let moved = path.with_extension("moved");
    let mut records = Reader::open(path).unwrap().map(Result::unwrap);
    let Some(Record::Header(mut header)) = records.next() else { panic!("no header") };
    header.boot_id = "another".to_owned();
    header.host = "other".to_owned();
    header.t_ns += shift_ns;
    header.wall_ns += wall_error_ns;
    let mut writer = Writer::create(&moved, &header, Options::default()).unwrap();
    for record in records {
        match record {
            Record::Event(mut event) => {
                event.t_ns += shift_ns;
                writer.push(&Record::Event(event)).unwrap();
            }
            Record::Process(mut process) => {
                process.t_ns += shift_ns;
                writer.push(&Record::Process(process)).unwrap();
            }
            Record::Footer(footer) => {
                writer.finish(footer).unwrap();
                return moved;
            }
            _ => {}
        }
    }
    panic!("no footer")
}

fn merge(folder: &Path, files: &[PathBuf]) -> Summary {
    Merger::read(files).unwrap().write(&folder.join("merged")).unwrap()
}

#[test]
fn every_connection_of_two_recordings_is_joined_and_a_moved_clock_is_found_within_the_bound() {
    if !is_root() {
        return;
    }
    let Some(emulator) = emulator() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [client, server] = both_ends(folder.path(), &emulator, "4");
    let same = merge(folder.path(), &[client.clone(), server.clone()]);
    assert_eq!(
        (same.connections, same.between_hosts, same.without_peer, same.ambiguous),
        (4, 4, 0, 0),
        "{same:#?}"
    );
    assert_eq!(same.hosts[1].offset_from, OffsetFrom::SameClock);

    const SHIFT: u64 = 987_654_321_098;
    let moved = as_of_another_host(&server, SHIFT, 5_000_000_000);
    let found = merge(folder.path(), &[client, moved]);
    assert_eq!((found.connections, found.between_hosts), (4, 4));
    let host = &found.hosts[1];
    let bound = host.bound_ns.expect("both directions are bounded");
    let wrong_by = host.offset_ns.abs_diff(-(SHIFT as i64));
    println!("offset found to {wrong_by} ns, bound {bound} ns");
    assert_eq!(host.offset_from, OffsetFrom::Connections);
    assert!(wrong_by <= bound, "{host:?}");
    assert!(bound < 1_000_000_000, "an exchange takes less: {host:?}");
}
