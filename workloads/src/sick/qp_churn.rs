//! A queue pair for every message.

use super::kit::{Flow, Kit, Rig, Shape};
use super::{Needs, Program};
use crate::verbs::{Caps, Qp, SendList, Transport, WC_BATCH, ffi};
use anyhow::Result;
use std::time::Instant;

/// The program.
pub static PROGRAM: Program = Program {
    name: "qp-churn",
    fault: "connects, writes one message and disconnects, over and over",
    healthy: "writes over a connection that stays",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&Shape { cqe: Some(1024), ..kit.shape() })?;
    if healthy {
        return rig.run(&Flow::default(), kit.seconds);
    }
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        one_message(kit, &rig)?;
    }
    Ok(())
}

/// A message by queue pairs of its own.
fn one_message(kit: &Kit, rig: &Rig) -> Result<()> {
    let caps = Caps { send: 16, recv: 1, inline: 0 };
    let make = || Qp::new(&rig.pd, &rig.cqs[0], &rig.cqs[0], Transport::Rc, caps);
    let (qp, peer) = (make()?, make()?);
    kit.connect(&qp, &peer, &kit.shape().wiring)?;
    let mut list = SendList::with_capacity(1);
    list.write(0, rig.sge(0, 256), rig.remote.addr(), rig.remote.rkey(), None);
    list.flag_last(true, false);
    qp.post(&mut list)?;
    let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
    while rig.cqs[0].poll(&mut completions)? == 0 {
        crate::interrupt::check()?;
    }
    Ok(())
}
