//! A peer that is away for moments: what is sent meanwhile is lost, and sent again.

use super::kit::{Flow, Kit, Rig, Shape};
use super::{Needs, Program};
use crate::interrupt;
use crate::verbs::{Address, SendList, WC_BATCH, ffi};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// The program.
pub static PROGRAM: Program = Program {
    name: "latency-with-loss",
    fault: "its peer is away for 120 ms now and again, and what is sent meanwhile is sent again",
    healthy: "the peer is there all the time",
    needs: Needs::Anything,
    environment: None,
    run,
};

/// Messages between two absences, a millisecond apart: samples are taken with an absence in them and without.
const BETWEEN: u64 = 300;
/// Messages sent during one.
const MEANWHILE: u64 = 30;

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let mut shape = kit.shape();
    // 34 ms, eight times: longer than an absence, and soon sent again when it is over.
    (shape.wiring.retry.timeout, shape.wiring.retry.count) = (13, 7);
    let rig = kit.rig(&shape)?;
    let end = Instant::now() + kit.seconds;
    let mut sent = 0;
    while Instant::now() < end {
        for _ in 0..BETWEEN {
            send(&rig, sent)?;
            sent += 1;
            done(&rig, 1)?;
            pause();
        }
        if healthy {
            continue;
        }
        rig.peers[0].reset()?;
        for _ in 0..MEANWHILE {
            send(&rig, sent)?;
            sent += 1;
            (0..4).for_each(|_| pause());
        }
        come_back(kit, &rig, &shape, sent - MEANWHILE)?;
        done(&rig, MEANWHILE)?;
    }
    Ok(())
}

/// The peer goes on where it was: each message so far took one packet.
fn come_back(kit: &Kit, rig: &Rig, shape: &Shape, served: u64) -> Result<()> {
    let port = &kit.device.port;
    let from = rig.qps[0].address(port);
    let next = Address { psn: (from.psn + served as u32) & 0xff_ffff, ..from };
    rig.peers[0].wire(port, &next, &shape.wiring)?;
    Ok(())
}

fn send(rig: &Rig, number: u64) -> Result<()> {
    let mut list = SendList::with_capacity(1);
    let size = Flow::default().size;
    list.write(number, rig.sge(0, size), rig.remote.addr(), rig.remote.rkey(), None);
    list.flag_last(true, false);
    rig.qps[0].post(&mut list)?;
    Ok(())
}

fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// Waits until so many are done.
fn done(rig: &Rig, messages: u64) -> Result<()> {
    let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
    let mut left = messages;
    while left > 0 {
        interrupt::check()?;
        let found = rig.cqs[0].poll(&mut completions)?;
        ensure!(completions[..found].iter().all(|c| c.error().is_none()), "a message failed");
        left = left.saturating_sub(found as u64);
        if found == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(())
}
