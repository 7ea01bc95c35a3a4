//! An event for every message, at a high rate.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use crate::verbs::{WC_BATCH, ffi};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "events-at-high-rate",
    fault: "waits for an event after every message",
    healthy: "polls",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&Shape { events: !healthy, ..kit.shape() })?;
    let Some(channel) = &rig.channel else { return rig.run(&Flow::default(), kit.seconds) };
    let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        crate::interrupt::check()?;
        rig.cqs[0].arm()?;
        rig.post_one(&Flow::default())?;
        if channel.wait(Duration::from_secs(1)) {
            channel.take()?;
        }
        while rig.cqs[0].poll(&mut completions)? > 0 {}
    }
    Ok(())
}
