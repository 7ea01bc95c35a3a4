//! No patience with a late receive.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "rnr-retry-zero",
    fault: "rnr_retry 0: the first late receive breaks the connection",
    healthy: "rnr_retry 7",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    if !healthy {
        shape.wiring.retry.rnr = 0;
    }
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
