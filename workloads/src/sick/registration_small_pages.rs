//! A large region on 4 KiB pages.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::memory::{Buffer, MemoryKind};
use crate::verbs::{Access, Mr};
use anyhow::Result;
use std::rc::Rc;

/// The program.
pub static PROGRAM: Program = Program {
    name: "registration-small-pages",
    fault: "256 MiB registered on 4 KiB pages",
    healthy: "on 2 MiB pages",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    let memory = if healthy { MemoryKind::Thp } else { MemoryKind::Aligned };
    let buffer = Rc::new(Buffer::allocate(memory, 256 << 20)?);
    let _region = Mr::register(&rig.pd, &buffer, Access::Local)?;
    rig.run(&Flow::default(), kit.seconds)
}
