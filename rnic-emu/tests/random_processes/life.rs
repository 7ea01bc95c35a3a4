//! One pair from its connection to its fault, as each of the two processes lives it.

use crate::fault::{self, Fault};
use crate::kit::{self, Options};
use crate::operation::{Among, Drawn, draw, pieces};
use crate::party::{self, Party};
use crate::peer::{HALF, Memory, Peer};
use crate::rng::Rng;
use crate::side::Side;
use rnic_emu::abi::{consts::*, ibv_cq, ibv_wc};
use std::time::{Duration, Instant};

/// How a life ended.
pub struct End {
    pub operations: u64,
    pub fault: Fault,
    pub done_before_fault: u64,
    pub under_way: u64,
}

/// Everything both processes know.
pub struct World {
    pub rng: Rng,
    pub seed: u64,
    pub peer: Peer,
    pub memory: Memory,
    pub sides: [Side; 2],
    pub party: Party,
    pub operations: u64,
}

/// Lives it.
pub fn run(mut peer: Peer, memory: Memory, seed: u64) -> End {
    let mut rng = Rng(seed);
    let mut options = Options { cqe: 512, ..Options::default() };
    options.cap.max_send_wr = rng.pick(&[8, 32, 128]);
    options.cap.max_recv_wr = rng.pick(&[1, 4, 16, 64]);
    let cap = options.cap;
    let mut sides = [1, 2].map(|i| Side::new(cap.max_send_wr, cap.max_recv_wr, seed * 2 + i));
    let me = peer.me;
    party::fill(&memory, me, [&sides[me].active, &sides[me].passive]);
    let (party, windows) = Party::connected(&mut peer, &memory, options);
    for (side, key) in sides.iter_mut().zip(windows) {
        side.window_key = key;
    }
    let mut world = World { rng, seed, peer, memory, sides, party, operations: 0 };
    for _ in 0..200 + world.rng.below(400) {
        world.step();
    }
    world.settle();
    let end = fault::end(&mut world);
    let World { party, peer, .. } = world;
    party.close();
    peer.end();
    end
}

impl World {
    fn step(&mut self) {
        let side = self.rng.below(2);
        match self.rng.below(20) {
            0..=5 => self.receive(side),
            6..=13 => {
                let list = self.rng.pick(&[1, 1, 2, 7, 20]);
                let drawn = self.draw(side, list, Among::Everything);
                if side == self.peer.me {
                    self.party.post(drawn);
                }
            }
            14 | 15 => drop(self.reap(side, true)),
            16 => drop(self.reap(side, false)),
            17 | 18 => self.reap_all(side),
            _ => {
                self.settle();
                if self.rng.one_in(2) {
                    let side = self.rng.below(2);
                    self.turn_window(side);
                }
            }
        }
    }

    /// `side` posts a receive, if there is room for one.
    pub fn receive(&mut self, side: usize) {
        let (pieces, wr_id) = (pieces(&mut self.rng), self.rng.next());
        let s = &mut self.sides[side];
        let room = s.can_receive();
        if side == self.peer.me {
            let r = self.party.receive(wr_id, &pieces);
            assert_eq!(r, if room { 0 } else { libc::ENOMEM }, "seed {}", self.seed);
        }
        if room {
            s.recvs.push_back((wr_id, pieces, s.recv_posted));
            s.recv_posted += 1;
        }
    }

    /// Up to `n` requests of `side`, as many as its queue has room for.
    pub fn draw(&mut self, side: usize, n: usize, among: Among) -> Vec<Drawn> {
        let [a, b] = &mut self.sides;
        let (us, them) = if side == 0 { (a, b) } else { (b, a) };
        let mut list = Vec::new();
        for _ in 0..n {
            if us.has_room() {
                list.extend(draw(&mut self.rng, us, them, among));
            }
        }
        self.operations += list.len() as u64;
        list
    }

    /// `side` takes the next completion of one of its queues, which must be the one expected. False if none must come.
    fn reap(&mut self, side: usize, sends: bool) -> bool {
        let ours = side == self.peer.me;
        let seed = self.seed;
        let (end, s) = (&self.party.end, &mut self.sides[side]);
        if sends {
            let Some(want) = s.want_sent.pop_front() else { return false };
            if ours {
                let wc = wait(end, end.send_cq, seed);
                check_sent(&wc, &want, seed);
            }
            s.freed = want.frees;
            s.done = want.frees;
        } else {
            let Some(want) = s.want_received.pop_front() else { return false };
            if ours {
                let wc = wait(end, end.recv_cq, seed);
                check_received(&wc, &want, seed);
            }
            s.recv_freed = want.frees;
        }
        true
    }

    fn reap_all(&mut self, side: usize) {
        while self.reap(side, true) {}
        while self.reap(side, false) {}
    }

    /// Waits until nothing is under way in either direction, and compares every byte of ours.
    pub fn settle(&mut self) {
        for side in 0..2 {
            while self.reap(side, true) {}
            if self.sides[side].posted > self.sides[side].freed {
                // The last requests asked for no completion: one more that does tells that they are done.
                let wr_id = self.rng.next();
                self.marker(side, wr_id);
            }
        }
        (0..2).for_each(|side| self.reap_all(side));
        self.peer.meet("settled");
        let (me, seed) = (self.peer.me, self.seed);
        let end = &self.party.end;
        let extra = (kit::poll(end.send_cq), kit::poll(end.recv_cq));
        assert!(extra.0.is_none() && extra.1.is_none(), "seed {seed}: {extra:?} was not expected");
        let bytes = self.memory.copy(me);
        let model = [&self.sides[me].active, &self.sides[me].passive].map(Vec::as_slice).concat();
        if let Some(at) = (0..bytes.len()).find(|&i| bytes[i] != model[i]) {
            panic!(
                "seed {seed}, side {me}: byte {at} is {}, not {}, by operation {}",
                bytes[at], model[at], self.operations
            );
        }
        self.peer.meet("compared");
    }

    /// A WRITE of nothing that asks for a completion.
    fn marker(&mut self, side: usize, wr_id: u64) {
        let s = &mut self.sides[side];
        s.posted += 1;
        let wc_opcode = IBV_WC_RDMA_WRITE;
        s.want_sent.push_back(crate::side::Posted {
            wr_id,
            opcode: IBV_WR_RDMA_WRITE,
            signalled: true,
            wc_opcode,
            byte_len: None,
            frees: s.posted,
            theirs: Vec::new(),
            own: Vec::new(),
        });
        if side == self.peer.me {
            assert_eq!(self.party.end.post(kit::request(IBV_WR_RDMA_WRITE, wr_id), &mut []), 0);
        }
    }

    /// Opens the window of `side`, or closes it. Nothing is under way.
    pub fn turn_window(&mut self, side: usize) {
        let len = 1 + self.rng.below(HALF);
        let at = self.rng.below(HALF - len + 1);
        let s = &mut self.sides[side];
        let key = s.window_key;
        let next = key & !0xff | key.wrapping_add(1) & 0xff;
        let opens = s.open.is_none();
        if opens {
            (s.open, s.window_key) = (Some((at, len)), next);
        } else {
            s.open = None;
        }
        s.posted += 1;
        (s.freed, s.done) = (s.posted, s.posted);
        self.operations += 1;
        if side == self.peer.me {
            let wr = if opens { self.party.bind(1, next, (at, len)) } else { invalidate(1, key) };
            assert_eq!(self.party.end.post(wr, &mut []), 0);
            assert_eq!(self.party.end.sent().status, IBV_WC_SUCCESS, "seed {}", self.seed);
        }
        self.peer.meet("window turned");
    }
}

/// LOCAL_INV of a key.
pub fn invalidate(wr_id: u64, key: u32) -> rnic_emu::abi::ibv_send_wr {
    let mut wr = kit::request(IBV_WR_LOCAL_INV, wr_id);
    wr.imm_data = key;
    wr
}

pub fn check_sent(wc: &ibv_wc, want: &crate::side::Posted, seed: u64) {
    let got = (wc.wr_id, wc.status, wc.opcode);
    assert_eq!(got, (want.wr_id, IBV_WC_SUCCESS, want.wc_opcode), "seed {seed}: {wc:?}");
    assert!(want.byte_len.is_none_or(|n| n == wc.byte_len), "seed {seed}: {wc:?}");
}

pub fn check_received(wc: &ibv_wc, want: &crate::side::Incoming, seed: u64) {
    let got = (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.wc_flags);
    let wanted = (want.wr_id, IBV_WC_SUCCESS, want.opcode, want.byte_len, want.flags);
    assert_eq!(got, wanted, "seed {seed}: {want:?} {wc:?}");
    assert!(want.imm.is_none_or(|i| i == wc.imm_data), "seed {seed}: {want:?} {wc:?}");
}

/// Waits for a completion, at most ten seconds.
fn wait(end: &kit::End, cq: *mut ibv_cq, seed: u64) -> ibv_wc {
    let start = Instant::now();
    loop {
        if let Some(wc) = kit::poll(cq) {
            return wc;
        }
        let state = end.query().qp_state;
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "seed {seed}: no completion came; QP state {state}"
        );
        std::thread::sleep(Duration::from_micros(50));
    }
}
