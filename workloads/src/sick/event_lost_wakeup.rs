//! Waiting though completions are there.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use crate::verbs::{WC_BATCH, ffi};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "event-lost-wakeup",
    fault: "one completion taken per event, however many came",
    healthy: "polls until nothing is left",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&Shape { events: true, ..kit.shape() })?;
    let Some(channel) = &rig.channel else { return Ok(()) };
    let mut batch = [ffi::ibv_wc::default(); WC_BATCH];
    let end = Instant::now() + kit.seconds;
    rig.cqs[0].arm()?;
    while Instant::now() < end {
        crate::interrupt::check()?;
        std::thread::sleep(Duration::from_millis(1));
        // Two messages in a row: both may have completed by the time of the wake-up.
        rig.post_one(&Flow::default())?;
        rig.post_one(&Flow::default())?;
        let mut left = 2;
        while left > 0 && Instant::now() < end {
            if !channel.wait(Duration::from_millis(30)) {
                // A program without this time limit hangs here.
                break;
            }
            channel.take()?;
            rig.cqs[0].arm()?;
            if healthy {
                loop {
                    match rig.cqs[0].poll(&mut batch)? {
                        0 => break,
                        n => left -= n.min(left),
                    }
                }
            } else {
                left -= rig.cqs[0].poll_one()?;
            }
        }
    }
    Ok(())
}
