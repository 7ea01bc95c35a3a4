//! RDMAV_HUGEPAGES_SAFE with many registrations.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::memory::{Buffer, MemoryKind};
use crate::verbs::{Access, Mr};
use anyhow::Result;
use std::rc::Rc;

/// The program.
pub static PROGRAM: Program = Program {
    name: "hugepages-safe-slow",
    fault: "200 registrations with RDMAV_HUGEPAGES_SAFE set",
    healthy: "without it",
    needs: Needs::Anything,
    environment: Some(("RDMAV_HUGEPAGES_SAFE", "1")),
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    // The fault is in the environment.
    let _ = healthy;
    let rig = kit.rig(&kit.shape())?;
    let mut regions = Vec::new();
    for _ in 0..200 {
        let buffer = Rc::new(Buffer::allocate(MemoryKind::Aligned, 4096)?);
        regions.push(Mr::register(&rig.pd, &buffer, Access::Local)?);
    }
    rig.run(&Flow::default(), kit.seconds)
}
