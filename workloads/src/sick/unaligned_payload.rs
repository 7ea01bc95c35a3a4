//! Payloads that begin inside a cache line.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "unaligned-payload",
    fault: "addresses 24 bytes past a cache line",
    healthy: "addresses at cache lines",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let flow = Flow { offset: if healthy { 0 } else { 24 }, ..Flow::default() };
    kit.rig(&kit.shape())?.run(&flow, kit.seconds)
}
