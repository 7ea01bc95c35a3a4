//! A processor polls for messages that rarely come.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use crate::verbs::{WC_BATCH, ffi};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "busy-poll-idle",
    fault: "busy polling for 100 completions a second",
    healthy: "waits for events",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&Shape { events: true, ..kit.shape() })?;
    let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        rig.cqs[0].arm()?;
        rig.post_one(&Flow::default())?;
        let next = Instant::now() + Duration::from_millis(10);
        while Instant::now() < next {
            crate::interrupt::check()?;
            if healthy {
                if let Some(channel) = &rig.channel
                    && channel.wait(Duration::from_millis(10))
                {
                    channel.take()?;
                }
                while rig.cqs[0].poll(&mut completions)? > 0 {}
            } else {
                rig.cqs[0].poll(&mut completions)?;
            }
        }
        // The event is taken in either case, so that the queue can go.
        if !healthy
            && let Some(channel) = &rig.channel
            && channel.wait(Duration::ZERO)
        {
            channel.take()?;
        }
    }
    Ok(())
}
