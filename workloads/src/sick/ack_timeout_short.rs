//! An ACK timeout of a moment.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "ack-timeout-short",
    fault: "timeout 5: 131 µs before everything is sent again",
    healthy: "timeout 14, 67 ms",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    if !healthy {
        shape.wiring.retry.timeout = 5;
    }
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
