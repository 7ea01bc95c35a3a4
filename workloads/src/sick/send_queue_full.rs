//! More posted than the queue holds.

use super::kit::{Flow, Kit, Shape};
use super::{Needs, Program};
use crate::verbs::{SendList, WC_BATCH, ffi};
use anyhow::Result;
use std::time::Instant;

/// The program.
pub static PROGRAM: Program = Program {
    name: "send-queue-full",
    fault: "posts until it is refused, then polls",
    healthy: "keeps count",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&Shape { depth: 32, ..kit.shape() })?;
    if healthy {
        return rig.run(&Flow { window: 32, ..Flow::default() }, kit.seconds);
    }
    let mut list = SendList::with_capacity(16);
    let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        crate::interrupt::check()?;
        list.clear();
        for at in 0..16 {
            list.write(at, rig.sge(at * 512, 256), rig.remote.addr() + at * 512, rig.remote.rkey(), None);
        }
        list.flag_last(true, false);
        if rig.qps[0].post(&mut list).is_err() {
            rig.cqs[0].poll(&mut completions)?;
        }
    }
    Ok(())
}
