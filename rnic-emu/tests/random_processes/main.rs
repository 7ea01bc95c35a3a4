//! Two processes driven with random operations against a plain model of their memory and queues, each life of the pair
//! ended by a fault while requests are under way: the peer killed, a region deregistered, a window taken away or made
//! smaller, a queue pair put into error.
//!
//! Both processes draw the same operations from the same seed; each does its own side's and checks its own completions
//! and bytes. `RNIC_EMU_RANDOM_OPS=300000` runs as many operations as that instead of a few thousand;
//! `RNIC_EMU_RANDOM_SEED=N` repeats what a failure names.

mod fault;
mod judge;
#[path = "../kit/mod.rs"]
mod kit;
mod life;
mod operation;
mod party;
mod peer;
#[path = "../random/rng.rs"]
mod rng;
mod side;

use std::collections::BTreeMap;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}: \"{v}\" is not a number")))
}

#[test]
#[ignore = "main of the other process in this test"]
fn other_process() {
    if let Some((peer, memory, seed)) = peer::ours() {
        life::run(peer, memory, seed);
    }
}

#[test]
fn two_processes_agree_with_a_plain_model_until_a_fault_and_after_it() {
    let wanted = setting("RNIC_EMU_RANDOM_OPS").unwrap_or(6_000);
    let first = setting("RNIC_EMU_RANDOM_SEED");
    let (mut done, mut lives) = (0, 0);
    let mut faults = BTreeMap::<fault::Fault, [u64; 3]>::new();
    for seed in first.unwrap_or(1).. {
        let (peer, memory) = peer::start(seed);
        let end = life::run(peer, memory, seed);
        done += end.operations;
        lives += 1;
        let of = faults.entry(end.fault).or_default();
        of[0] += 1;
        of[1] += end.done_before_fault;
        of[2] += end.under_way;
        if first.is_some() || done >= wanted && faults.len() == fault::ALL.len() {
            break;
        }
    }
    println!(
        "{done} operations in {lives} lives; ended by (times, requests done before it, requests posted):"
    );
    for (fault, counts) in &faults {
        println!("  {fault:?}: {counts:?}");
    }
}

/// Once more in a process of its own: the profile is a setting that both processes find in their environment.
#[test]
fn they_do_so_on_a_device_that_takes_a_nics_time_too() {
    if std::env::var_os("RNIC_EMU_PROFILE").is_some() {
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().expect("own path"))
        .args(["two_processes_agree_with_a_plain_model_until_a_fault_and_after_it", "--exact"])
        .env("RNIC_EMU_PROFILE", "cx5-like")
        .env("RNIC_EMU_SPEED", "1/4")
        .status()
        .expect("run it");
    assert!(status.success(), "{status}");
}
