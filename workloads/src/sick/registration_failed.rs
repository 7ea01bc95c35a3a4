//! A registration that is refused.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::memory::Buffer;
use crate::verbs::{Access, Mr};
use anyhow::Result;
use std::rc::Rc;

/// The program.
pub static PROGRAM: Program = Program {
    name: "registration-failed",
    fault: "remote write is asked for without local write",
    healthy: "local write is",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    let buffer = Rc::new(Buffer::untouched(1 << 20)?);
    let access = if healthy { Access::Local } else { Access::Contradictory };
    let refused = Mr::register(&rig.pd, &buffer, access).is_err();
    rig.run(&Flow::default(), kit.seconds)?;
    anyhow::ensure!(refused != healthy, "the registration was not answered as it should");
    Ok(())
}
