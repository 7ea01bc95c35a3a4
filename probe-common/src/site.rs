//! The digest our own sites hand to a probe: what one data-path operation was, in six registers.
//!
//! `rnic-emu` and `verbs-tap` each have three functions that do nothing but be probed (a 5-byte nop, a jump over
//! nothing, a return). They are called once per operation, only when a profiler has asked:
//!
//! - `…_posted(qp, n_wr, bytes, flags, n_sge, wr)` before work requests are handed to the provider: `qp` is the
//!   `ibv_qp` (or the `ibv_srq`), `wr` the first work request of the chain. Of the extended API, whose
//!   requests are built by calls, it is a chain of the library's own that says the same ([`chain`]); 0 where there is
//!   none, since the request was begun before anybody asked. What is to be known of a request alone stands in further
//!   registers (`alone`).
//! - `…_polled(cq, n, wc, exponent)` after a poll: `n` is what the poll returned (negative: it failed), `wc` the first
//!   of `n` work completions. An extended poll is told when it ends (and every so many completions); `wc` are then
//!   copies of the library's own, and where `exponent` has [`FOUND_BEFORE`], the `imm_data` of each says how many ns
//!   before the call it was found. `qp_num` is 0 where the queue was made without it.
//! - `…_post_failed(qp, n_wr, bytes, flags, n_sge, why)` after a post that failed: the part of the digest above
//!   that was *not* posted, to be subtracted. `why` ([`Refused`]) is the errno, and the first work request of that part.
//!
//! `flags` packs counts into fields of 16 bits; a count that does not fit stays at the field's largest value. Those of a
//! failure tell how many of the call were posted, too.
//!
//! A profiler asks for all operations or for one in 2^k of each [`Stream`] ([`Rates`]). Which ones is left to chance, so
//! that a program's own rhythm (every 64th request signalled) does not fall in step; each digest carries its k, so that
//! sums of digests times 2^k are unbiased whatever is asked for in between.

use crate::verbs::{SendWr, Sge};

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
    const EXPONENT: u32 = 51;
    // Of a post.
    const SOURCE: u32 = 56;
    const ALONE: u32 = 58;
    const HAS_BUFFER: u32 = 59;
    // Of a failure, which has no need of these.
    const POSTED: u32 = 56;

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

    /// The same digest, as one of 2^`exponent`.
    pub const fn one_in(self, exponent: u32) -> Self {
        Self(self.0 | ((exponent & MOST_EXPONENT) as u64) << Self::EXPONENT)
    }

    /// This digest stands for 2^exponent operations.
    pub const fn exponent(self) -> u32 {
        (self.0 >> Self::EXPONENT) as u32 & MOST_EXPONENT
    }

    /// The same digest, told by one of [`crate::counters::source`].
    pub const fn by(self, source: u16) -> Self {
        Self(self.0 | (source as u64 & 3) << Self::SOURCE)
    }

    /// Who tells; 0 where it does not say.
    pub const fn source(self) -> u16 {
        (self.0 >> Self::SOURCE) as u16 & 3
    }

    /// The same digest, of a work request of which further registers tell: see `alone`.
    pub const fn alone(self, has_buffer: bool) -> Self {
        Self(self.0 | 1 << Self::ALONE | (has_buffer as u64) << Self::HAS_BUFFER)
    }

    /// Whether it has a buffer, where they do.
    pub const fn has_buffer(self) -> bool {
        self.0 >> Self::HAS_BUFFER & 1 == 1
    }

    /// Whether they do.
    pub const fn is_alone(self) -> bool {
        self.0 >> Self::ALONE & 1 == 1
    }

    /// Of a failure: so many of the call were posted.
    pub const fn after(self, posted: u64) -> Self {
        let posted = if posted > 0xff { 0xff } else { posted };
        Self(self.0 | posted << Self::POSTED)
    }

    /// Of a failure: how many of the call were posted, up to 255.
    pub const fn posted(self) -> u64 {
        self.0 >> Self::POSTED
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

/// Why a post failed, and its first work request that was not posted: the last argument of `…_post_failed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub u64);

impl Refused {
    const ERRNO: u32 = 48;

    /// `wr` is 0 where there is none. So is an address that does not fit, of a program that asks for more than 47 bits.
    pub const fn pack(errno: u32, wr: u64) -> Self {
        let wr = if wr >> Self::ERRNO == 0 { wr } else { 0 };
        Self((errno as u64 & 0xffff) << Self::ERRNO | wr)
    }

    /// The errno.
    pub const fn errno(self) -> u32 {
        (self.0 >> Self::ERRNO) as u32
    }

    /// Address of the work request.
    pub const fn wr(self) -> u64 {
        self.0 & ((1 << Self::ERRNO) - 1)
    }
}

/// With the exponent of a poll: its completions say when they were found.
pub const FOUND_BEFORE: u32 = 1 << 8;

/// Work requests of one batch that are shown; a profiler walks no longer chain.
pub const MOST_SHOWN: usize = 2048;
/// Entries of a work request's list that a profiler looks at.
pub const MOST_SGES: usize = 64;

/// Links work requests into a chain, each with as many of `sges` as it has, in their order. `cut`: there are more than
/// these. Returns the address of the first; 0 where there is none.
pub fn chain(wrs: &mut [SendWr], sges: &[Sge], cut: bool) -> u64 {
    let first = wrs.as_ptr() as u64;
    let (all, list) = (wrs.len() as u64, sges.as_ptr() as u64);
    let mut sge = 0;
    for (wr, number) in wrs.iter_mut().zip(1..) {
        let is_last = number == all && !cut;
        wr.start.next = if is_last { 0 } else { first + number * size_of::<SendWr>() as u64 };
        wr.start.sg_list = list + sge * size_of::<Sge>() as u64;
        sge += u64::from(wr.start.num_sge);
    }
    if all == 0 { 0 } else { first }
}

/// Largest exponent of a rate, and the mask of its field.
pub const MOST_EXPONENT: u32 = 31;

/// Operations that are told at a rate of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// Posts of which nothing is signalled.
    Posts = 0,
    /// Polls that found completion entries, or failed.
    Finds = 1,
    /// Polls that found nothing: a program that waits makes millions of them.
    Empty = 2,
    /// Posts with a signalled request: rare where a program signals one in many, and those whose latency is known.
    Signalled = 3,
}

impl Stream {
    /// The stream of a post with so many signalled requests.
    #[inline(always)]
    pub const fn of_post(signalled: u64) -> Self {
        if signalled == 0 { Self::Posts } else { Self::Signalled }
    }
}

/// Streams there are.
pub const STREAMS: usize = 4;

/// What a profiler asks a library to tell, as one word of shared memory: a byte for each stream, 0 for nothing, k + 1
/// for one operation in 2^k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates(pub u32);

impl Rates {
    /// Nothing is told.
    pub const NONE: Self = Self(0);
    /// Every operation is told.
    pub const ALL: Self = Self(0x0101_0101);

    /// One in 2^k of each stream.
    pub const fn one_in(exponents: [u32; STREAMS]) -> Self {
        let [posts, finds, empty, signalled] = exponents;
        let low = Self::byte(posts) | Self::byte(finds) << 8;
        Self(low | Self::byte(empty) << 16 | Self::byte(signalled) << 24)
    }

    const fn byte(exponent: u32) -> u32 {
        if exponent > MOST_EXPONENT { MOST_EXPONENT + 1 } else { exponent + 1 }
    }

    /// The exponent of a stream; `None` where nothing of it is told.
    #[inline(always)]
    pub const fn exponent(self, stream: Stream) -> Option<u32> {
        match self.0 >> (8 * stream as u32) & 0xff {
            0 => None,
            k if k > MOST_EXPONENT => Some(MOST_EXPONENT),
            k => Some(k - 1),
        }
    }
}

/// Decides by chance of each operation of one thread whether it is told: a generator of numbers (xorshift).
///
/// Each is drawn by itself. Counting down to the next one would be as cheap, but what is left of a count that was drawn
/// for one rate means nothing at another, and rates change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chance(u32);

impl Chance {
    /// Of a new thread; seeded at its first use.
    pub const NEW: Self = Self(0);

    /// True for one operation in 2^`exponent`. `seed` tells threads apart.
    #[inline(always)]
    pub fn is_told(&mut self, exponent: u32, seed: u32) -> bool {
        if self.0 == 0 {
            self.0 = seed.wrapping_mul(0x9e37_79b9) | 1;
        }
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        // The high bits of the product depend on all bits of the state.
        let drawn = self.0.wrapping_mul(0x9e37_79b9) ^ self.0 >> 15;
        exponent == 0 || drawn >> (32 - (exponent & MOST_EXPONENT)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_is_told_on_the_average_and_out_of_step_with_the_program() {
        for exponent in [0, 1, 3, 6, 10] {
            for seed in [1, 77, 4711, u32::MAX] {
                let mut chance = Chance::NEW;
                let (mut told, mut signalled) = (0u64, 0u64);
                let n = 4_000_000u64;
                for i in 0..n {
                    if chance.is_told(exponent, seed) {
                        told += 1;
                        // Every 64th request is signalled.
                        signalled += u64::from(i % 64 == 63);
                    }
                }
                let estimate = (told << exponent) as f64;
                let deviation = 4.0 * (f64::from(1 << exponent) / n as f64).sqrt();
                assert!((estimate / n as f64 - 1.0).abs() <= deviation, "one in 2^{exponent}: {estimate}");
                let share = signalled as f64 / told as f64;
                let bound = 4.0 * (1.0 / 64.0 / told as f64).sqrt();
                assert!((share - 1.0 / 64.0).abs() <= bound, "one in 2^{exponent}: {share}");
            }
        }
    }

    #[test]
    fn sums_stay_true_while_rates_change() {
        let (mut chance, mut sum) = (Chance::NEW, 0u64);
        let n = 4_000_000u64;
        for i in 0..n {
            // Another rate every thousand operations, from all to one in 2^11.
            let exponent = (i / 1000 % 12) as u32;
            if chance.is_told(exponent, 5) {
                sum += 1 << exponent;
            }
        }
        assert!((sum as f64 / n as f64 - 1.0).abs() < 0.05, "{sum}");
    }

    #[test]
    fn why_a_post_failed_and_what_it_did_not_post_come_out_again() {
        let refused = Refused::pack(12, 0x7fff_1234_5678);
        assert_eq!((refused.errno(), refused.wr()), (12, 0x7fff_1234_5678));
        assert_eq!(Refused::pack(12, 1 << 50), Refused::pack(12, 0));
    }

    #[test]
    fn shown_requests_are_linked_and_have_their_own_buffers() {
        let sges = [Sge { addr: 4096, length: 8, lkey: 0 }; 3];
        let mut wrs = [SendWr::default(); 3];
        (wrs[0].start.num_sge, wrs[2].start.num_sge) = (1, 2);
        let first = chain(&mut wrs, &sges, false);
        assert_eq!((first, wrs[0].start.next), (&raw const wrs[0] as u64, &raw const wrs[1] as u64));
        assert_eq!((wrs[1].start.next, wrs[2].start.next), (&raw const wrs[2] as u64, 0));
        assert_eq!(
            (wrs[0].start.sg_list, wrs[2].start.sg_list),
            (&raw const sges[0] as u64, &raw const sges[1] as u64)
        );
        assert_eq!(chain(&mut [], &sges, false), 0);
        // What comes behind is asked for, and not there.
        chain(&mut wrs, &sges, true);
        assert_eq!(wrs[2].start.next, wrs.as_ptr_range().end as u64);
    }

    #[test]
    fn rates_of_streams_are_told_apart_and_no_word_is_out_of_range() {
        let rates = Rates::one_in([0, 3, 99, 1]);
        assert_eq!(rates.exponent(Stream::Posts), Some(0));
        assert_eq!(rates.exponent(Stream::Finds), Some(3));
        assert_eq!(rates.exponent(Stream::Empty), Some(MOST_EXPONENT));
        assert_eq!(rates.exponent(Stream::Signalled), Some(1));
        assert_eq!((Stream::of_post(0), Stream::of_post(2)), (Stream::Posts, Stream::Signalled));
        assert_eq!(Rates::ALL, Rates::one_in([0; STREAMS]));
        assert_eq!(Rates::NONE.exponent(Stream::Finds), None);
        assert_eq!(Rates(u32::MAX).exponent(Stream::Posts), Some(MOST_EXPONENT));
        assert_eq!(Flags::pack(3, 2, 1, Queue::Send, true).one_in(5).exponent(), 5);
        assert_eq!(Flags::pack(3, 2, 1, Queue::Send, true).one_in(5).signalled(), 3);
        let flags = Flags::pack(0xffff, 0xffff, 0xffff, Queue::Send, true).one_in(31).by(2);
        assert_eq!((flags.source(), flags.exponent(), flags.opcodes()), (2, 31, 0xffff));
    }

    #[test]
    fn what_is_packed_comes_out_again() {
        let flags = Flags::pack(3, 2, 1 << 4 | 1, Queue::SharedReceive, true);
        assert_eq!((flags.signalled(), flags.inline(), flags.opcodes()), (3, 2, 0x11));
        assert_eq!((flags.queue(), flags.is_extended()), (Some(Queue::SharedReceive), true));
        assert_eq!(Flags::pack(0, 0, 0, Queue::Send, false), Flags(0));
        let failed = flags.one_in(31).after(200);
        assert_eq!((failed.posted(), failed.exponent(), failed.inline()), (200, 31, 2));
        assert_eq!((flags.after(1 << 20).posted(), flags.posted()), (255, 0));
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
