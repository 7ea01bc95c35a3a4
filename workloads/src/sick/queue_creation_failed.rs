//! A queue pair that asks for too much.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use crate::verbs::{Caps, Qp, Transport};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "queue-creation-failed",
    fault: "a send queue deeper than the device allows",
    healthy: "as deep as it allows",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&Shape { cqe: Some(1024), ..kit.shape() })?;
    let most = kit.device.info.max_qp_wr;
    let caps = Caps { send: if healthy { 64 } else { most.saturating_add(1) }, recv: 1, inline: 0 };
    let made = Qp::new(&rig.pd, &rig.cqs[0], &rig.cqs[0], Transport::Rc, caps);
    rig.run(&Flow::default(), kit.seconds)?;
    anyhow::ensure!(made.is_ok() == healthy, "the creation was not answered as it should");
    Ok(())
}
