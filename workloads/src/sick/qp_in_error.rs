//! A broken queue pair that is kept.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "qp-in-error",
    fault: "a queue pair in the error state is kept",
    healthy: "it is destroyed",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut rig = kit.rig(&Shape { qps: 2, ..kit.shape() })?;
    let (broken, peer) = (rig.qps.pop(), rig.peers.pop());
    if let Some(broken) = &broken {
        broken.fail()?;
    }
    if healthy {
        drop((broken, peer));
        return rig.run(&Flow::default(), kit.seconds);
    }
    let done = rig.run(&Flow::default(), kit.seconds);
    drop((broken, peer));
    done
}
