//! Another buffer registered for every message.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::memory::{Buffer, MemoryKind};
use crate::verbs::{Access, Mr};
use anyhow::Result;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "registration-hot",
    fault: "register and deregister new buffers between messages",
    healthy: "registered once",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    if healthy {
        return rig.run(&Flow::default(), kit.seconds);
    }
    // Kept, so that no address comes twice.
    let mut kept = Vec::new();
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        for _ in 0..8 {
            let buffer = Rc::new(Buffer::allocate(MemoryKind::Aligned, 16 << 10)?);
            drop(Mr::register(&rig.pd, &buffer, Access::Local)?);
            kept.push(buffer);
        }
        rig.run(&Flow::default(), Duration::from_millis(1))?;
    }
    Ok(())
}
