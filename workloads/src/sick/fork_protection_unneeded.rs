//! Fork protection on a kernel that needs none.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "fork-protection-unneeded",
    fault: "RDMAV_FORK_SAFE is set",
    healthy: "it is not",
    needs: Needs::Anything,
    environment: Some(("RDMAV_FORK_SAFE", "1")),
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    // The fault is in the environment.
    let _ = healthy;
    kit.rig(&kit.shape())?.run(&Flow::default(), kit.seconds)
}
