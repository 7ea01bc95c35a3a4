//! How the life of a pair ends.

use crate::kit::{self, BUFFER, Options, remote, request};
use crate::rng::Rng;
use crate::side::{Side, failed};
use rnic_emu::abi::consts::*;
use rnic_emu::control as c;
use std::ptr::null_mut;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Nothing,
    UnknownKey,
    OutOfBounds,
    OwnKeyUnknown,
    MessageTooLong,
    NobodyReceives,
    RegionDeregistered,
    WindowClosed,
    PeerReset,
    PeerDestroyed,
}

const ALL: [Fault; 10] = [
    Fault::Nothing,
    Fault::UnknownKey,
    Fault::OutOfBounds,
    Fault::OwnKeyUnknown,
    Fault::MessageTooLong,
    Fault::NobodyReceives,
    Fault::RegionDeregistered,
    Fault::WindowClosed,
    Fault::PeerReset,
    Fault::PeerDestroyed,
];

const ID: u64 = 0xfa01;

/// Injects a fault into a pair with nothing under way, and puts what must follow into the model. Returns the requests
/// posted, too.
pub fn inject(rng: &mut Rng, sides: &mut [Side; 2], options: Options, seed: u64) -> (Fault, u64) {
    let [a, b] = sides;
    let (us, them) = if rng.one_in(2) { (a, b) } else { (b, a) };
    let mut fault = rng.pick(&ALL);
    // What needs a receive, or none, takes the other fault where there are none, or some.
    fault = match fault {
        Fault::MessageTooLong if them.recvs.is_empty() => Fault::NobodyReceives,
        Fault::NobodyReceives if !them.recvs.is_empty() => Fault::MessageTooLong,
        other => other,
    };
    if fault == Fault::Nothing || us.posted - us.freed >= us.depth {
        return (Fault::Nothing, 0);
    }
    let opcode = rng.pick(&[IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ]);
    let mut wr = remote(opcode, ID, them.end.addr(0), them.end.lkey());
    // An error completes a request that asked for no completion, too.
    wr.send_flags = rng.pick(&[0, IBV_SEND_SIGNALED]);
    let mut sge = us.end.sge(0, 8);
    let mut status = IBV_WC_REM_ACCESS_ERR;
    match fault {
        Fault::Nothing => {}
        Fault::UnknownKey => wr.wr.rdma.rkey = them.end.lkey() ^ 0xff,
        Fault::OutOfBounds => wr.wr.rdma.remote_addr = them.end.addr(BUFFER) - 7,
        Fault::OwnKeyUnknown => {
            sge.lkey ^= 0xff;
            status = IBV_WC_LOC_PROT_ERR;
        }
        Fault::MessageTooLong => {
            let room = crate::operation::total(&them.recvs[0].1);
            wr.opcode = IBV_WR_SEND;
            sge.length = room + 1;
            status = IBV_WC_REM_INV_REQ_ERR;
            let (wr_id, _, number) = them.recvs.pop_front().expect("checked");
            them.want_received.push_back(failed(wr_id, IBV_WC_LOC_LEN_ERR, number + 1));
        }
        Fault::NobodyReceives => {
            wr.opcode = IBV_WR_SEND;
            status = IBV_WC_RNR_RETRY_EXC_ERR;
        }
        Fault::RegionDeregistered => {
            them.free_window();
            // SAFETY: a live region, forgotten here.
            assert_eq!(unsafe { c::mr::dereg_mr(them.end.mr) }, 0);
            them.end.mr = null_mut();
        }
        Fault::WindowClosed => wr.wr.rdma.rkey = stale_window(them),
        Fault::PeerReset => {
            them.end.to_error();
            them.flush_receives();
            them.reap_all(seed);
            status = IBV_WC_RETRY_EXC_ERR;
        }
        Fault::PeerDestroyed => {
            // SAFETY: a live QP; another takes its place so that there is one to destroy at the end.
            unsafe {
                assert_eq!(c::qp::destroy_qp(them.end.qp), 0);
                them.end.qp = kit::create_qp(them.end.pd, them.end.send_cq, them.end.recv_cq, options);
            }
            // Its receives went with it, without completions.
            them.recvs.clear();
            status = IBV_WC_RETRY_EXC_ERR;
        }
    }
    assert_eq!(us.end.post(wr, &mut [sge]), 0, "seed {seed}: {fault:?}");
    us.posted += 1;
    us.want_sent.push_back(failed(ID, status, us.posted));
    us.flush_receives();
    assert!(us.reap(true, seed), "the request that failed");
    // Whatever is posted now is flushed.
    let mut posted = 1;
    for id in 0..rng.below(4) as u64 {
        if us.posted - us.freed < us.depth {
            assert_eq!(us.end.post(request(IBV_WR_SEND, id), &mut []), 0, "seed {seed}: {fault:?}");
            us.posted += 1;
            us.want_sent.push_back(failed(id, IBV_WC_WR_FLUSH_ERR, us.posted));
            posted += 1;
        }
    }
    assert_eq!(us.end.query().qp_state, IBV_QPS_ERR, "seed {seed}: {fault:?}");
    match fault {
        Fault::OwnKeyUnknown | Fault::NobodyReceives => them.end.to_error(),
        Fault::PeerReset | Fault::PeerDestroyed => return (fault, posted),
        _ => assert_eq!(them.end.query().qp_state, IBV_QPS_ERR, "seed {seed}: {fault:?}"),
    }
    them.flush_receives();
    (fault, posted)
}

/// A key the window had before, or will have: it opens nothing now.
fn stale_window(them: &Side) -> u32 {
    let key = them.window_key;
    if them.open.is_some() { key ^ 0x80 } else { key }
}
