//! A peer that does not answer.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;
use std::time::Duration;

/// The program.
pub static PROGRAM: Program = Program {
    name: "retry-exceeded",
    fault: "sends to a queue pair that nobody has",
    healthy: "to one that answers",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    if healthy {
        return kit.rig(&kit.shape())?.run(&Flow::default(), kit.seconds);
    }
    let mut shape = kit.shape();
    (shape.wiring.retry.timeout, shape.wiring.retry.count) = (10, 3);
    let rig = kit.unconnected(&shape)?;
    kit.connect_to_nobody(&rig.qps[0], &shape.wiring)?;
    rig.post_one(&Flow::default())?;
    let failed = rig.failures(Duration::from_secs(10))?;
    anyhow::ensure!(failed > 0, "the request did not fail");
    Ok(())
}
