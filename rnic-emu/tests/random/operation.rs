//! Random operations, applied to the model as they are made.

use crate::kit::{self, BUFFER};
use crate::rng::Rng;
use crate::side::{Piece, Side, Want};
use rnic_emu::abi::{consts::*, *};

const SGES: usize = 4;
const QUARTER: usize = BUFFER / SGES;

/// A request with its scatter/gather list.
pub struct Request {
    pub wr: ibv_send_wr,
    pub sges: Vec<ibv_sge>,
}

/// Pieces of a buffer that do not overlap: each lies in a quarter of its own.
pub fn pieces(rng: &mut Rng) -> Vec<Piece> {
    let most = rng.pick(&[0, 1, 3, 8, 16, 100, 1000, 4097, 9000]);
    let turn = rng.below(SGES);
    (0..rng.below(SGES + 1))
        .map(|i| {
            let n = rng.below(most + 1);
            ((i + turn) % SGES * QUARTER + rng.below(QUARTER - n + 1), n as u32)
        })
        .collect()
}

pub fn total(pieces: &[Piece]) -> u32 {
    pieces.iter().map(|p| p.1).sum()
}

/// A random operation of `us` on `them`: changes the model as the operation must change the world. `None` if the one
/// drawn is not possible now. `inline_too`: nothing earlier in the same list changes our memory, which inline data is
/// copied from when it is posted, before any of the list is done.
pub fn draw(rng: &mut Rng, us: &mut Side, them: &mut Side, wr_id: u64, inline_too: bool) -> Option<Request> {
    let opcode = rng.pick(&[
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_SEND_WITH_INV,
        IBV_WR_RDMA_READ,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_BIND_MW,
        IBV_WR_LOCAL_INV,
    ]);
    let mut wr = kit::request(opcode, wr_id);
    let mut ours = pieces(rng);
    let mut n = total(&ours);
    let imm = rng.next() as u32;
    let mut byte_len = None;
    let mut wc_opcode = IBV_WC_SEND;
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
            let (at, rkey) = target(rng, them, n as usize)?;
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: them.end.addr(at), rkey };
            if opcode == IBV_WR_RDMA_READ {
                let bytes = them.mem[at..at + n as usize].to_vec();
                us.scatter(&ours, &bytes);
                (wc_opcode, byte_len) = (IBV_WC_RDMA_READ, Some(n));
            } else {
                if opcode == IBV_WR_RDMA_WRITE_WITH_IMM {
                    wr.imm_data = imm;
                    take(them, IBV_WC_RECV_RDMA_WITH_IMM, n, Some(imm), IBV_WC_WITH_IMM)?;
                }
                let bytes = us.gather(&ours);
                them.mem[at..at + bytes.len()].copy_from_slice(&bytes);
                wc_opcode = IBV_WC_RDMA_WRITE;
            }
        }
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => {
            if total(&them.recvs.front()?.1) < n {
                return None;
            }
            let (imm, flags) = match opcode {
                IBV_WR_SEND => (None, 0),
                IBV_WR_SEND_WITH_IMM => (Some(imm), IBV_WC_WITH_IMM),
                _ => {
                    them.open.take()?;
                    (Some(them.window_key), IBV_WC_WITH_INV)
                }
            };
            wr.imm_data = imm.unwrap_or(0);
            let into = take(them, IBV_WC_RECV, n, imm, flags)?;
            let bytes = us.gather(&ours);
            them.scatter(&into, &bytes);
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            ours = vec![(rng.below(BUFFER - 8), 8)];
            n = 8;
            let (mut at, rkey) = target(rng, them, 16)?;
            at += (8 - them.end.addr(at) as usize % 8) % 8;
            let old = u64::from_ne_bytes(them.mem[at..at + 8].try_into().expect("eight bytes"));
            let compare_add = if rng.one_in(2) { old } else { rng.next() };
            let swap = rng.next();
            wr.wr.atomic = ibv_send_wr_atomic { remote_addr: them.end.addr(at), compare_add, swap, rkey };
            let new = match opcode {
                IBV_WR_ATOMIC_FETCH_AND_ADD => old.wrapping_add(compare_add),
                _ if old == compare_add => swap,
                _ => old,
            };
            them.mem[at..at + 8].copy_from_slice(&new.to_ne_bytes());
            us.scatter(&ours, &old.to_ne_bytes());
            byte_len = Some(8);
            wc_opcode =
                if opcode == IBV_WR_ATOMIC_FETCH_AND_ADD { IBV_WC_FETCH_ADD } else { IBV_WC_COMP_SWAP };
        }
        IBV_WR_BIND_MW => {
            if us.open.is_some() {
                return None;
            }
            ours.clear();
            let (key, len) = (us.window_key, 1 + rng.below(BUFFER / 2));
            let at = rng.below(BUFFER - len);
            wr.bind_mw = ibv_send_wr_bind {
                mw: us.window,
                rkey: key & !0xff | key.wrapping_add(1) & 0xff,
                bind_info: ibv_mw_bind_info {
                    mr: us.end.mr,
                    addr: us.end.addr(at),
                    length: len as u64,
                    mw_access_flags: IBV_ACCESS_REMOTE_WRITE
                        | IBV_ACCESS_REMOTE_READ
                        | IBV_ACCESS_REMOTE_ATOMIC,
                },
            };
            us.window_key = key & !0xff | key.wrapping_add(1) & 0xff;
            us.open = Some((at, len));
            wc_opcode = IBV_WC_BIND_MW;
        }
        _ => {
            us.open.take()?;
            ours.clear();
            wr.imm_data = us.window_key;
            wc_opcode = IBV_WC_LOCAL_INV;
        }
    }
    let inlines = matches!(
        opcode,
        IBV_WR_RDMA_WRITE
            | IBV_WR_RDMA_WRITE_WITH_IMM
            | IBV_WR_SEND
            | IBV_WR_SEND_WITH_IMM
            | IBV_WR_SEND_WITH_INV
    );
    // A queue full of requests nobody asked a completion for is full for ever.
    let last_place = us.posted + 1 - us.freed >= us.depth && us.want_sent.is_empty();
    let signalled = last_place || rng.one_in(2);
    wr.send_flags = if signalled { IBV_SEND_SIGNALED } else { 0 };
    wr.send_flags |= if rng.one_in(4) { IBV_SEND_FENCE } else { 0 };
    wr.send_flags |= if rng.one_in(4) { IBV_SEND_SOLICITED } else { 0 };
    wr.send_flags |= if inline_too && inlines && n <= 64 && rng.one_in(2) { IBV_SEND_INLINE } else { 0 };
    us.posted += 1;
    if signalled {
        let want = Want {
            wr_id,
            status: IBV_WC_SUCCESS,
            opcode: wc_opcode,
            byte_len,
            imm: None,
            flags: 0,
            frees: us.posted,
        };
        us.want_sent.push_back(want);
    }
    Some(Request { wr, sges: us.sges(&ours) })
}

/// Where a request to `them` may go, and with which key: the region's, or the window's while it is open.
fn target(rng: &mut Rng, them: &Side, n: usize) -> Option<(usize, u32)> {
    match them.open {
        Some((at, len)) if rng.one_in(2) => {
            (len >= n).then(|| (at + rng.below(len - n + 1), them.window_key))
        }
        _ => Some((rng.below(BUFFER - n + 1), them.end.lkey())),
    }
}

/// Uses up the oldest receive of `them`.
fn take(them: &mut Side, opcode: u32, n: u32, imm: Option<u32>, flags: u32) -> Option<Vec<Piece>> {
    let (wr_id, into, number) = them.recvs.pop_front()?;
    them.want_received.push_back(Want {
        wr_id,
        status: IBV_WC_SUCCESS,
        opcode,
        byte_len: Some(n),
        imm,
        flags,
        frees: number + 1,
    });
    Some(into)
}
