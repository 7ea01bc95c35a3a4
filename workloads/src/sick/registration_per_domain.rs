//! Large memory registered in several protection domains.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::memory::{Buffer, MemoryKind};
use crate::verbs::{Access, Mr, Pd};
use anyhow::Result;
use std::rc::Rc;

/// The program.
pub static PROGRAM: Program = Program {
    name: "registration-per-domain",
    fault: "1 GiB registered in three protection domains",
    healthy: "in one",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    let buffer = Rc::new(Buffer::allocate(MemoryKind::Thp, 1 << 30)?);
    let domains: Vec<Pd> =
        (0..if healthy { 1 } else { 3 }).map(|_| Pd::new(&kit.device.context)).collect::<Result<_, _>>()?;
    let _regions: Vec<Mr> = domains
        .iter()
        .map(|domain| Mr::register(domain, &buffer, Access::Local))
        .collect::<Result<_, _>>()?;
    rig.run(&Flow::default(), kit.seconds)
}
