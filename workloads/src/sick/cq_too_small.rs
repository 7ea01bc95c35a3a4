//! A completion queue smaller than what may complete into it.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "cq-too-small",
    fault: "64 entries for queues that hold 272 requests",
    healthy: "as many entries as requests",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    // Devices round what they grant up, soft-RoCE 64 to 127: what is under way after each post is more than that, however
    // fast the device.
    let shape = Shape { depth: 256, cqe: (!healthy).then_some(64), ..kit.shape() };
    let flow = Flow { list: 128, signal_every: 128, window: 128, ..Flow::default() };
    kit.rig(&shape)?.run(&flow, kit.seconds)
}
