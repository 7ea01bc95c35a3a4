//! All messages through one queue pair.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "one-queue-pair",
    fault: "many small messages on a single queue pair",
    healthy: "spread over eight",
    needs: Needs::Timing,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let shape = Shape { qps: if healthy { 8 } else { 1 }, ..kit.shape() };
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
