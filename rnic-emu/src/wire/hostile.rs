//! What a peer that breaks every rule can do to us: nothing beyond what its keys open.

use super::in_link::InLink;
use super::memory::{Parts, RING, TOTAL};
use super::packet::{CHUNK, Packet, RC, UC, UD};
use crate::abi::{consts::*, *};
use crate::control;
use crate::device::process::Process;
use crate::device::{context::DeviceContext, gid};
use crate::sys::memfd;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::*;

/// A generator of nonsense, repeatable from its seed.
struct Nonsense(u64);

impl Nonsense {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    /// One of `choices`.
    fn among<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.next() as usize % choices.len()]
    }

    /// Mostly `usual`, now and then one of `others`: nonsense only gets deep when the rest makes sense.
    fn mostly<T: Copy>(&mut self, usual: T, others: &[T]) -> T {
        if self.next().is_multiple_of(24) { self.among(others) } else { usual }
    }
}

const REGION: usize = 1 << 16;
const PEER: u32 = 0x77_0020;

/// A connected QP with receives posted, and a region in the middle of `memory`: (QP, its key).
fn target(memory: &mut [u8]) -> (*mut ibv_qp, u32) {
    let context = DeviceContext::open(0).expect("a device");
    // SAFETY: objects just made, used by this test alone.
    unsafe {
        let pd = control::pd::alloc_pd(context);
        let cq = control::cq::create_cq(context, 4096, null_mut(), null_mut(), 0);
        let mut init: ibv_qp_init_attr = std::mem::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
        init.cap = ibv_qp_cap { max_recv_wr: 4096, max_recv_sge: 1, max_send_wr: 1, ..init.cap };
        let qp = control::qp::create_qp(pd, &mut init);
        let at = memory[REGION..].as_mut_ptr();
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let mr = control::mr::reg_mr(pd, at.cast(), REGION, at as u64, access);
        (qp, (*mr).rkey)
    }
}

/// Takes the QP (back) to RTR, expecting PSN 0 from the peer, with receives posted.
fn ready(qp: *mut ibv_qp, sge: ibv_sge) {
    let mut a = ibv_qp_attr {
        port_num: 1,
        qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
        path_mtu: 3,
        dest_qp_num: PEER,
        max_dest_rd_atomic: 4,
        ..Default::default()
    };
    a.ah_attr.grh.dgid = gid::of_device(0);
    (a.ah_attr.is_global, a.ah_attr.port_num) = (1, 1);
    let rtr = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    for (state, mask) in [
        (IBV_QPS_RESET, 0),
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        (IBV_QPS_RTR, rtr),
    ] {
        a.qp_state = state;
        // SAFETY: a live QP.
        assert_eq!(unsafe { control::qp::modify_qp(qp, &mut a, IBV_QP_STATE | mask) }, 0);
    }
    let mut sge = sge;
    let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
    for _ in 0..8 {
        // SAFETY: a live QP and a valid request.
        assert_eq!(unsafe { crate::post::recv::post_recv(qp, &mut wr, &mut null_mut()) }, 0);
    }
}

/// A peer that writes whatever it likes, headers and indices alike, cannot make us crash or touch memory it holds no
/// key for.
#[test]
fn a_hostile_peer_changes_only_what_its_key_opens() {
    let mut memory = vec![0x11u8; 3 * REGION];
    let base = memory.as_mut_ptr() as u64 + REGION as u64;
    let (qp, key) = target(&mut memory);
    let process = Process::current_or_new().expect("a process");
    // SAFETY: a live QP.
    let qpn = unsafe { (*qp).qp_num };
    let mut broken = 0;
    for seed in 0..400 {
        let mut nonsense = Nonsense(seed * 7919 + 1);
        ready(qp, ibv_sge { addr: base, length: 5000, lkey: key });
        let fd = memfd::create(c"hostile", TOTAL).expect("memfd");
        let theirs = memfd::Shared::map(fd.as_fd(), TOTAL, true).expect("map");
        // SAFETY: the mapping has TOTAL bytes and outlives this round.
        let parts = unsafe { Parts::of(theirs.base()) };
        let (_socket, other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let link = InLink::new(other.into());
        link.adopt(fd);
        // SAFETY: the request ring.
        unsafe { std::ptr::write_bytes(parts.requests, seed as u8 | 0x80, RING) };
        let (mut head, mut psn) = (0u64, 0u32);
        for _ in 0..200 {
            let len = nonsense.among(&[0, 8, 64, 1000]);
            let anything = nonsense.next();
            let far = nonsense.among(&[65_535, u64::MAX, 1 << 16, u64::MAX - 65_536]);
            let packet = Packet {
                kind: nonsense.mostly(RC, &[UC, UD, 0, 1, 200]),
                opcode: nonsense.mostly(nonsense.0 as u8 % 10, &[77, 255]),
                flags: anything as u8,
                device: nonsense.mostly(0, &[1, 255]),
                dst_qpn: nonsense.mostly(qpn, &[0, qpn + 1, anything as u32]),
                src_qpn: nonsense.mostly(PEER, &[0, u32::MAX]),
                psn: nonsense.mostly(psn, &[psn + 1, psn.wrapping_sub(1), u32::MAX]),
                packets: nonsense.mostly(1, &[0, u32::MAX]),
                total: nonsense.mostly(len, &[0, 5000, 70_000, u32::MAX]),
                offset: nonsense.mostly(0, &[len, 16_384, u32::MAX]),
                len: nonsense.mostly(len, &[CHUNK, CHUNK + 1, u32::MAX]),
                rkey: nonsense.mostly(key, &[key ^ 1, u32::MAX, 0]),
                raddr: base
                    .wrapping_add(nonsense.mostly(anything % 8000 / 8 * 8, &[far, 1, far.wrapping_add(1)])),
                imm: anything as u32,
                a: anything,
                b: nonsense.next(),
            };
            psn = (psn + 1) & 0xff_ffff;
            // SAFETY: inside the ring; positions are multiples of a line.
            unsafe { parts.requests.add(head as usize & (RING - 1)).cast::<Packet>().write(packet) };
            let size = 64 + u64::from(packet.len.min(CHUNK)).next_multiple_of(64);
            head += nonsense.mostly(size, &[64, 128, RING as u64]);
            let announced = nonsense.mostly(head, &[head + 1, u64::MAX, 0]);
            parts.control.request_head.0.store(announced, SeqCst);
            let taken = parts.control.answer_head.0.load(SeqCst);
            parts.control.answer_tail.0.store(nonsense.mostly(taken, &[0, u64::MAX, head]), SeqCst);
            link.progress(process);
            if link.socket.is_dead() {
                broken += 1;
                break;
            }
        }
        link.bury();
        link.socket.close();
    }
    assert!(broken > 200, "nonsense ends connections: {broken} of 400");
    let (before, after) = (&memory[..REGION], &memory[2 * REGION..]);
    assert!(before.iter().chain(after).all(|b| *b == 0x11), "outside the region");
    let changed = memory[REGION..2 * REGION].iter().any(|b| *b != 0x11);
    assert!(changed, "some of it was served");
    assert!(process.keys.close(key), "no pin was left behind");
}
