//! READs and WRITEs on one queue pair.

use super::kit::{Flow, Kit, Operation};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "reads-and-writes-mixed",
    fault: "a READ and a WRITE in turn on one queue pair",
    healthy: "WRITEs alone",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let operation = if healthy { Operation::Write } else { Operation::ReadWrite };
    kit.rig(&kit.shape())?.run(&Flow { operation, ..Flow::default() }, kit.seconds)
}
