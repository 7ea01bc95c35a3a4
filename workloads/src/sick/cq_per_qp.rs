//! A completion queue for each queue pair, all polled by one thread.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "cq-per-qp",
    fault: "32 queue pairs, each with a completion queue of its own",
    healthy: "all share one",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let shape = Shape { qps: 32, cq_per_qp: !healthy, ..kit.shape() };
    kit.rig(&shape)?.run(&Flow::default(), kit.seconds)
}
