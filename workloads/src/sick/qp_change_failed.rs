//! An attribute that is set too late.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "qp-change-failed",
    fault: "the ACK timeout is changed after RTS, and the refusal ignored",
    healthy: "it is set on the way to RTS",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    if !healthy {
        let refused = rig.qps[0].change_timeout(18);
        anyhow::ensure!(refused.is_err(), "this device allows what it should refuse");
    }
    rig.run(&Flow::default(), kit.seconds)
}
