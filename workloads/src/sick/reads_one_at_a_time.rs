//! READs that wait for each other.

use super::kit::{Flow, Kit, Operation};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "reads-one-at-a-time",
    fault: "max_rd_atomic 1 with a window of READs",
    healthy: "as many as the device serves",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    if !healthy {
        (shape.wiring.reads, shape.wiring.serves) = (1, 1);
    }
    kit.rig(&shape)?.run(&Flow { operation: Operation::Read, ..Flow::default() }, kit.seconds)
}
