//! The seam between work requests and time: the one place that says when a request reaches its responder and when its
//! completion becomes visible.
//!
//! Without a timing model both are at once. Every request passes [`admit`] exactly once, when it leaves the send queue
//! for the first time; the requester then holds it, and its completion, until the times returned have come.

/// What a work request is, to a timing model.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "read by the timing model only")]
pub struct Work {
    /// QP it was posted to.
    pub qpn: u32,
    /// `ibv_wr_opcode`.
    pub opcode: u8,
    /// Payload bytes.
    pub len: u32,
    /// Payload was copied into the queue by the CPU.
    pub inline: bool,
    /// Scatter/gather entries.
    pub n_sge: u16,
    /// It will write a completion.
    pub signalled: bool,
}

/// When things happen to a request, in monotonic nanoseconds; 0 for at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// It reaches the responder.
    pub deliver_at: u64,
    /// Its completion may be seen.
    pub complete_at: u64,
}

/// The schedule of a request that is about to leave the send queue.
#[inline]
pub fn admit(_work: &Work) -> Schedule {
    Schedule::default()
}
