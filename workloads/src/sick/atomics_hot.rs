//! Atomics on one word.

use super::kit::{Flow, Kit, Operation, Places};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "atomics-hot",
    fault: "compare-and-swap on one address, over and over",
    healthy: "on words of their own, a cache line apart",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let places = if healthy { Places::Step(64) } else { Places::Same };
    let flow = Flow { operation: Operation::CompareSwap, size: 8, places, ..Flow::default() };
    kit.rig(&kit.shape())?.run(&flow, kit.seconds)
}
