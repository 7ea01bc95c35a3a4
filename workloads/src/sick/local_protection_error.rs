//! An SGE with a key that is not its own.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::verbs::SendList;
use anyhow::Result;
use std::time::Duration;

/// The program.
pub static PROGRAM: Program = Program {
    name: "local-protection-error",
    fault: "writes from memory with a wrong lkey",
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
    let mut sge = rig.sge(0, 64);
    sge.lkey ^= 0x00ff_ff00;
    let mut list = SendList::with_capacity(1);
    list.write(0, sge, rig.remote.addr(), rig.remote.rkey(), None);
    list.flag_last(true, false);
    rig.qps[0].post(&mut list)?;
    let failed = rig.failures(Duration::from_secs(10))?;
    anyhow::ensure!(failed > 0, "the request did not fail");
    Ok(())
}
