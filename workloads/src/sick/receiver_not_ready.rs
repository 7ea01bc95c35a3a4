//! A receiver that is slow to post, so that senders are told to come again.

use super::kit::Kit;
use super::{Needs, Program};
use crate::verbs::{SendList, WC_BATCH, ffi};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "receiver-not-ready",
    fault: "a receive is posted 2 ms after the message that needs it",
    healthy: "before it",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    let (qp, peer) = (&rig.qps[0], &rig.peers[0]);
    let mut list = SendList::with_capacity(1);
    let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
    // The first is there in time: what is shown is a receiver that falls behind, not one that begins late.
    let mut in_time = true;
    let end = Instant::now() + kit.seconds;
    while Instant::now() < end {
        if in_time {
            peer.post_recv(0, rig.sge(4096, 1024))?;
        }
        list.clear();
        list.send(0, rig.sge(0, 64));
        list.flag_last(true, false);
        qp.post(&mut list)?;
        kit.idle_for(Duration::from_millis(5))?;
        if !in_time {
            peer.post_recv(0, rig.sge(4096, 1024))?;
        }
        while rig.cqs[0].poll(&mut completions)? == 0 {
            kit.idle_for(Duration::from_millis(5))?;
        }
        while rig.peer_cq.poll(&mut completions)? > 0 {}
        in_time = healthy;
    }
    Ok(())
}
