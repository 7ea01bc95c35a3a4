//! What one posting call did, counted while it is done: for the QP's counters and for the probe site.

use crate::abi::consts::*;
use crate::object::send_queue::SendWqe;
use crate::sites::PostFlags;
use crate::stats::{QpCounter, QpStats};

/// Which call it was.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Call {
    /// `post_send`.
    Send = 0,
    /// `wr_complete`.
    WrComplete = 1,
    /// `post_recv`.
    Recv = 2,
    /// `post_srq_recv`.
    SrqRecv = 3,
}

/// Sums over the requests a call posted.
pub struct Digest {
    /// Requests.
    pub n: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Scatter/gather entries.
    pub n_sge: u64,
    flags: PostFlags,
}

impl Digest {
    /// Nothing yet.
    pub fn new(call: Call) -> Self {
        let flags = PostFlags { first_opcode: u8::MAX, call: call as u8, ..PostFlags::default() };
        Self { n: 0, bytes: 0, n_sge: 0, flags }
    }

    /// Adds a posted send.
    #[inline]
    pub fn send(&mut self, wqe: &SendWqe, sig_all: bool, stats: &QpStats) {
        if self.n == 0 {
            self.flags.first_opcode = wqe.opcode;
        }
        self.recv(u64::from(wqe.len), u64::from(wqe.n_sge));
        self.flags.signalled += u32::from(sig_all || u32::from(wqe.flags) & IBV_SEND_SIGNALED != 0);
        self.flags.inline += u32::from(wqe.inline);
        stats.add(opcode_counter(wqe.opcode), 1);
    }

    /// Adds a posted receive.
    #[inline]
    pub fn recv(&mut self, bytes: u64, n_sge: u64) {
        self.n += 1;
        self.bytes += bytes;
        self.n_sge += n_sge;
    }

    /// Adds the sums to a send queue's counters.
    pub fn count_send(&self, stats: &QpStats) {
        stats.add(QpCounter::SendCalls, 1);
        stats.add(QpCounter::SendWrs, self.n);
        stats.add(QpCounter::Signalled, u64::from(self.flags.signalled));
        stats.add(QpCounter::Inline, u64::from(self.flags.inline));
        stats.add(QpCounter::SendBytes, self.bytes);
        stats.add(QpCounter::SendSges, self.n_sge);
    }

    /// The site's `flags`, with what the call returns.
    pub fn flags(&self, errno: i32) -> u64 {
        PostFlags { errno: errno as u16, ..self.flags }.pack()
    }
}

fn opcode_counter(opcode: u8) -> QpCounter {
    match u32::from(opcode) {
        IBV_WR_RDMA_WRITE => QpCounter::Writes,
        IBV_WR_RDMA_WRITE_WITH_IMM => QpCounter::WritesImm,
        IBV_WR_SEND => QpCounter::Sends,
        IBV_WR_SEND_WITH_IMM => QpCounter::SendsImm,
        IBV_WR_RDMA_READ => QpCounter::Reads,
        IBV_WR_ATOMIC_CMP_AND_SWP => QpCounter::CompareSwaps,
        IBV_WR_ATOMIC_FETCH_AND_ADD => QpCounter::FetchAdds,
        IBV_WR_LOCAL_INV => QpCounter::LocalInvs,
        IBV_WR_BIND_MW => QpCounter::Binds,
        _ => QpCounter::SendsInv,
    }
}
