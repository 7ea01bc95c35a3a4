//! Sends of which none is signalled.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::verbs::SendList;
use anyhow::Result;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "nothing-signalled",
    fault: "no send is signalled: the queue fills, and every post fails",
    healthy: "one in 16 is signalled",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    if healthy {
        return rig.run(&Flow::default(), kit.seconds);
    }
    let mut list = SendList::with_capacity(1);
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        crate::interrupt::check()?;
        list.clear();
        list.write(0, rig.sge(0, 64), rig.remote.addr(), rig.remote.rkey(), None);
        // Tries for ever, as programs do that take ENOMEM for a passing trouble.
        if rig.qps[0].post(&mut list).is_err() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}
