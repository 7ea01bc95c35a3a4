//! The device waits while the program works on the last result.

use super::kit::{Flow, Kit, Rig};
use super::{Needs, Program};
use crate::verbs::{WC_BATCH, ffi};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "host-gap-dominates",
    fault: "20 µs of work between each completion and the next post",
    healthy: "posts the next request before it works on the last",
    needs: Needs::Anything,
    environment: None,
    run,
};

/// The work on each result.
const WORK: Duration = Duration::from_micros(20);

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    let flow = Flow::default();
    let end = Instant::now() + kit.seconds;
    if healthy {
        rig.post_one(&flow)?;
    }
    while Instant::now() < end {
        crate::interrupt::check()?;
        if !healthy {
            rig.post_one(&flow)?;
        }
        completed(&rig)?;
        if healthy {
            rig.post_one(&flow)?;
        }
        let until = Instant::now() + WORK;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

/// Waits for the one request that is under way.
fn completed(rig: &Rig) -> Result<()> {
    let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
    while rig.cqs[0].poll(&mut completions)? == 0 {
        crate::interrupt::check()?;
    }
    Ok(())
}
