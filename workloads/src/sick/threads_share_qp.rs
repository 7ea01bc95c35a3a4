//! Several threads post to one queue pair.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::verbs::{SendList, WC_BATCH, ffi};
use anyhow::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The program.
pub static PROGRAM: Program = Program {
    name: "threads-share-qp",
    fault: "two threads post to one queue pair",
    healthy: "one thread does",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    if healthy {
        return rig.run(&Flow::default(), kit.seconds);
    }
    let end = Instant::now() + kit.seconds;
    let (sge, addr, rkey) = (rig.sge(0, 256), rig.remote.addr(), rig.remote.rkey());
    let (lkey, near) = (sge.lkey, sge.addr);
    let shared = rig.qps[0].shared();
    let under_way = AtomicU64::new(0);
    std::thread::scope(|threads| -> Result<()> {
        for _ in 0..2 {
            threads.spawn(|| {
                let mut list = SendList::with_capacity(16);
                while Instant::now() < end {
                    if under_way.load(Ordering::Relaxed) > 4 {
                        std::thread::yield_now();
                        continue;
                    }
                    list.clear();
                    for at in 0..16 {
                        let sge = ffi::ibv_sge { addr: near + at * 512, length: 256, lkey };
                        list.write(at, sge, addr + at * 512, rkey, None);
                    }
                    list.flag_last(true, false);
                    under_way.fetch_add(1, Ordering::Relaxed);
                    if !shared.post(&mut list) {
                        under_way.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
        while Instant::now() < end || under_way.load(Ordering::Relaxed) > 0 {
            let found = rig.cqs[0].poll(&mut completions)? as u64;
            under_way.fetch_sub(found, Ordering::Relaxed);
            if Instant::now() > end + std::time::Duration::from_secs(5) {
                break;
            }
        }
        Ok(())
    })
}
