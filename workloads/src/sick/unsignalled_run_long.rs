//! A completion asked for only when the queue is full.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "unsignalled-run-long",
    fault: "one signalled request in 128, the depth of the send queue",
    healthy: "one in 16",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let flow = Flow { signal_every: if healthy { 16 } else { 128 }, window: 128, ..Flow::default() };
    kit.rig(&kit.shape())?.run(&flow, kit.seconds)
}
