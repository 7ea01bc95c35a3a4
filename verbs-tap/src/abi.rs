//! The part of libibverbs' ABI the tap touches: stable since IBVERBS_1.1, from rdma-core's `verbs.h`.
//!
//! Pthread types come from libc, so that offsets are right on every target. Function pointers are words here: they are
//! replaced while other threads call through them, which needs atomic access.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicUsize;

// Read by the BPF programs, too.
pub use probe_common::verbs::{Sge, Wc};

/// `struct ibv_context_ops`: 32 function pointers.
pub const OPS: usize = 32;
/// Places in it.
pub mod op {
    pub const POLL_CQ: usize = 11;
    pub const REQ_NOTIFY_CQ: usize = 12;
    pub const POST_SRQ_RECV: usize = 20;
    pub const POST_SEND: usize = 25;
    pub const POST_RECV: usize = 26;
}

/// `struct ibv_context`.
#[repr(C)]
pub struct Context {
    pub device: *mut c_void,
    pub ops: [AtomicUsize; OPS],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    /// All ones where a `verbs_context` lies before this struct.
    pub abi_compat: usize,
}

/// Words of `struct verbs_context` before its `ibv_context`, counted backwards: the struct grows at its front.
pub mod before_context {
    /// Size of the whole struct, in bytes.
    pub const SIZE: usize = 1;
    pub const CREATE_QP_EX: usize = 7;
    pub const CREATE_CQ_EX: usize = 15;
}

/// Common start of `ibv_qp`, `ibv_cq`, `ibv_srq`, `ibv_pd`: the context.
#[repr(C)]
pub struct Object {
    pub context: *mut Context,
}

/// `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Object,
    pub send_cq: *mut c_void,
    pub recv_cq: *mut c_void,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// Places in [`QpEx::calls`].
pub mod wr {
    pub const ATOMIC_CMP_SWP: usize = 0;
    pub const ATOMIC_FETCH_ADD: usize = 1;
    pub const BIND_MW: usize = 2;
    pub const LOCAL_INV: usize = 3;
    pub const RDMA_READ: usize = 4;
    pub const RDMA_WRITE: usize = 5;
    pub const RDMA_WRITE_IMM: usize = 6;
    pub const SEND: usize = 7;
    pub const SEND_IMM: usize = 8;
    pub const SEND_INV: usize = 9;
    pub const SEND_TSO: usize = 10;
    pub const SET_INLINE_DATA: usize = 13;
    pub const SET_INLINE_DATA_LIST: usize = 14;
    pub const SET_SGE: usize = 15;
    pub const SET_SGE_LIST: usize = 16;
    pub const START: usize = 17;
    pub const COMPLETE: usize = 18;
    pub const ABORT: usize = 19;
    /// Exists only where a QP was made with [`super::SEND_OPS_ATOMIC_WRITE`].
    pub const ATOMIC_WRITE: usize = 20;
    /// Words to keep.
    pub const COUNT: usize = 21;
}

/// `struct ibv_qp_ex`, without the functions that newer versions add behind `wr_abort`.
#[repr(C)]
pub struct QpEx {
    pub qp: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: u32,
    pub calls: [AtomicUsize; wr::ABORT + 1],
}

/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut c_void,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_cq_ex`, up to the functions the tap replaces; behind them those that read a field of the completion entry.
#[repr(C)]
pub struct CqEx {
    pub cq: Cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    /// `start_poll`, `next_poll`, `end_poll`.
    pub calls: [AtomicUsize; 3],
}

/// Places of functions that read a field of the completion entry, counted from the end of [`CqEx`].
pub mod wc {
    pub const OPCODE: usize = 0;
    pub const BYTE_LEN: usize = 2;
    pub const QP_NUM: usize = 4;
}

/// A field of the completion entry that an extended CQ stands at; `None` where the CQ was made without it.
///
/// # Safety
/// `ex` is a live `ibv_cq_ex` that stands at a completion entry, and `at` one of [`wc`].
pub unsafe fn read_field(ex: *mut CqEx, at: usize) -> Option<u32> {
    // SAFETY: every version of the struct has these functions, and each takes the CQ and returns 32 bits.
    unsafe {
        let function = *ex.add(1).cast::<usize>().add(at);
        (function != 0)
            .then(|| std::mem::transmute::<usize, unsafe extern "C" fn(*mut CqEx) -> u32>(function)(ex))
    }
}

/// `struct ibv_srq`, its start.
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Object,
    pub handle: u32,
}

/// `struct ibv_data_buf`.
#[repr(C)]
pub struct DataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// `struct ibv_send_wr`, its start.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut c_void,
    pub recv_cq: *mut c_void,
    pub srq: *mut c_void,
    pub cap: [u32; 5],
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut c_void,
    pub recv_cq: *mut c_void,
    pub srq: *mut c_void,
    pub cap: [u32; 5],
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut Object,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: RxHashConf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// `struct ibv_rx_hash_conf`.
#[repr(C)]
pub struct RxHashConf {
    pub function: u8,
    pub key_len: u8,
    pub key: *mut u8,
    pub fields_mask: u64,
}

/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`: the QP has the extended API.
pub const INIT_SEND_OPS_FLAGS: u32 = 1 << 6;
/// `IBV_QP_EX_WITH_ATOMIC_WRITE`.
pub const SEND_OPS_ATOMIC_WRITE: u64 = 1 << 12;
/// `IBV_SEND_SIGNALED`, also in `wr_flags`.
pub const SEND_SIGNALED: u32 = 1 << 1;
/// `IBV_SEND_INLINE`.
pub const SEND_INLINE: u32 = 1 << 3;
/// `enum ibv_wr_opcode`.
pub mod opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
    pub const TSO: u32 = 10;
    pub const ATOMIC_WRITE: u32 = 15;
}
