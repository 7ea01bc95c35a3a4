//! Recordings of two hosts on one time line.

use std::path::PathBuf;

use probe_user::merge::{MergeError, Merger, Summary};
use probe_user::sample::{
    Call, Connection, Detail, Device, Event, Footer, Gid, Header, Lost, OffsetFrom, Port, ProcessId,
    QpAttributes, Record, Sample,
};
use probe_user::trace::{Options, Reader, Writer};

use crate::common::{event, footer, header, process};

const CLIENT: ProcessId = ProcessId { pid: 100, start_ns: 50_000_000 };
/// The same pid and start on another host.
const SERVER: ProcessId = CLIENT;
/// What the server's clock shows while the client's shows 0.
const AHEAD_NS: u64 = 7_000_000_000;
const SECOND: u64 = 1_000_000_000;

fn host(name: &str, gid: &str, t_ns: u64, wall_ns: u64) -> Header {
    let port = Port {
        number: 1,
        gids: vec![Gid { index: 1, gid: gid.into(), gid_type: "RoCE v2".into() }],
        ..Port::default()
    };
    let device = Device { name: "mlx5_0".into(), ports: vec![port], ..Device::default() };
    Header { host: name.into(), t_ns, wall_ns, devices: vec![device], ..header() }
}

fn created(id: ProcessId, t_ns: u64, qp: u64, qpn: u32) -> Record {
    Record::Event(event(id, t_ns, 1000, Call::CreateQp, crate::common::qp(qp, qpn, 16)))
}

fn ready(id: ProcessId, t_ns: u64, qp: u64, qpn: u32, dest_qpn: u32, dgid: &str) -> Record {
    let attributes = QpAttributes {
        qp,
        qpn,
        to: Some("RTR".into()),
        dest_qpn: Some(dest_qpn),
        dgid: Some(dgid.into()),
        ..QpAttributes::default()
    };
    Record::Event(event(id, t_ns, 500, Call::ModifyQp, Detail::ModifyQp(attributes)))
}

fn write(folder: &tempfile::TempDir, name: &str, header: &Header, records: &[Record]) -> PathBuf {
    let path = folder.path().join(name);
    let mut writer = Writer::create(&path, header, Options::default()).unwrap();
    records.iter().for_each(|record| writer.push(record).unwrap());
    writer
        .finish(Footer { lost: Lost { ring_events: 2, ..Lost::default() }, ..footer("target exited") })
        .unwrap();
    path
}

/// Two hosts that exchange the numbers of `pairs` queue pairs within a millisecond; the server's wall clock is off by
/// `wall_error_ns`.
fn two_hosts(folder: &tempfile::TempDir, pairs: u32, wall_error_ns: i64) -> Vec<PathBuf> {
    let (mut client, mut server) = (vec![process(CLIENT, "client")], vec![process(SERVER, "server")]);
    for n in 0..pairs {
        let at = SECOND + u64::from(n) * 10_000_000;
        let (own, peer) = (0x100 + n, 0x900 + n);
        client.push(created(CLIENT, at, own.into(), own));
        server.push(created(SERVER, at + 200_000 + AHEAD_NS, peer.into(), peer));
        server.push(ready(SERVER, at + 400_000 + AHEAD_NS, peer.into(), peer, own, "::c"));
        client.push(ready(CLIENT, at + 600_000, own.into(), own, peer, "::5"));
    }
    let lost = Lost { ring_events: 1, ..Lost::default() };
    client.push(Record::Sample(Sample { t_ns: 3 * SECOND, lost: lost.clone(), ..Sample::default() }));
    server.push(Record::Sample(Sample { t_ns: 3 * SECOND + AHEAD_NS, lost, ..Sample::default() }));
    let wall = 1_700_000_000 * SECOND;
    vec![
        write(folder, "client", &host("c", "::c", SECOND, wall), &client),
        write(
            folder,
            "server",
            &host("s", "::5", SECOND + AHEAD_NS, wall.saturating_add_signed(wall_error_ns)),
            &server,
        ),
    ]
}

fn merged(folder: &tempfile::TempDir, files: &[PathBuf]) -> (Summary, Vec<Record>) {
    let path = folder.path().join("merged.zst");
    let summary = Merger::read(files).unwrap().write(&path).unwrap();
    (summary, Reader::open(&path).unwrap().map(Result::unwrap).collect())
}

fn connections(records: &[Record]) -> Vec<Connection> {
    records.iter().filter_map(|r| if let Record::Connection(c) = r { Some(*c) } else { None }).collect()
}

#[test]
fn both_ends_of_each_connection_are_joined_and_the_clocks_related_within_the_stated_bound() {
    let folder = tempfile::tempdir().unwrap();
    let files = two_hosts(&folder, 5, 3_600 * SECOND as i64);
    let (summary, records) = merged(&folder, &files);
    assert_eq!((summary.connections, summary.between_hosts, summary.without_peer), (5, 5, 0));
    let server = &summary.hosts[1];
    assert_eq!(server.offset_from, OffsetFrom::Connections);
    let bound = server.bound_ns.unwrap();
    assert!(server.offset_ns.abs_diff(-(AHEAD_NS as i64)) <= bound, "{server:?}");
    assert!(bound <= 1_000_000, "the exchange took less than a millisecond: {server:?}");
    // The server was ready first.
    let joined = connections(&records);
    assert_eq!(joined.len(), 5);
    assert!(joined.iter().all(|c| c.a.qpn >= 0x900 && c.b.qpn == c.a.qpn - 0x800), "{joined:?}");
    // Same pid, same start, two processes.
    assert_ne!(joined[0].a.id, joined[0].b.id);
}

#[test]
fn wall_clocks_choose_within_the_bound_that_connections_give() {
    let folder = tempfile::tempdir().unwrap();
    let (summary, _) = merged(&folder, &two_hosts(&folder, 2, 0));
    assert_eq!(summary.hosts[1].offset_ns, -(AHEAD_NS as i64));
}

#[test]
fn records_come_in_order_of_time_and_losses_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let (summary, records) = merged(&folder, &two_hosts(&folder, 3, 0));
    let returned = |e: &Event| e.t_ns + e.duration_ns;
    let times: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Event(e) => Some(returned(e)),
            Record::Sample(s) => Some(s.t_ns),
            Record::Connection(c) => Some(c.t_ns),
            _ => None,
        })
        .collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(summary.events, 12);
    let Some(Record::Footer(end)) = records.last() else { panic!("no footer") };
    assert_eq!((end.reason.as_str(), end.lost.ring_events), ("merged", 4));
    let samples: Vec<_> = records
        .iter()
        .filter_map(|r| if let Record::Sample(s) = r { Some(s.lost.ring_events) } else { None })
        .collect();
    // The client's recording has ended when the server's sample is taken: its footer tells its losses in all.
    assert_eq!(samples, [1, 3]);
    let Record::Header(header) = &records[0] else { panic!("no header") };
    let devices: Vec<_> = header.devices.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(devices, ["c:mlx5_0", "s:mlx5_0"]);
}

#[test]
fn numbers_that_meet_by_chance_are_not_joined_where_the_gids_say_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let client =
        [process(CLIENT, "c"), created(CLIENT, SECOND, 1, 17), ready(CLIENT, 2 * SECOND, 1, 17, 18, "::e")];
    let server =
        [process(SERVER, "s"), created(SERVER, SECOND, 1, 18), ready(SERVER, 2 * SECOND, 1, 18, 17, "::c")];
    let files = [
        write(&folder, "client", &host("c", "::c", SECOND, 9), &client),
        write(&folder, "server", &host("s", "::5", SECOND, 9), &server),
    ];
    let (summary, records) = merged(&folder, &files);
    assert_eq!((summary.connections, summary.without_peer), (0, 2));
    assert!(connections(&records).is_empty());
    assert_eq!(summary.hosts[1].offset_from, OffsetFrom::WallClocks);
}

#[test]
fn a_merged_trace_is_not_merged_again() {
    let folder = tempfile::tempdir().unwrap();
    let files = two_hosts(&folder, 1, 0);
    merged(&folder, &files);
    let again = [folder.path().join("merged.zst"), files[0].clone()];
    let error = Merger::read(&again).unwrap_err();
    assert!(matches!(error, MergeError::Merged(_)), "{error}");
}
