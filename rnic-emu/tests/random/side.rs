//! One endpoint and what the plain model says about it.

use crate::kit::{self, BUFFER, End, Options};
use rnic_emu::abi::{consts::*, *};
use rnic_emu::control as c;
use std::collections::VecDeque;
use std::ptr::null_mut;

/// A piece of a side's buffer.
pub type Piece = (usize, u32);

/// A completion that must come.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub byte_len: Option<u32>,
    pub imm: Option<u32>,
    pub flags: u32,
    /// Queue slots that polling it frees, counted from the first ever posted.
    pub frees: u64,
}

/// An endpoint beside its model.
pub struct Side {
    pub end: End,
    /// What its buffer must hold.
    pub mem: Vec<u8>,
    pub depth: u64,
    pub posted: u64,
    pub freed: u64,
    pub recv_depth: u64,
    pub recv_posted: u64,
    pub recv_freed: u64,
    /// Receives not used yet, with the number of each.
    pub recvs: VecDeque<(u64, Vec<Piece>, u64)>,
    pub want_sent: VecDeque<Want>,
    pub want_received: VecDeque<Want>,
    pub window: *mut ibv_mw,
    /// The key its window has once everything posted so far is done.
    pub window_key: u32,
    /// Where its window lies while open.
    pub open: Option<(usize, usize)>,
}

impl Side {
    pub fn new(end: End, options: Options) -> Self {
        // SAFETY: a live PD.
        let window = unsafe { c::mw::alloc_mw(end.pd, IBV_MW_TYPE_2) };
        assert!(!window.is_null());
        Self {
            mem: end.memory.clone(),
            end,
            depth: u64::from(options.cap.max_send_wr),
            posted: 0,
            freed: 0,
            recv_depth: u64::from(options.cap.max_recv_wr),
            recv_posted: 0,
            recv_freed: 0,
            recvs: VecDeque::new(),
            want_sent: VecDeque::new(),
            want_received: VecDeque::new(),
            window,
            // SAFETY: a live window.
            window_key: unsafe { (*window).rkey },
            open: None,
        }
    }

    pub fn free_window(&mut self) {
        // SAFETY: a live window, used no more.
        assert_eq!(unsafe { c::mw::dealloc_mw(self.window) }, 0);
        self.window = null_mut();
    }

    pub fn sges(&self, pieces: &[Piece]) -> Vec<ibv_sge> {
        pieces.iter().map(|&(at, n)| self.end.sge(at, n)).collect()
    }

    pub fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(|&(at, n)| &self.mem[at..at + n as usize]).copied().collect()
    }

    pub fn scatter(&mut self, pieces: &[Piece], mut bytes: &[u8]) {
        for &(at, n) in pieces {
            let now = bytes.len().min(n as usize);
            self.mem[at..at + now].copy_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
        }
        assert!(bytes.is_empty());
    }

    /// Takes the next completion of one queue, which must be the one expected; false if none must have come yet.
    pub fn reap(&mut self, sends: bool, seed: u64) -> bool {
        let wants = if sends { &mut self.want_sent } else { &mut self.want_received };
        let cq = if sends { self.end.send_cq } else { self.end.recv_cq };
        let Some(want) = wants.pop_front() else {
            let extra = kit::poll(cq);
            assert!(extra.is_none(), "seed {seed}: {extra:?} was not expected (sends: {sends})");
            return false;
        };
        let wc = kit::wait(cq);
        let got = (wc.wr_id, wc.status, wc.qp_num);
        assert_eq!(got, (want.wr_id, want.status, self.end.qpn()), "seed {seed}: {want:?} against {wc:?}");
        if want.status == IBV_WC_SUCCESS {
            assert_eq!((wc.opcode, wc.wc_flags), (want.opcode, want.flags), "seed {seed}: {want:?} {wc:?}");
            assert!(want.byte_len.is_none_or(|n| n == wc.byte_len), "seed {seed}: {want:?} {wc:?}");
            assert!(want.imm.is_none_or(|i| i == wc.imm_data), "seed {seed}: {want:?} {wc:?}");
        }
        if sends {
            self.freed = want.frees;
        } else {
            self.recv_freed = want.frees;
        }
        true
    }

    pub fn reap_all(&mut self, seed: u64) {
        while self.reap(true, seed) {}
        while self.reap(false, seed) {}
    }

    /// Every byte of the buffer is what the model says.
    pub fn compare(&self, seed: u64, after: u64) {
        if let Some(at) = (0..BUFFER).find(|&i| self.mem[i] != self.end.memory[i]) {
            let state = self.end.query().qp_state;
            let next = (kit::poll(self.end.send_cq), kit::poll(self.end.recv_cq));
            panic!(
                "state {state}, next completions {next:?}; seed {seed}: byte {at} is {}, not {}, by operation {after}",
                self.end.memory[at], self.mem[at]
            );
        }
    }

    /// The model of a queue pair in error: every receive left is flushed, in order.
    pub fn flush_receives(&mut self) {
        for (wr_id, _, number) in std::mem::take(&mut self.recvs) {
            self.want_received.push_back(failed(wr_id, IBV_WC_WR_FLUSH_ERR, number + 1));
        }
    }
}

/// A completion in error: only its identifier, status and QP say anything.
pub fn failed(wr_id: u64, status: u32, frees: u64) -> Want {
    Want { wr_id, status, opcode: 0, byte_len: None, imm: None, flags: 0, frees }
}
