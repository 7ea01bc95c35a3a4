//! Far more queue pairs busy than a NIC has units.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "qps-above-units",
    fault: "200 busy queue pairs",
    healthy: "16",
    needs: Needs::Timing,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let shape = Shape { qps: if healthy { 16 } else { 200 }, ..kit.shape() };
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
