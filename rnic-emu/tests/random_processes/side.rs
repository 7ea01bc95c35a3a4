//! What the plain model knows about one side.

use crate::peer::HALF;
use rnic_emu::abi::consts::*;
use std::collections::VecDeque;

/// A piece of a half: (offset in it, bytes).
pub type Piece = (usize, u32);

/// Bytes put somewhere in a half: (offset in it, bytes).
pub type Effect = Vec<(usize, Vec<u8>)>;

/// A request that was posted.
#[derive(Clone)]
pub struct Posted {
    pub wr_id: u64,
    pub opcode: u32,
    pub signalled: bool,
    /// What its completion must say.
    pub wc_opcode: u32,
    pub byte_len: Option<u32>,
    /// Slots of the queue that are free once its completion has been polled.
    pub frees: u64,
    /// What it changes of the peer's passive half.
    pub theirs: Effect,
    /// What it changes of its own active half: the result of a READ or atomic.
    pub own: Effect,
}

impl Posted {
    /// Whether it is a READ or an atomic.
    pub fn changes_own(&self) -> bool {
        matches!(self.opcode, IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD)
    }
}

/// A receive completion that must come.
#[derive(Clone, Debug)]
pub struct Incoming {
    pub wr_id: u64,
    pub opcode: u32,
    pub byte_len: u32,
    pub imm: Option<u32>,
    pub flags: u32,
    pub frees: u64,
    /// Which of the sender's requests brings it, counted from the first ever.
    pub request: u64,
}

/// One side of the pair.
pub struct Side {
    /// What its halves must hold once everything posted is done.
    pub active: Vec<u8>,
    pub passive: Vec<u8>,
    pub depth: u64,
    pub posted: u64,
    pub freed: u64,
    pub recv_depth: u64,
    pub recv_posted: u64,
    pub recv_freed: u64,
    /// Receives not used yet, with the number of each.
    pub recvs: VecDeque<(u64, Vec<Piece>, u64)>,
    pub want_sent: VecDeque<Posted>,
    pub want_received: VecDeque<Incoming>,
    /// Requests from this one on may find an earlier READ or atomic unfinished; those before are known to be done.
    pub done: u64,
    /// Number of the last READ or atomic posted, plus one.
    pub last_read: u64,
    /// The same, but those before a fence do not count.
    pub last_unfenced: u64,
    /// The key its window has once everything posted so far is done.
    pub window_key: u32,
    /// Where in its passive half the window lies while open.
    pub open: Option<(usize, usize)>,
}

impl Side {
    pub fn new(depth: u32, recv_depth: u32, fill: u64) -> Self {
        let mut bytes = vec![0; 2 * HALF];
        crate::kit::other::fill(&mut bytes, fill);
        let passive = bytes.split_off(HALF);
        Self {
            active: bytes,
            passive,
            depth: depth.into(),
            posted: 0,
            freed: 0,
            recv_depth: recv_depth.into(),
            recv_posted: 0,
            recv_freed: 0,
            recvs: VecDeque::new(),
            want_sent: VecDeque::new(),
            want_received: VecDeque::new(),
            done: 0,
            last_read: 0,
            last_unfenced: 0,
            window_key: 0,
            open: None,
        }
    }

    pub fn has_room(&self) -> bool {
        self.posted - self.freed < self.depth
    }

    pub fn can_receive(&self) -> bool {
        self.recv_posted - self.recv_freed < self.recv_depth
    }

    /// The bytes at `pieces` of the active half.
    pub fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(|&(at, n)| &self.active[at..at + n as usize]).copied().collect()
    }
}

/// `bytes` laid out over `pieces`, as far as they go.
pub fn scatter(pieces: &[Piece], bytes: &[u8]) -> Effect {
    let mut rest = bytes;
    let mut runs = Vec::new();
    for &(at, n) in pieces {
        let (now, later) = rest.split_at(rest.len().min(n as usize));
        if !now.is_empty() {
            runs.push((at, now.to_vec()));
        }
        rest = later;
    }
    assert!(rest.is_empty(), "the model let a message be longer than its receive");
    runs
}

/// Applies runs of bytes to a half.
pub fn apply(half: &mut [u8], effect: &[(usize, Vec<u8>)]) {
    for (at, bytes) in effect {
        half[*at..at + bytes.len()].copy_from_slice(bytes);
    }
}
