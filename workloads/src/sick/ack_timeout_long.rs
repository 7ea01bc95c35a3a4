//! An ACK timeout of many seconds.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "ack-timeout-long",
    fault: "timeout 23: 34 s before a packet is sent again",
    healthy: "timeout 14, 67 ms",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    if !healthy {
        shape.wiring.retry.timeout = 23;
    }
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
