//! Queue pairs that nobody destroys.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use crate::verbs::{Caps, Qp, Transport};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "qp-leak",
    fault: "a new queue pair for every reconnect, the old one kept",
    healthy: "the old one destroyed",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&Shape { cqe: Some(16_384), ..kit.shape() })?;
    let caps = Caps { send: 16, recv: 1, inline: 0 };
    let mut kept = Vec::new();
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        let make = || Qp::new(&rig.pd, &rig.cqs[0], &rig.cqs[0], Transport::Rc, caps);
        let next = (make()?, make()?);
        kit.connect(&next.0, &next.1, &kit.shape().wiring)?;
        if !healthy {
            kept.push(next);
        }
        rig.run(&Flow::default(), Duration::from_millis(40))?;
    }
    kept.into_iter().for_each(std::mem::forget);
    Ok(())
}
