//! Two endpoints driven with random operations against a plain model of their memory and queues: every byte and every
//! completion is checked, and each life of a pair ends in a fault.
//!
//! `RNIC_EMU_RANDOM_OPS=1000000` runs as many operations as that instead of a few thousand; `RNIC_EMU_RANDOM_SEED=N`
//! repeats what a failure names.

mod fault;
#[path = "../kit/mod.rs"]
mod kit;
mod operation;
mod rng;
mod side;

use kit::{Link, Options, pair};
use operation::{Request, draw, pieces};
use rng::Rng;
use rnic_emu::abi::{consts::*, *};
use side::Side;
use std::ptr::null_mut;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}: \"{v}\" is not a number")))
}

#[test]
fn every_byte_and_every_completion_is_what_a_plain_model_says() {
    let wanted = setting("RNIC_EMU_RANDOM_OPS").unwrap_or(10_000);
    let first = setting("RNIC_EMU_RANDOM_SEED");
    let mut done = 0;
    let mut faults = std::collections::BTreeMap::<fault::Fault, u64>::new();
    for seed in first.unwrap_or(1).. {
        let (n, fault) = life(seed);
        done += n;
        *faults.entry(fault).or_default() += 1;
        if first.is_some() || done >= wanted {
            break;
        }
    }
    println!("{done} operations, ended by {faults:?}");
}

/// One pair of endpoints from its creation to its fault. Returns the operations done.
fn life(seed: u64) -> (u64, fault::Fault) {
    let mut rng = Rng(seed);
    let mut options = Options { cqe: 512, ..Options::default() };
    options.cap.max_send_wr = rng.pick(&[1, 2, 8, 32, 128]);
    options.cap.max_recv_wr = rng.pick(&[1, 4, 16, 64]);
    let (mut a, mut b) = pair(options, Link::default());
    for end in [&mut a, &mut b] {
        let fill = rng.next();
        kit::other::fill(&mut end.memory, fill);
    }
    let mut sides = [Side::new(a, options), Side::new(b, options)];
    let mut operations = 0;
    for step in 0..200 + rng.below(600) {
        let [a, b] = &mut sides;
        let (us, them) = if rng.one_in(2) { (a, b) } else { (b, a) };
        match rng.below(10) {
            0..=2 => operations += u64::from(receive(&mut rng, us, seed)),
            3..=6 => operations += post(&mut rng, us, them, seed),
            7 => drop(us.reap(true, seed)),
            8 => drop(us.reap(false, seed)),
            _ => us.reap_all(seed),
        }
        if step % 16 == 0 {
            sides.iter().for_each(|s| s.compare(seed, operations));
        }
    }
    for side in &mut sides {
        side.reap_all(seed);
        side.compare(seed, operations);
    }
    let (fault, more) = fault::inject(&mut rng, &mut sides, options, seed);
    for side in &mut sides {
        side.reap_all(seed);
        side.compare(seed, operations);
        if !side.window.is_null() {
            side.free_window();
        }
    }
    (operations + more, fault)
}

/// Posts a receive; it is refused exactly when the queue is full.
fn receive(rng: &mut Rng, side: &mut Side, seed: u64) -> bool {
    let pieces = pieces(rng);
    let wr_id = rng.next();
    let full = side.recv_posted - side.recv_freed >= side.recv_depth;
    let r = side.end.receive(wr_id, &mut side.sges(&pieces));
    assert_eq!(r, if full { libc::ENOMEM } else { 0 }, "seed {seed}");
    if !full {
        side.recvs.push_back((wr_id, pieces, side.recv_posted));
        side.recv_posted += 1;
    }
    !full
}

/// Posts a list of requests; it is refused exactly from where the queue is full. Returns how many were taken.
fn post(rng: &mut Rng, us: &mut Side, them: &mut Side, seed: u64) -> u64 {
    let mut list: Vec<Request> = Vec::new();
    for _ in 0..rng.pick(&[1, 1, 2, 7, 20]) {
        if us.posted - us.freed >= us.depth {
            break;
        }
        let wr_id = rng.next();
        let changes_us = |r: &Request| {
            matches!(r.wr.opcode, IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD)
        };
        let inline_too = !list.iter().any(changes_us);
        list.extend(draw(rng, us, them, wr_id, inline_too));
    }
    let n = list.len();
    let full = us.posted - us.freed >= us.depth;
    if full {
        // One more than fits.
        list.push(Request { wr: kit::request(IBV_WR_SEND, 0), sges: Vec::new() });
    }
    let mut next: *mut ibv_send_wr = null_mut();
    for request in list.iter_mut().rev() {
        request.wr.next = next;
        request.wr.sg_list = request.sges.as_mut_ptr();
        request.wr.num_sge = request.sges.len() as i32;
        next = &mut request.wr;
    }
    if next.is_null() {
        return 0;
    }
    let mut bad = null_mut();
    // SAFETY: a live QP and a valid list.
    let r = unsafe { ((*us.end.context).ops.post_send.expect("filled"))(us.end.qp, next, &mut bad) };
    if full {
        assert_eq!(r, libc::ENOMEM, "seed {seed}: the queue of {} is full", us.depth);
        assert_eq!(bad, &raw mut list[n].wr, "seed {seed}: the first that did not fit");
    } else {
        assert_eq!(r, 0, "seed {seed}");
    }
    n as u64
}
