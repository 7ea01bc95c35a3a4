//! A completion asked for only when the queue is full.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "unsignalled-run-long",
    fault: "one signalled request in 240, of a send queue of 255",
    healthy: "one in 16",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    // A depth that no device rounds up: soft-RoCE makes 255 of 128.
    let shape = Shape { depth: 255, ..kit.shape() };
    let flow = Flow { signal_every: if healthy { 16 } else { 240 }, window: 240, ..Flow::default() };
    kit.rig(&shape)?.run(&flow, kit.seconds)
}
