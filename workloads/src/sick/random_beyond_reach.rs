//! Random access over more memory than translations reach.

use super::kit::{Flow, Kit, Places, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "random-beyond-reach",
    fault: "random WRITEs over 48 MiB of 4 KiB pages",
    healthy: "over 1 MiB",
    needs: Needs::Timing,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let shape = Shape { qps: 8, bytes: if healthy { 1 << 20 } else { 48 << 20 }, ..kit.shape() };
    kit.rig(&shape)?.run(&Flow { places: Places::Anywhere, ..Flow::default() }, kit.seconds)
}
