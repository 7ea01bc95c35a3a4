//! One buffer registered once per connection.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use crate::verbs::{Access, Mr};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "registration-per-connection",
    fault: "eight connections, each with its own registration of the same buffer",
    healthy: "one registration for all",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&Shape { qps: 8, ..kit.shape() })?;
    let own = if healthy { 0 } else { 8 };
    let _regions: Vec<Mr> = (0..own)
        .map(|_| Mr::register(&rig.pd, rig.local.buffer(), Access::Local))
        .collect::<Result<_, _>>()?;
    rig.run(&Flow::default(), kit.seconds)
}
