//! A path MTU below the port's.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "path-mtu-small",
    fault: "path MTU 256 bytes",
    healthy: "the port's",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    if !healthy {
        // IBV_MTU_256.
        shape.wiring.mtu = Some(1);
    }
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
