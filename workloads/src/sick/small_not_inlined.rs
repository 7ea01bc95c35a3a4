//! Small payloads that the device must fetch.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "small-not-inlined",
    fault: "32-byte payloads by SGE, one message at a time",
    healthy: "the same inline",
    needs: Needs::Timing,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let shape = Shape { inline: 64, ..kit.shape() };
    let flow = Flow { size: 32, list: 1, signal_every: 1, window: 1, inline: healthy, ..Flow::default() };
    kit.rig(&shape)?.run(&flow, kit.seconds)
}
