//! Requests posted one by one.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "one-wr-per-post",
    fault: "a call and a doorbell for each of many requests",
    healthy: "lists of 16",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let (list, calls) = if healthy { (16, 1) } else { (1, 16) };
    let flow = Flow { list, calls, ..Flow::default() };
    kit.rig(&kit.shape())?.run(&flow, kit.seconds)
}
