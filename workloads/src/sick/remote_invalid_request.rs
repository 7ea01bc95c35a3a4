//! A message longer than the receive it meets.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::verbs::{SendList, ffi};
use anyhow::Result;
use std::time::Duration;

/// The program.
pub static PROGRAM: Program = Program {
    name: "remote-invalid-request",
    fault: "sends 4 KiB to a receive of 64 bytes",
    healthy: "within its length",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    if healthy {
        return rig.run(&Flow::default(), kit.seconds);
    }
    let short = ffi::ibv_sge { addr: rig.remote.addr(), length: 64, lkey: rig.remote.lkey() };
    rig.peers[0].post_recv(1, short)?;
    let mut list = SendList::with_capacity(1);
    list.send(0, rig.sge(0, 4096));
    list.flag_last(true, false);
    rig.qps[0].post(&mut list)?;
    let failed = rig.failures(Duration::from_secs(10))?;
    anyhow::ensure!(failed > 0, "the request did not fail");
    Ok(())
}
