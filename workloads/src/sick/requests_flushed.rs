//! Receives flushed by the program's own doing.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;
use std::time::Duration;

/// The program.
pub static PROGRAM: Program = Program {
    name: "requests-flushed",
    fault: "goes to the error state with receives outstanding",
    healthy: "is destroyed when they are done",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut rig = kit.rig(&kit.shape())?;
    rig.run(&Flow::default(), kit.seconds)?;
    if !healthy {
        let sge = rig.sge(0, 64);
        for id in 0..8 {
            rig.qps[0].post_recv(id, sge)?;
        }
        rig.qps[0].fail()?;
        let failed = rig.failures(Duration::from_secs(10))?;
        anyhow::ensure!(failed > 0, "nothing was flushed");
        // Destroyed at once: what is wrong is the cancelling, not the keeping.
        rig.qps.clear();
    }
    Ok(())
}
