//! An ACK timeout that never ends.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "ack-timeout-never",
    fault: "timeout 0: a lost packet is never noticed",
    healthy: "timeout 14, 67 ms",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    if !healthy {
        shape.wiring.retry.timeout = 0;
    }
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
