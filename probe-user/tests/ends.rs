//! Both ends of real connections, recorded apart and merged. Attaching probes needs root; the programs run on the
//! emulated device, which must have been built.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod support;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use probe_user::merge::{Merger, Summary};
use probe_user::sample::{OffsetFrom, Opcode, Record};
use probe_user::trace::{Options, Reader, Writer};
use support::{RECORDER, is_root};

/// Records a command on the emulated device.
fn record(options: &[&str], output: &Path, command: &[&str]) -> Child {
    let device = testkit::built("rnic-emu-preload", "librnic_emu.so");
    Command::new("timeout")
        .args(["-k", "5", "100", RECORDER, "record", "--quiet", "--no-kernel", "--output"])
        .arg(output)
        .args(options)
        .args(["--", "env"])
        .arg(format!("LD_PRELOAD={}", device.display()))
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

/// Records client and server of a tool of perftest, each by itself.
fn both_ends(folder: &Path, options: &[&str], tool: &[&str]) -> [PathBuf; 2] {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = port.to_string();
    let [client, server] = ["client", "server"].map(|name| folder.join(name));
    let common = [tool, &["-p", &text]].concat();
    let mut serving = record(options, &server, &common);
    // The client tries only once.
    while !is_listening(port) {
        assert!(serving.try_wait().unwrap().is_none(), "the server ended before its client came");
        thread::sleep(Duration::from_millis(50));
    }
    finished(record(options, &client, &[&common[..], &["127.0.0.1"]].concat()));
    finished(serving);
    [client, server]
}

fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        let local = format!(":{port:04X}");
        table.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|address| address.ends_with(&local)) && fields.nth(1) == Some("0A")
        })
    })
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
            Record::Post(mut post) => {
                post.t_ns += shift_ns;
                writer.push(&Record::Post(post)).unwrap();
            }
            Record::Poll(mut poll) => {
                poll.t_ns += shift_ns;
                writer.push(&Record::Poll(poll)).unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    let [client, server] = both_ends(folder.path(), &[], &["ib_write_bw", "-q", "4", "-n", "200"]);
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

#[test]
fn every_message_between_two_recordings_is_joined_and_narrows_the_clocks_offset() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let library = testkit::built("verbs-tap", "libverbs_tap.so");
    let options = ["--tap", "--messages", "--tap-library", library.to_str().unwrap()];
    let [client, server] = both_ends(folder.path(), &options, &["ib_send_lat", "-n", "500", "-s", "32"]);

    const SHIFT: u64 = 987_654_321_098;
    let moved = as_of_another_host(&server, SHIFT, 5_000_000_000);
    let found = merge(folder.path(), &[client, moved]);
    assert_eq!((found.messages, found.messages_unpaired), (1000, 0), "{found:#?}");
    let host = &found.hosts[1];
    let bound = host.bound_ns.expect("both directions are bounded");
    let wrong_by = host.offset_ns.abs_diff(-(SHIFT as i64));
    println!("offset found to {wrong_by} ns, bound {bound} ns");
    assert!(wrong_by <= bound && bound < 50_000_000, "half of the shortest exchange: {host:?}");

    let mut last = [None; 2];
    for record in Reader::open(&folder.path().join("merged")).unwrap() {
        let Record::Message(message) = record.unwrap() else { continue };
        assert_eq!((message.bytes, message.opcode), (32, Some(Opcode::Send)));
        // Each direction in its order, and no message before it was sent.
        let direction = usize::from(message.from.id.pid > message.to.id.pid);
        assert_eq!(last[direction].replace(message.number), message.number.checked_sub(1));
        assert!(message.to.t_ns + message.to.duration_ns >= message.from.t_ns, "{message:?}");
    }
    assert_eq!(last, [Some(499); 2]);
}
