//! What a program asks of a NIC: queue pairs, regions, work requests, and what it gets back.

use std::num::NonZeroU32;

use super::breakdown::Breakdown;
use super::time::Ps;

/// Identifies a NIC of a [`Model`](super::Model).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub u16);

/// Identifies a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpId(pub(super) u32);

/// Identifies a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub(super) u32);

/// Identifies a memory region. Never zero inside, so that an optional [`Place`] takes no more than a place: records of
/// requests are what the model's memory traffic consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MrId(NonZeroU32);

impl MrId {
    /// The region of that number, below 2^32 - 1.
    pub(super) fn new(index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// Transport service of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: complete once sent.
    Uc,
    /// Unreliable datagram: complete once sent.
    Ud,
}

/// Opcode of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// RDMA WRITE.
    #[default]
    Write,
    /// RDMA WRITE with immediate: consumes a receive.
    WriteImm,
    /// SEND: consumes a receive.
    Send,
    /// SEND with immediate.
    SendImm,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
}

impl Op {
    /// READs and atomics bring data back, and a QP may have only so many outstanding.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Atomics.
    pub fn atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// True when the responder sends something back. (READs are defined on RC alone; elsewhere they are treated alike.)
    pub fn answered(self, transport: Transport) -> bool {
        transport == Transport::Rc || self.reads()
    }

    /// True when the responder's program gets a completion of its own.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }
}

/// A place in a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region.
    pub mr: MrId,
    /// Byte offset in it; offsets past its end count as its last page.
    pub offset: u64,
}

/// One work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Opcode.
    pub op: Op,
    /// Payload in bytes.
    pub bytes: u32,
    /// The payload is inside the WQE (SEND and WRITE only).
    pub inline: bool,
    /// A CQE is asked for.
    pub signalled: bool,
    /// Wait for the QP's earlier READs and atomics.
    pub fence: bool,
    /// Scatter/gather entries; each is a DMA of its own.
    pub sges: u8,
    /// Local buffer, where its key and translation matter.
    pub local: Option<Place>,
    /// Remote buffer of a one-sided operation.
    pub remote: Option<Place>,
    /// Given back in the completion.
    pub token: u64,
    /// Ask for [`Step::Delivered`] when the payload is visible to the responder.
    pub notify: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            op: Op::Write,
            bytes: 0,
            inline: false,
            signalled: true,
            fence: false,
            sges: 1,
            local: None,
            remote: None,
            token: 0,
            notify: false,
        }
    }
}

/// What handing work to the NIC cost the CPU, apart from locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Modelled CPU time of the call: building WQEs, ringing the doorbell.
    pub cpu: Ps,
    /// The WQE went along with the doorbell and needs no fetch.
    pub blueflame: bool,
}

/// A work request is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// Its QP.
    pub qp: QpId,
    /// NIC of the requester.
    pub node: NodeId,
    /// A CQE was written for it.
    pub signalled: bool,
    /// When the doorbell rang.
    pub posted: Ps,
    /// When its CQE became visible in host memory; for an unsignalled request, when the NIC was done with it.
    pub at: Ps,
    /// When its payload became visible to the responder (WRITE, SEND), or was read there (READ, atomic);
    /// 0 where that had not happened yet (UC, UD).
    pub delivered: Ps,
    /// Where the time between `posted` and `at` went.
    pub breakdown: Breakdown,
}

/// What [`Model::step`](super::Model::step) came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request is done.
    Completed(Completion),
    /// A request's payload, or its receive completion, is visible at the responder.
    Delivered {
        /// The request's token.
        token: u64,
        /// Its QP at the requester.
        qp: QpId,
        /// When.
        at: Ps,
    },
    /// A timer set by [`Model::wake_at`](super::Model::wake_at) went off.
    Woken {
        /// What was given to `wake_at`.
        what: u32,
        /// When.
        at: Ps,
    },
}

/// A memory region as the NIC sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Length in bytes.
    pub bytes: u64,
    /// Page size its translations are made for, in bytes: the real one behind the buffer.
    pub page: u64,
}
