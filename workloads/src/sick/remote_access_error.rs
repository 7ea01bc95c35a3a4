//! A key the peer never gave out.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::verbs::SendList;
use anyhow::Result;
use std::time::Duration;

/// The program.
pub static PROGRAM: Program = Program {
    name: "remote-access-error",
    fault: "writes with a wrong rkey",
    healthy: "with the right one",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    if healthy {
        return rig.run(&Flow::default(), kit.seconds);
    }
    let mut list = SendList::with_capacity(1);
    list.write(0, rig.sge(0, 64), rig.remote.addr(), rig.remote.rkey() ^ 0x00ff_ff00, None);
    list.flag_last(true, false);
    rig.qps[0].post(&mut list)?;
    let failed = rig.failures(Duration::from_secs(10))?;
    anyhow::ensure!(failed > 0, "the request did not fail");
    Ok(())
}
