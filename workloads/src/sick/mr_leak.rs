//! Regions that nobody gives back.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::memory::{Buffer, MemoryKind};
use crate::verbs::{Access, Mr};
use anyhow::Result;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "mr-leak",
    fault: "eight regions for every burst of messages, kept for ever",
    healthy: "a pool, registered at the start",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    let new = || -> Result<Mr> {
        let buffer = Rc::new(Buffer::allocate(MemoryKind::Aligned, 4096)?);
        Ok(Mr::register(&rig.pd, &buffer, Access::Local)?)
    };
    let mut regions: Vec<Mr> = Vec::new();
    if healthy {
        for _ in 0..300 {
            regions.push(new()?);
        }
        return rig.run(&Flow::default(), kit.seconds);
    }
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        for _ in 0..8 {
            regions.push(new()?);
        }
        rig.run(&Flow::default(), Duration::from_millis(4))?;
    }
    // Ended as leaking programs end: without giving anything back.
    regions.into_iter().for_each(std::mem::forget);
    Ok(())
}
