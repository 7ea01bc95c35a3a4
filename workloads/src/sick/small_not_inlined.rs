//! Small payloads that the device must fetch.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "small-not-inlined",
    fault: "32-byte payloads by SGE",
    healthy: "the same inline",
    needs: Needs::Timing,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let shape = Shape { qps: 8, inline: 64, ..kit.shape() };
    kit.rig(&shape)?.run(&Flow { size: 32, inline: healthy, ..Flow::default() }, kit.seconds)
}
