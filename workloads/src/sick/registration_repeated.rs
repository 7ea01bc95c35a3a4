//! The same buffer registered for every message.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::verbs::{Access, Mr};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "registration-repeated",
    fault: "register, write, deregister, of one buffer",
    healthy: "registered once",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        if healthy {
            return rig.run(&Flow::default(), kit.seconds);
        }
        let _region = Mr::register(&rig.pd, rig.local.buffer(), Access::Local)?;
        rig.run(&Flow::default(), Duration::from_millis(1))?;
    }
    Ok(())
}
