//! More queue pairs than a NIC caches.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "many-qps",
    fault: "1,200 queue pairs",
    healthy: "32",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let shape = Shape { qps: if healthy { 16 } else { 600 }, depth: 32, ..kit.shape() };
    let flow = Flow { window: 16, ..Flow::default() };
    kit.rig(&shape)?.run(&flow, kit.seconds)
}
