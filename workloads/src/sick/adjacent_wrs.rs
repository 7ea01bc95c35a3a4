//! Neighbouring pieces sent apart.

use super::kit::{Flow, Kit, Places};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "adjacent-wrs",
    fault: "each request of a list continues the one before",
    healthy: "one request of the same bytes",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let flow = match healthy {
        true => Flow { size: 4096, places: Places::Step(8192), ..Flow::default() },
        false => Flow { places: Places::Step(256), ..Flow::default() },
    };
    kit.rig(&kit.shape())?.run(&flow, kit.seconds)
}
