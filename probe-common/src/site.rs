//! The digest our own sites hand to a probe: what one data-path operation was, in six registers.
//!
//! `rnic-emu` and `verbs-tap` each have three functions that do nothing but be probed (a 5-byte nop, a jump over
//! nothing, a return). They are called once per operation, only when a profiler has asked:
//!
//! - `…_posted(qp, n_wr, bytes, flags, n_sge, wr)` before work requests are handed to the provider: `qp` is the
//!   `ibv_qp` (or the `ibv_srq`), `wr` the first work request of the chain, 0 in the extended API.
//! - `…_polled(cq, n, wc)` after a poll: `n` is what the poll returned (negative: it failed), `wc` the first of `n`
//!   work completions, 0 in the extended API.
//! - `…_post_failed(qp, n_wr, bytes, flags, n_sge, errno)` after a post that failed: the part of the digest above
//!   that was *not* posted, to be subtracted.
//!
//! `flags` packs counts into fields of 16 bits; a count that does not fit stays at the field's largest value.

/// What kind of queue a digest is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Queue {
    /// Send queue of a QP.
    Send = 0,
    /// Receive queue of a QP.
    Receive = 1,
    /// Shared receive queue.
    SharedReceive = 2,
}

/// The `flags` of a posted digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(pub u64);

impl Flags {
    const FIELD: u64 = 0xffff;
    const INLINE: u32 = 16;
    const OPCODES: u32 = 32;
    const QUEUE: u32 = 48;
    const EXTENDED: u32 = 50;

    /// Packs a digest's flags.
    ///
    /// `signalled` and `inline` are counts of work requests; `opcodes` has bit n set where opcode n (`IBV_WR_…`)
    /// occurs, and is 0 for receives; `extended` tells the extended API (`ibv_wr_*`).
    pub const fn pack(signalled: u64, inline: u64, opcodes: u16, queue: Queue, extended: bool) -> Self {
        Self(
            Self::saturated(signalled)
                | Self::saturated(inline) << Self::INLINE
                | (opcodes as u64) << Self::OPCODES
                | (queue as u64) << Self::QUEUE
                | (extended as u64) << Self::EXTENDED,
        )
    }

    const fn saturated(count: u64) -> u64 {
        if count > Self::FIELD { Self::FIELD } else { count }
    }

    /// Work requests that will make a completion entry.
    pub const fn signalled(self) -> u64 {
        self.0 & Self::FIELD
    }

    /// Work requests whose payload travels inside the queue entry.
    pub const fn inline(self) -> u64 {
        self.0 >> Self::INLINE & Self::FIELD
    }

    /// Bit n set where opcode n occurs.
    pub const fn opcodes(self) -> u16 {
        (self.0 >> Self::OPCODES & Self::FIELD) as u16
    }

    /// The queue; `None` for a value no writer makes.
    pub const fn queue(self) -> Option<Queue> {
        match self.0 >> Self::QUEUE & 3 {
            0 => Some(Queue::Send),
            1 => Some(Queue::Receive),
            2 => Some(Queue::SharedReceive),
            _ => None,
        }
    }

    /// Posted through the extended API.
    pub const fn is_extended(self) -> bool {
        self.0 >> Self::EXTENDED & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let flags = Flags::pack(3, 2, 1 << 4 | 1, Queue::SharedReceive, true);
        assert_eq!((flags.signalled(), flags.inline(), flags.opcodes()), (3, 2, 0x11));
        assert_eq!((flags.queue(), flags.is_extended()), (Some(Queue::SharedReceive), true));
        assert_eq!(Flags::pack(0, 0, 0, Queue::Send, false), Flags(0));
    }

    #[test]
    fn counts_that_do_not_fit_stay_at_the_largest_value() {
        let flags = Flags::pack(70_000, 1 << 40, 0, Queue::Send, false);
        assert_eq!((flags.signalled(), flags.inline(), flags.opcodes()), (0xffff, 0xffff, 0));
        assert_eq!(flags.queue(), Some(Queue::Send));
    }

    #[test]
    fn a_queue_no_writer_makes_is_none() {
        assert_eq!(Flags(3 << 48).queue(), None);
    }
}
