//! A completion queue smaller than what may complete into it.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "cq-too-small",
    fault: "64 entries for queues that hold 144 requests",
    healthy: "as many entries as requests",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let shape = Shape { cqe: (!healthy).then_some(64), ..kit.shape() };
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
