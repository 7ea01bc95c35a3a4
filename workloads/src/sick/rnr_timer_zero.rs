//! The longest RNR timer, by leaving it 0.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "rnr-timer-zero",
    fault: "min_rnr_timer 0: a late receive costs 655 ms",
    healthy: "min_rnr_timer 12, 0.64 ms",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    if !healthy {
        shape.wiring.min_rnr_timer = 0;
    }
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
