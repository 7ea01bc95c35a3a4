//! A completion for every request.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "everything-signalled",
    fault: "every request is signalled",
    healthy: "one in 16 is",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let flow = Flow { signal_every: if healthy { 16 } else { 1 }, ..Flow::default() };
    kit.rig(&kit.shape())?.run(&flow, kit.seconds)
}
