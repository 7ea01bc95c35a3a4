//! Linked lists of send work requests, built once and posted many times.

use super::ffi::{self, ibv_send_flags, ibv_wr_opcode};
use std::ptr::null_mut;

/// Which atomic, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Write `swap` if the word equals `compare`; the old value is returned either way.
    CompareSwap {
        /// Expected old value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add to the word; the old value is returned.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

/// Work requests in posting order. Storage is reserved up front, so addresses inside the chain stay put.
pub struct SendList {
    wrs: Vec<ffi::ibv_send_wr>,
    sges: Vec<ffi::ibv_sge>,
    capacity: usize,
}

impl SendList {
    /// A list with room for `capacity` requests of one SGE each.
    pub fn with_capacity(capacity: usize) -> SendList {
        SendList { wrs: Vec::with_capacity(capacity), sges: Vec::with_capacity(capacity), capacity }
    }

    /// Forgets all requests, keeping the storage.
    pub fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.wrs.len()
    }

    /// Whether it holds no request.
    pub fn is_empty(&self) -> bool {
        self.wrs.is_empty()
    }

    fn push(&mut self, id: u64, opcode: u32, sge: ffi::ibv_sge) -> &mut ffi::ibv_send_wr {
        assert!(self.wrs.len() < self.capacity, "send list is full");
        self.sges.push(sge);
        self.wrs.push(ffi::ibv_send_wr { wr_id: id, num_sge: 1, opcode, ..Default::default() });
        let last = self.wrs.len() - 1;
        &mut self.wrs[last]
    }

    /// Adds an RDMA WRITE, or WRITE_WITH_IMM when `immediate` is given.
    pub fn write(&mut self, id: u64, sge: ffi::ibv_sge, remote: u64, rkey: u32, immediate: Option<u32>) {
        let opcode = match immediate {
            Some(_) => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        let wr = self.push(id, opcode, sge);
        wr.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: remote, rkey };
        if let Some(value) = immediate {
            wr.__bindgen_anon_1.imm_data = value.to_be();
        }
    }

    /// Adds a SEND.
    pub fn send(&mut self, id: u64, sge: ffi::ibv_sge) {
        self.push(id, ibv_wr_opcode::IBV_WR_SEND, sge);
    }

    /// Adds an RDMA READ.
    pub fn read(&mut self, id: u64, sge: ffi::ibv_sge, remote: u64, rkey: u32) {
        let wr = self.push(id, ibv_wr_opcode::IBV_WR_RDMA_READ, sge);
        wr.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: remote, rkey };
    }

    /// Adds an atomic on the eight bytes at `remote`, which must be 8-byte aligned.
    pub fn atomic(&mut self, id: u64, sge: ffi::ibv_sge, remote: u64, rkey: u32, what: Atomic) {
        let (opcode, compare_add, swap) = match what {
            Atomic::CompareSwap { compare, swap } => {
                (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, compare, swap)
            }
            Atomic::FetchAdd { add } => (ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, add, 0),
        };
        let wr = self.push(id, opcode, sge);
        wr.wr.atomic =
            ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: remote, compare_add, swap, rkey };
    }

    /// Sets flags on the request added last.
    pub fn flag_last(&mut self, signaled: bool, inline: bool) {
        if let Some(wr) = self.wrs.last_mut() {
            wr.send_flags |= if signaled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
            wr.send_flags |= if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        }
    }

    /// Links the requests into one chain and returns its head; null when empty.
    pub(super) fn chain(&mut self) -> *mut ffi::ibv_send_wr {
        let wrs = self.wrs.as_mut_ptr();
        for (at, sge) in self.sges.iter_mut().enumerate() {
            let last = at + 1 == self.wrs.len();
            self.wrs[at].sg_list = sge;
            // SAFETY: `at + 1` is within the vector unless this is the last request.
            self.wrs[at].next = if last { null_mut() } else { unsafe { wrs.add(at + 1) } };
        }
        if self.wrs.is_empty() { null_mut() } else { wrs }
    }

    /// The requests, for counting those that were accepted.
    pub(super) fn wrs(&self) -> &[ffi::ibv_send_wr] {
        &self.wrs
    }

    pub(super) fn sges(&self) -> &[ffi::ibv_sge] {
        &self.sges
    }
}
