//! Receives posted long after the queue pair can be sent to.

use super::kit::Kit;
use super::{Needs, Program};
use crate::verbs::SendList;
use anyhow::Result;
use std::time::Duration;

/// The program.
pub static PROGRAM: Program = Program {
    name: "receives-after-rtr",
    fault: "receives posted 1.5 s after RTR, the peer sends at once",
    healthy: "posted before the peer sends",
    needs: Needs::Anything,
    environment: None,
    run,
};

/// Longer than the time between two samples of a recording.
const LATE: Duration = Duration::from_millis(1500);

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.unconnected(&kit.shape())?;
    let (qp, peer) = (&rig.qps[0], &rig.peers[0]);
    let receives = || (0..8).try_for_each(|id| peer.post_recv(id, rig.sge(4096, 1024)));
    kit.connect(qp, peer, &kit.shape().wiring)?;
    if healthy {
        receives()?;
    }
    let mut list = SendList::with_capacity(1);
    list.send(0, rig.sge(0, 64));
    list.flag_last(true, false);
    qp.post(&mut list)?;
    kit.idle_for(LATE)?;
    if !healthy {
        receives()?;
    }
    kit.idle_for(kit.seconds.saturating_sub(LATE))
}
