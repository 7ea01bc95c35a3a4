//! A message that meets no receive.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::verbs::SendList;
use anyhow::Result;
use std::time::Duration;

/// The program.
pub static PROGRAM: Program = Program {
    name: "rnr-retry-exceeded",
    fault: "sends without a receive posted at the peer",
    healthy: "with one",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    shape.wiring.retry.rnr = 1;
    let rig = kit.rig(&shape)?;
    if healthy {
        return rig.run(&Flow::default(), kit.seconds);
    }
    let mut list = SendList::with_capacity(1);
    list.write(0, rig.sge(0, 64), rig.remote.addr(), rig.remote.rkey(), Some(7));
    list.flag_last(true, false);
    rig.qps[0].post(&mut list)?;
    let failed = rig.failures(Duration::from_secs(10))?;
    anyhow::ensure!(failed > 0, "the request did not fail");
    Ok(())
}
