//! This process' own side: real objects, real requests, real completions.

use crate::kit::{self, End, Link, Options};
use crate::operation::Drawn;
use crate::peer::{HALF, Memory, Peer, SIDE};
use crate::side::Piece;
use rnic_emu::abi::{consts::*, *};
use rnic_emu::control as c;
use std::ptr::null_mut;

/// The endpoint with a region for each half and a window.
pub struct Party {
    pub end: End,
    base: u64,
    pub active: *mut ibv_mr,
    pub passive: *mut ibv_mr,
    pub window: *mut ibv_mw,
    /// Where the peer's passive half lies, in its addresses, and its key.
    their_base: u64,
    their_key: u32,
}

/// How patient the two are: for ever with a receive that is still to be posted, briefly with a dead peer.
const LINK: Link = Link {
    path_mtu: 3,
    timeout: 8,
    retry_cnt: 2,
    rnr_retry: 7,
    min_rnr_timer: 1,
    max_rd_atomic: 4,
    max_dest_rd_atomic: 4,
};

impl Party {
    /// Makes the objects and connects them with the peer's. Returns the keys of both windows, too.
    pub fn connected(peer: &mut Peer, memory: &Memory, options: Options) -> (Self, [u32; 2]) {
        let end = End::new(Options { memory: 64, ..options });
        let base = memory.at(peer.me);
        // SAFETY: both halves are mapped and outlive the regions; a live PD.
        let (active, passive, window) = unsafe {
            let half = |i| std::slice::from_raw_parts_mut(base.add(i * HALF), HALF);
            let active = kit::register(end.pd, half(0), IBV_ACCESS_LOCAL_WRITE);
            let passive = kit::register(end.pd, half(1), options.access);
            (active, passive, c::mw::alloc_mw(end.pd, IBV_MW_TYPE_2))
        };
        // SAFETY: live objects.
        let (passive_key, window_key) = unsafe { ((*passive).rkey, (*window).rkey) };
        let hello = peer.meet(&format!("{} {} {passive_key} {window_key}", end.qpn(), base as u64));
        let theirs: Vec<u64> = hello.split(' ').map(|w| w.parse().expect("a number")).collect();
        let psn = |side: usize| [0xff_fff0, 77][side];
        end.to_init();
        end.to_rtr(theirs[0] as u32, psn(1 - peer.me), LINK);
        end.to_rts(psn(peer.me), LINK);
        let mut windows = [window_key; 2];
        windows[1 - peer.me] = theirs[3] as u32;
        let party = Self {
            end,
            base: base as u64,
            active,
            passive,
            window,
            their_base: theirs[1] + HALF as u64,
            their_key: theirs[2] as u32,
        };
        // Nobody sends before the other is ready to receive.
        peer.meet("connected");
        (party, windows)
    }

    fn sges(&self, half: usize, pieces: &[Piece]) -> Vec<ibv_sge> {
        // SAFETY: live regions, while requests name them.
        let lkey = unsafe { [self.active, self.passive][half].as_ref().map_or(0, |mr| mr.lkey) };
        let sge =
            |&(at, length): &Piece| ibv_sge { addr: self.base + (half * HALF + at) as u64, length, lkey };
        pieces.iter().map(sge).collect()
    }

    /// Posts a receive into pieces of the passive half.
    pub fn receive(&self, wr_id: u64, pieces: &[Piece]) -> i32 {
        self.end.receive(wr_id, &mut self.sges(1, pieces))
    }

    /// Posts requests as one list.
    pub fn post(&self, list: Vec<Drawn>) {
        let mut requests: Vec<_> = list.into_iter().map(|d| self.request(d)).collect();
        let mut next: *mut ibv_send_wr = null_mut();
        for (wr, sges) in requests.iter_mut().rev() {
            (wr.next, wr.sg_list, wr.num_sge) = (next, sges.as_mut_ptr(), sges.len() as i32);
            next = wr;
        }
        if next.is_null() {
            return;
        }
        // SAFETY: a live QP and a valid list.
        let r =
            unsafe { (*self.end.context).ops.post_send.expect("filled")(self.end.qp, next, &mut null_mut()) };
        assert_eq!(r, 0, "there is room");
    }

    /// A request to the place and key it is meant for: key 0 stands for the peer's region.
    fn request(&self, d: Drawn) -> (ibv_send_wr, Vec<ibv_sge>) {
        let mut wr = d.wr;
        let remote_addr = self.their_base + d.remote_at as u64;
        let or_region = |key| if key == 0 { self.their_key } else { key };
        // SAFETY: the opcode says which part is filled in.
        unsafe {
            match wr.opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let rkey = or_region(wr.wr.atomic.rkey);
                    wr.wr.atomic = ibv_send_wr_atomic { remote_addr, rkey, ..wr.wr.atomic };
                }
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                    wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey: or_region(wr.wr.rdma.rkey) };
                }
                _ => {}
            }
        }
        (wr, self.sges(0, &d.local))
    }

    /// A binding of the window to part of the passive half, under its next key.
    pub fn bind(&self, wr_id: u64, key: u32, (at, len): (usize, usize)) -> ibv_send_wr {
        let mut wr = kit::request(IBV_WR_BIND_MW, wr_id);
        let access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        wr.bind_mw = ibv_send_wr_bind {
            mw: self.window,
            rkey: key,
            bind_info: ibv_mw_bind_info {
                mr: self.passive,
                addr: self.base + (HALF + at) as u64,
                length: len as u64,
                mw_access_flags: access,
            },
        };
        wr
    }

    /// Takes the region of the passive half away. Closes the window, which would keep it, first.
    pub fn deregister_passive(&mut self) {
        self.free_window();
        // SAFETY: a live region, forgotten here.
        assert_eq!(unsafe { c::mr::dereg_mr(self.passive) }, 0);
        self.passive = null_mut();
    }

    fn free_window(&mut self) {
        if !self.window.is_null() {
            // SAFETY: a live window, forgotten here.
            assert_eq!(unsafe { c::mw::dealloc_mw(self.window) }, 0);
            self.window = null_mut();
        }
    }

    /// Takes everything down; objects still in use would refuse.
    pub fn close(mut self) {
        self.free_window();
        for mr in [self.active, self.passive] {
            if !mr.is_null() {
                // SAFETY: a live region, used no more.
                assert_eq!(unsafe { c::mr::dereg_mr(mr) }, 0);
            }
        }
    }
}

/// Fills the memory of a side.
pub fn fill(memory: &Memory, side: usize, bytes: [&[u8]; 2]) {
    assert_eq!(bytes[0].len() + bytes[1].len(), SIDE);
    // SAFETY: inside the mapping; nothing else uses it yet.
    unsafe {
        memory.at(side).copy_from_nonoverlapping(bytes[0].as_ptr(), HALF);
        memory.at(side).add(HALF).copy_from_nonoverlapping(bytes[1].as_ptr(), HALF);
    }
}
