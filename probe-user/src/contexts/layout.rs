//! Where things lie in libibverbs' structs on x86-64, in bytes. A stable ABI since IBVERBS_1.1; from rdma-core's
//! `verbs.h`.

use crate::providers::Role;

/// `struct ibv_context`: device 0, ops 8.
pub mod context {
    /// All ones where a `verbs_context` lies before.
    pub const ABI_COMPAT: u64 = 320;
    /// Descriptor of the uverbs device.
    pub const CMD_FD: u64 = 264;
    /// Size of the enclosing `verbs_context`, before the struct.
    pub const SIZE_BEFORE: u64 = 8;
    /// What that size can be: rdma-core 44 has 648, and it only grows.
    pub const SIZES: std::ops::RangeInclusive<u64> = 400..=4096;
}

/// Operations of `struct ibv_context`.
pub const OPS: [(u64, Role); 5] = [
    (96, Role::PollCq),
    (104, Role::ReqNotifyCq),
    (168, Role::PostSrqRecv),
    (208, Role::PostSend),
    (216, Role::PostRecv),
];

/// `struct ibv_device`: the device's name, NUL terminated, at most 64 bytes.
pub const DEVICE_NAME: u64 = 24;

/// `struct ibv_qp`.
pub mod qp {
    pub const PD: u64 = 16;
    pub const SEND_CQ: u64 = 24;
    pub const RECV_CQ: u64 = 32;
    pub const SRQ: u64 = 40;
    pub const HANDLE_AND_NUMBER: u64 = 48;
    pub const STATE_AND_TYPE: u64 = 56;
}

/// Functions of `struct ibv_qp_ex`.
pub const QP_EX: [(u64, Role); 18] = [
    (184, Role::WrAtomicCmpSwp),
    (192, Role::WrAtomicFetchAdd),
    (200, Role::WrBindMw),
    (208, Role::WrLocalInv),
    (216, Role::WrRdmaRead),
    (224, Role::WrRdmaWrite),
    (232, Role::WrRdmaWriteImm),
    (240, Role::WrSend),
    (248, Role::WrSendImm),
    (256, Role::WrSendInv),
    (264, Role::WrSendTso),
    (288, Role::WrSetInlineData),
    (296, Role::WrSetInlineDataList),
    (304, Role::WrSetSge),
    (312, Role::WrSetSgeList),
    (320, Role::WrStart),
    (328, Role::WrComplete),
    (336, Role::WrAbort),
];

/// `struct ibv_cq`.
pub mod cq {
    pub const CHANNEL: u64 = 8;
    pub const HANDLE_AND_CQE: u64 = 24;
    /// First word of the mutex: lock and count.
    pub const MUTEX: u64 = 32;
    /// Its kind, behind two more words.
    pub const MUTEX_KIND: u64 = 48;
}

/// Functions of `struct ibv_cq_ex`.
pub const CQ_EX: [(u64, Role); 3] = [(144, Role::StartPoll), (152, Role::NextPoll), (160, Role::EndPoll)];
