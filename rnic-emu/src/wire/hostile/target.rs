//! The process under attack: queue pairs and regions of its own, and memory that must stay as it is.

use super::Knowledge;
use crate::abi::{consts::*, *};
use crate::control;
use crate::device::{context::DeviceContext, gid};
use std::ptr::null_mut;

/// Bytes of each part of the memory.
pub const REGION: usize = 1 << 16;
/// What every byte is at first.
pub const UNTOUCHED: u8 = 0x11;
/// The number of the hostile peer's QP, beside its slot.
pub const PEER: u32 = 0x20;

/// Three regions between pages that nobody may touch: the outer two are this process' own, the one in the middle is
/// open to the peer.
pub struct Target {
    memory: *mut u8,
    pub qp: *mut ibv_qp,
    pub cq: *mut ibv_cq,
    ours: *mut ibv_mr,
    open: *mut ibv_mr,
}

const GUARD: usize = 1 << 20;

impl Target {
    /// A QP with its memory.
    pub fn new() -> Self {
        let context = DeviceContext::open(0).expect("a device");
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: a fresh mapping; objects just made, used by one test alone.
        unsafe {
            let none = libc::mmap(
                null_mut(),
                2 * GUARD + 3 * REGION,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(none, libc::MAP_FAILED);
            let memory = none.cast::<u8>().add(GUARD);
            assert_eq!(libc::mprotect(memory.cast(), 3 * REGION, libc::PROT_READ | libc::PROT_WRITE), 0);
            memory.write_bytes(UNTOUCHED, 3 * REGION);
            let pd = control::pd::alloc_pd(context);
            let cq = control::cq::create_cq(context, 8192, null_mut(), null_mut(), 0);
            let mut init: ibv_qp_init_attr = std::mem::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
            init.cap = ibv_qp_cap {
                max_recv_wr: 4096,
                max_recv_sge: 1,
                max_send_wr: 64,
                max_send_sge: 2,
                ..init.cap
            };
            let qp = control::qp::create_qp(pd, &mut init);
            let open = memory.add(REGION);
            let open = control::mr::reg_mr(pd, open.cast(), REGION, open as u64, access);
            // The whole, for this process' own use.
            let ours =
                control::mr::reg_mr(pd, memory.cast(), 3 * REGION, memory as u64, IBV_ACCESS_LOCAL_WRITE);
            assert!(!qp.is_null() && !open.is_null() && !ours.is_null());
            Self { memory, qp, cq, ours, open }
        }
    }

    /// What the peer at QP `peer_qpn` is told, and what it must not know.
    pub fn knowledge(&self, peer_qpn: u32) -> Knowledge {
        // SAFETY: live objects.
        let (qpn, key, foreign_key) = unsafe { ((*self.qp).qp_num, (*self.open).rkey, (*self.ours).rkey) };
        Knowledge {
            qpn,
            peer_qpn,
            key,
            base: self.address(REGION),
            foreign_key,
            foreign_base: self.address(0),
        }
    }

    pub fn address(&self, offset: usize) -> u64 {
        self.memory as u64 + offset as u64
    }

    /// A piece of the region that is open to the peer.
    pub fn sge(&self, offset: usize, length: u32) -> ibv_sge {
        // SAFETY: a live region.
        ibv_sge { addr: self.address(REGION + offset), length, lkey: unsafe { (*self.ours).lkey } }
    }

    /// Takes the QP (back) to RTS, connected with `peer_qpn`, both sides counting from 0, with receives posted.
    pub fn ready(&self, peer_qpn: u32) {
        let mut a = ibv_qp_attr {
            port_num: 1,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
            path_mtu: 3,
            dest_qp_num: peer_qpn,
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            timeout: 8,
            retry_cnt: 1,
            rnr_retry: 1,
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
        let rts =
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (IBV_QPS_RESET, 0),
            (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            (IBV_QPS_RTR, rtr),
            (IBV_QPS_RTS, rts),
        ] {
            a.qp_state = state;
            // SAFETY: a live QP.
            assert_eq!(unsafe { control::qp::modify_qp(self.qp, &mut a, IBV_QP_STATE | mask) }, 0);
        }
        let mut sge = self.sge(0, 5000);
        let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        for _ in 0..8 {
            // SAFETY: a live QP and a valid request.
            assert_eq!(unsafe { crate::post::recv::post_recv(self.qp, &mut wr, &mut null_mut()) }, 0);
        }
    }

    /// Posts one request; its result lands in the region that is open to the peer.
    pub fn post(&self, wr_id: u64, opcode: u32, length: u32) {
        // SAFETY: plain data; all zeroes is a valid request.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        let mut sge = self.sge(0, length);
        (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, IBV_SEND_SIGNALED);
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        wr.wr.atomic = ibv_send_wr_atomic { remote_addr: 4096, compare_add: 1, swap: 2, rkey: 77 };
        if !matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: 4096, rkey: 77 };
        }
        // SAFETY: a live QP and a valid request.
        assert_eq!(unsafe { crate::post::send::post_send(self.qp, &mut wr, &mut null_mut()) }, 0);
    }

    /// One completion if there is one.
    pub fn poll(&self) -> Option<ibv_wc> {
        let mut wc = ibv_wc::default();
        // SAFETY: a live CQ and context.
        let n = unsafe { ((*(*self.cq).context).ops.poll_cq.expect("filled"))(self.cq, 1, &mut wc) };
        assert!(n >= 0, "poll_cq: {n}");
        (n == 1).then_some(wc)
    }

    /// The parts of memory nobody opened are as they were.
    pub fn assert_untouched(&self, what: &str) {
        for part in [0, 2 * REGION] {
            // SAFETY: inside the mapping; nobody writes there, as is seen here.
            let bytes = unsafe { std::slice::from_raw_parts(self.memory.add(part), REGION) };
            assert!(
                bytes.iter().all(|b| *b == UNTOUCHED),
                "{what}: memory outside the region was written to"
            );
        }
    }

    /// Whether the open region has been written to. Then takes that back.
    pub fn was_written(&self) -> bool {
        // SAFETY: inside the mapping.
        unsafe {
            let open = self.memory.add(REGION);
            let written = (0..REGION).any(|i| open.add(i).read_volatile() != UNTOUCHED);
            open.write_bytes(UNTOUCHED, REGION);
            written
        }
    }
}
