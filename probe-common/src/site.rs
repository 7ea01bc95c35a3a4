//! The digest our own sites hand to a probe: what one data-path operation was, in six registers.
//!
//! `rnic-emu` (`rnic_emu_…`) and `verbs-tap` (`verbs_tap_…`) each have functions that do nothing but be probed. They
//! are called once at the end of an operation, so that no return probe and no walk is needed:
//!
//! - `posted(qp, n_wr, bytes, flags, n_sge, wr)` after a post to a send queue, classic or extended: `n_wr` work
//!   requests really posted, their payload `bytes` and scatter/gather entries `n_sge`, `wr` the first `ibv_send_wr`, or
//!   0 in the extended API.
//! - `posted_recv(queue, n_wr, bytes, flags, n_sge, wr)` the same for receives; `queue` is the `ibv_qp`, or the
//!   `ibv_srq` where `flags` says so.
//! - `polled(cq, n, wc)` after a poll: `n` completions (0: none, negative: it failed) at `wc`, or 0 in the extended API.

/// Which call a digest is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Posted {
    /// `post_send`.
    Send = 0,
    /// `wr_complete`.
    Extended = 1,
    /// `post_recv`.
    Receive = 2,
    /// `post_srq_recv`.
    SharedReceive = 3,
}

/// What no opcode is: nothing was posted, or receives were.
pub const NO_OPCODE: u8 = 255;

/// The `flags` of a post's digest.
///
/// | bits | meaning |
/// |---|---|
/// | 0–15 | work requests that make a completion when they succeed; at most 65,535 |
/// | 16–31 | work requests with inline data; at most 65,535 |
/// | 32–39 | `ibv_wr_opcode` of the first work request, or [`NO_OPCODE`] |
/// | 40–55 | errno the call returned; 0 for success |
/// | 56–57 | [`Posted`] |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(pub u64);

impl Flags {
    const FIELD: u64 = 0xffff;

    /// Packs a digest's flags; counts that do not fit stay at the largest value.
    pub const fn pack(signalled: u64, inline: u64, first_opcode: u8, errno: u16, call: Posted) -> Self {
        Self(
            Self::saturated(signalled)
                | Self::saturated(inline) << 16
                | (first_opcode as u64) << 32
                | (errno as u64) << 40
                | (call as u64) << 56,
        )
    }

    const fn saturated(count: u64) -> u64 {
        if count > Self::FIELD { Self::FIELD } else { count }
    }

    /// Work requests that make a completion when they succeed.
    pub const fn signalled(self) -> u64 {
        self.0 & Self::FIELD
    }

    /// Work requests with inline data.
    pub const fn inline(self) -> u64 {
        self.0 >> 16 & Self::FIELD
    }

    /// Opcode of the first work request, or [`NO_OPCODE`].
    pub const fn first_opcode(self) -> u8 {
        (self.0 >> 32) as u8
    }

    /// What the call returned.
    pub const fn errno(self) -> u16 {
        (self.0 >> 40) as u16
    }

    /// The call.
    pub const fn call(self) -> Posted {
        match self.0 >> 56 & 3 {
            0 => Posted::Send,
            1 => Posted::Extended,
            2 => Posted::Receive,
            _ => Posted::SharedReceive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let flags = Flags::pack(3, 2, 9, 12, Posted::SharedReceive);
        assert_eq!((flags.signalled(), flags.inline(), flags.first_opcode()), (3, 2, 9));
        assert_eq!((flags.errno(), flags.call()), (12, Posted::SharedReceive));
        assert_eq!(Flags::pack(0, 0, 0, 0, Posted::Send), Flags(0));
    }

    #[test]
    fn counts_that_do_not_fit_stay_at_the_largest_value() {
        let flags = Flags::pack(70_000, 1 << 40, NO_OPCODE, 0, Posted::Extended);
        assert_eq!((flags.signalled(), flags.inline(), flags.first_opcode()), (0xffff, 0xffff, NO_OPCODE));
        assert_eq!((flags.errno(), flags.call()), (0, Posted::Extended));
    }
}
