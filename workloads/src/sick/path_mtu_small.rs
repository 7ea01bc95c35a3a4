//! A path MTU below the port's.

use super::kit::{Flow, Kit, Places};
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
    let flow = Flow { size: 4096, places: Places::Step(8192), ..Flow::default() };
    kit.rig(&shape)?.run(&flow, kit.seconds)
}
