//! Random operations: drawn alike in both processes, applied to the model, and turned into a request by the side that
//! posts them.

use crate::kit;
use crate::peer::HALF;
use crate::rng::Rng;
use crate::side::{Effect, Incoming, Piece, Posted, Side, apply, scatter};
use rnic_emu::abi::{consts::*, *};

const SGES: usize = 4;
const QUARTER: usize = HALF / SGES;

/// What may be drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Among {
    Everything,
    /// Only what goes through the peer's window, which is open.
    WindowOnly,
}

/// A request without the addresses of a particular process.
pub struct Drawn {
    pub wr: ibv_send_wr,
    /// Pieces of the active half.
    pub local: Vec<Piece>,
    /// Where it goes in the peer's passive half.
    pub remote_at: usize,
    pub posted: Posted,
}

/// Pieces of a half that do not overlap: each lies in a quarter of its own.
pub fn pieces(rng: &mut Rng) -> Vec<Piece> {
    let most = rng.pick(&[0, 1, 8, 16, 100, 1000, 4097, 9000, 60_000]);
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

/// A random request of `us` to `them`; `None` if the one drawn is not possible now.
pub fn draw(rng: &mut Rng, us: &mut Side, them: &mut Side, among: Among) -> Option<Drawn> {
    let any = [
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_SEND_WITH_INV,
    ];
    let opcode = rng.pick(if among == Among::WindowOnly { &any[..6] } else { &any });
    let number = us.posted;
    let wr_id = rng.next();
    let mut wr = kit::request(opcode, wr_id);
    let mut local = pieces(rng);
    let atomic = matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD);
    if atomic {
        local = vec![(rng.below(HALF - 8), 8)];
    }
    let n = total(&local);
    let imm = rng.next() as u32;
    let (compare_add, swap) = (rng.next(), rng.next());
    let mut posted = Posted {
        wr_id,
        opcode,
        signalled: true,
        wc_opcode: IBV_WC_SEND,
        byte_len: None,
        frees: number + 1,
        theirs: Effect::new(),
        own: Effect::new(),
    };
    let mut remote_at = 0;
    match opcode {
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
            let into = take(them, IBV_WC_RECV, n, imm, flags, number)?;
            posted.theirs = scatter(&into, &us.gather(&local));
        }
        _ => {
            let (at, key) = target(rng, them, if atomic { 16 } else { n as usize }, among)?;
            remote_at = if atomic { at.next_multiple_of(8) } else { at };
            match opcode {
                IBV_WR_RDMA_READ => {
                    let bytes = them.passive[at..at + n as usize].to_vec();
                    posted.own = scatter(&local, &bytes);
                    (posted.wc_opcode, posted.byte_len) = (IBV_WC_RDMA_READ, Some(n));
                }
                _ if atomic => {
                    let bytes = them.passive[remote_at..remote_at + 8].try_into().expect("eight bytes");
                    let old = u64::from_ne_bytes(bytes);
                    let add = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
                    let compare_add = if compare_add.is_multiple_of(2) { old } else { compare_add };
                    let new = match add {
                        true => old.wrapping_add(compare_add),
                        false if old == compare_add => swap,
                        false => old,
                    };
                    wr.wr.atomic = ibv_send_wr_atomic { remote_addr: 0, compare_add, swap, rkey: key };
                    posted.theirs = vec![(remote_at, new.to_ne_bytes().to_vec())];
                    posted.own = scatter(&local, &old.to_ne_bytes());
                    posted.byte_len = Some(8);
                    posted.wc_opcode = if add { IBV_WC_FETCH_ADD } else { IBV_WC_COMP_SWAP };
                }
                _ => {
                    if opcode == IBV_WR_RDMA_WRITE_WITH_IMM {
                        wr.imm_data = imm;
                        take(them, IBV_WC_RECV_RDMA_WITH_IMM, n, Some(imm), IBV_WC_WITH_IMM, number)?;
                    }
                    posted.theirs = scatter(&[(at, n)], &us.gather(&local));
                    posted.wc_opcode = IBV_WC_RDMA_WRITE;
                }
            }
            if !atomic {
                wr.wr.rdma.rkey = key;
            }
        }
    }
    flags(rng, us, &mut wr, &mut posted, n);
    apply(&mut them.passive, &posted.theirs);
    apply(&mut us.active, &posted.own);
    us.posted += 1;
    if posted.changes_own() {
        (us.last_read, us.last_unfenced) = (us.posted, us.posted);
    }
    if posted.signalled {
        us.want_sent.push_back(posted.clone());
    }
    Some(Drawn { wr, local, remote_at, posted })
}

/// Signalled or not, fenced or not, inline or not: as the rules of verbs allow.
fn flags(rng: &mut Rng, us: &mut Side, wr: &mut ibv_send_wr, posted: &mut Posted, n: u32) {
    let draws = [rng.one_in(2), rng.one_in(4), rng.one_in(4), rng.one_in(2)];
    let reads_memory = !posted.changes_own();
    // What is sent may have to be read first: wait for it.
    let fence = draws[1] || reads_memory && us.last_unfenced > us.done;
    if fence {
        us.last_unfenced = 0;
    }
    // Inline data is taken when posting: nothing that changes it may be under way.
    let inline = draws[3] && reads_memory && n <= 64 && us.last_read <= us.done;
    // A queue full of requests nobody asked a completion for is full for ever.
    let last_place = us.posted + 1 - us.freed >= us.depth && us.want_sent.is_empty();
    posted.signalled = last_place || draws[0];
    wr.send_flags = [
        (posted.signalled, IBV_SEND_SIGNALED),
        (fence, IBV_SEND_FENCE),
        (draws[2], IBV_SEND_SOLICITED),
        (inline, IBV_SEND_INLINE),
    ]
    .into_iter()
    .filter_map(|(on, flag)| on.then_some(flag))
    .sum();
}

/// Where a request to `them` may go, and with which key: the region's (0 here), or the window's while it is open.
fn target(rng: &mut Rng, them: &Side, n: usize, among: Among) -> Option<(usize, u32)> {
    match them.open {
        Some((at, len)) if among == Among::WindowOnly || rng.one_in(2) => {
            (len >= n).then(|| (at + rng.below(len - n + 1), them.window_key))
        }
        _ => (among != Among::WindowOnly).then(|| (rng.below(HALF - n + 1), 0)),
    }
}

/// Uses up the oldest receive of `them`.
fn take(
    them: &mut Side,
    opcode: u32,
    byte_len: u32,
    imm: Option<u32>,
    flags: u32,
    request: u64,
) -> Option<Vec<Piece>> {
    let (wr_id, into, number) = them.recvs.pop_front()?;
    let frees = number + 1;
    them.want_received.push_back(Incoming { wr_id, opcode, byte_len, imm, flags, frees, request });
    Some(into)
}
