//! The inventory against the `rdma` tool, on real soft-RoCE: `cargo xtask vm test`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use probe_user::devices::{Inventory, inventory};
use serde_json::Value;
use testkit::Held;

/// Ends the programs under observation, also when an assertion fails.
struct Programs(Vec<Held>);

impl Programs {
    fn start(&mut self, command: &[&str]) {
        let child = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.0.push(Held(child));
    }
}

/// What `rdma resource show KIND` lists. Details on, so that every number is there.
fn listed(kind: &str) -> Vec<Value> {
    let out = Command::new("rdma").args(["resource", "show", kind, "-j", "-d"]).output().unwrap();
    serde_json::from_slice(&out.stdout).unwrap()
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64()
}

/// Keys are printed as hexadecimal text.
fn key(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?, 16).ok()
}

type Row = Vec<Option<u64>>;

fn same(what: &str, ours: impl Iterator<Item = Row>, theirs: impl Iterator<Item = Row>) {
    let (ours, theirs): (Vec<_>, Vec<_>) = (ours.collect(), theirs.collect());
    assert_eq!(ours.len(), theirs.len(), "{what}: ours {ours:?}\ntheirs {theirs:?}");
    assert_eq!(
        ours.into_iter().collect::<BTreeSet<_>>(),
        theirs.into_iter().collect::<BTreeSet<_>>(),
        "{what}"
    );
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn every_object_the_rdma_tool_lists_is_listed_with_the_same_owner_and_numbers() {
    let (device, address) = (std::env::var("RDMA_DEV").unwrap(), std::env::var("RDMA_IP").unwrap());
    let mut programs = Programs(Vec::new());
    // Servers that have made their queues and wait for a client, so that both looks see the same.
    for (program, port) in [
        ("ibv_rc_pingpong", "18600"),
        ("ibv_uc_pingpong", "18601"),
        ("ibv_ud_pingpong", "18602"),
        ("ibv_srq_pingpong", "18603"),
    ] {
        programs.start(&[program, "-d", &device, "-g", "1", "-p", port]);
    }
    programs.start(&["rping", "-s", "-a", &address]);
    let now = settled(1 + 1 + 1 + 16, 1, |now| {
        let objects = now.objects.as_ref().unwrap();
        (objects.qps.iter().filter(|qp| qp.owner.pid.is_some()).count(), objects.cm_ids.len())
    });
    let objects = now.objects.as_ref().unwrap();
    assert_eq!(now.netns_mode.as_deref(), Some("shared"));

    let theirs = listed("qp");
    same(
        "QPs",
        objects.qps.iter().map(|q| {
            vec![
                Some(q.qpn.into()),
                q.remote_qpn.map(Into::into),
                q.pdn.map(Into::into),
                q.owner.pid.map(Into::into),
            ]
        }),
        theirs
            .iter()
            .map(|q| vec![number(&q["lqpn"]), number(&q["rqpn"]), number(&q["pdn"]), number(&q["pid"])]),
    );
    for qp in &objects.qps {
        let other = theirs.iter().find(|q| q["lqpn"] == qp.qpn).unwrap();
        assert_eq!((other["type"].as_str(), other["state"].as_str()), (Some(&*qp.qp_type), Some(&*qp.state)));
        assert_eq!(other["comm"].as_str(), qp.owner.comm.as_deref().or(qp.owner.kernel.as_deref()));
    }
    same(
        "CQs",
        objects.cqs.iter().map(|c| {
            vec![c.cqn.map(Into::into), Some(c.cqe.into()), Some(c.users), c.owner.pid.map(Into::into)]
        }),
        listed("cq")
            .iter()
            .map(|c| vec![number(&c["cqn"]), number(&c["cqe"]), number(&c["users"]), number(&c["pid"])]),
    );
    same(
        "MRs",
        objects.mrs.iter().map(|m| {
            let keys = (m.lkey.map(Into::into), m.rkey.map(Into::into));
            vec![m.mrn.map(Into::into), Some(m.length_bytes), keys.0, keys.1, m.owner.pid.map(Into::into)]
        }),
        listed("mr").iter().map(|m| {
            vec![number(&m["mrn"]), number(&m["mrlen"]), key(&m["lkey"]), key(&m["rkey"]), number(&m["pid"])]
        }),
    );
    same(
        "PDs",
        objects.pds.iter().map(|p| vec![p.pdn.map(Into::into), Some(p.users), p.owner.pid.map(Into::into)]),
        listed("pd").iter().map(|p| vec![number(&p["pdn"]), number(&p["users"]), number(&p["pid"])]),
    );
    same(
        "contexts",
        objects.contexts.iter().map(|c| vec![c.ctxn.map(Into::into), c.owner.pid.map(Into::into)]),
        listed("ctx").iter().map(|c| vec![number(&c["ctxn"]), number(&c["pid"])]),
    );
    let (ours, theirs) = (&objects.cm_ids, listed("cm_id"));
    assert_eq!((ours.len(), theirs.len()), (1, 1));
    assert_eq!(theirs[0]["src-addr"].as_str(), ours[0].source.as_deref());
    assert_eq!(
        (theirs[0]["state"].as_str(), theirs[0]["ps"].as_str()),
        (Some(&*ours[0].state), Some(&*ours[0].port_space))
    );
    let (ours, theirs) = (&objects.srqs, listed("srq"));
    assert_eq!((ours.len(), theirs.len()), (1, 1));
    let (first, last) = ours[0].qpns[0];
    assert_eq!(theirs[0]["lqpn"][0].as_str(), Some(&*format!("{first}-{last}")));

    let totals = &now.devices[0].totals;
    let out = Command::new("rdma").args(["resource", "show", "-j"]).output().unwrap();
    let theirs: Value = serde_json::from_slice(&out.stdout).unwrap();
    for (kind, n) in totals {
        assert_eq!(theirs[0][kind].as_u64(), Some(*n), "{kind}");
    }
    assert_eq!(totals["qp"], objects.qps.len() as u64);

    let port = &now.devices[0].device.ports[0];
    assert_eq!((port.state.as_str(), port.link_layer.as_str()), ("ACTIVE", "Ethernet"));
    assert!(port.counters.contains_key("sent_pkts") && !port.netdev.is_empty() && !port.gids.is_empty());
    assert_eq!(now.devices[0].device.driver, "rdma_rxe");

    let header = probe_user::devices::devices();
    assert_eq!((header.len(), header[0].driver.as_str()), (1, "rdma_rxe"));
    let sample = probe_user::devices::counters();
    assert!(sample[0].ports[0].counters.keys().eq(port.counters.keys()));
}

/// Waits until the programs have made their objects and nothing changes any more.
fn settled(qps: usize, cm_ids: usize, count: impl Fn(&Inventory) -> (usize, usize)) -> Inventory {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let now = inventory();
        if count(&now) == (qps, cm_ids) {
            std::thread::sleep(Duration::from_millis(500));
            return inventory();
        }
        assert!(Instant::now() < deadline, "the programs did not get ready: {:?}", count(&now));
        std::thread::sleep(Duration::from_millis(200));
    }
}
