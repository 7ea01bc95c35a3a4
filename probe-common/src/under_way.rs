//! The signalled work requests of a queue pair that are under way, as the BPF programs remember them.

/// Key of the table of [`Ring`]s: a queue pair as its completion entries name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RingKey {
    /// Start time of the process.
    pub start_ns: u64,
    /// Thread-group id.
    pub tgid: u32,
    /// QP number.
    pub number: u32,
}

/// Signalled work requests remembered of a queue pair.
pub const RING: usize = 256;

/// The work requests of a queue pair that are under way, 12,344 bytes. Written by the thread that posts and the one that
/// polls, without a lock: exact as far as one thread at a time does either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Ring {
    /// Signalled work requests posted, and reaped.
    pub head: u64,
    /// See `head`.
    pub tail: u64,
    /// Work requests posted, and known complete.
    pub posted: u64,
    /// See `posted`.
    pub completed: u64,
    /// Completion entries whose work request was not found: it was posted before, or their order is another.
    pub unmatched: u64,
    /// 1 where nothing older than what is remembered can be under way; until then an entry is matched only where its
    /// number leaves no doubt.
    pub in_step: u64,
    /// Who notes them, one of [`crate::counters::source`]: of several places that an operation passes, the one nearest to
    /// the program.
    pub by: u64,
    /// The signalled ones, each at its number modulo [`RING`].
    pub entries: [UnderWay; RING],
}

/// A signalled work request under way: six words, each written at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct UnderWay {
    /// When it was posted.
    pub t_ns: u64,
    /// The program's number for it.
    pub wr_id: u64,
    /// Work requests posted up to and with it (the low half), and its bytes ([`bytes_of`] tells which are none).
    pub posted_bytes: u64,
    /// What its structure says at the place of a remote address. That of an opcode that names no remote memory is
    /// something else.
    pub remote_addr: u64,
    /// Keys: the remote one (of a datagram the peer's QP number) in the low half, that of the first buffer in the high one.
    pub keys: u64,
    /// What [`Class`] says (16 bits), and the address of the first buffer: 48 bits, which all addresses of processes fit
    /// that do not ask for more.
    pub class_addr: u64,
}

/// Opcode, size class and some more of a work request.
///
/// In the lowest 16 bits, opcode and size class stand where [`crate::counters::LatencyKey`] has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class(pub u64);

impl Class {
    /// Of the opcode's byte: it has other buffers than the first.
    pub const SEVERAL: u64 = 1 << 4;
    /// Of the opcode's byte: its data is inline.
    pub const INLINE: u64 = 1 << 5;
    /// What latencies are told apart by.
    pub const OF_LATENCY: u64 = 0xff0f;

    /// `IBV_WR_…`.
    pub const fn opcode(self) -> u32 {
        (self.0 & 15) as u32
    }

    /// The class of its size.
    pub const fn size_class(self) -> u32 {
        (self.0 >> 8 & 0xff) as u32
    }
}

impl UnderWay {
    /// Its class.
    #[inline(always)]
    pub const fn class(&self) -> u64 {
        self.class_addr & 0xffff
    }

    /// Address of its first buffer.
    #[inline(always)]
    pub const fn addr(&self) -> u64 {
        self.class_addr >> 16
    }

    /// How many were posted up to it, of the `posted` that have been since.
    #[inline(always)]
    pub const fn posted(&self, posted: u64) -> u64 {
        // As long as there are no more than 2^32 behind it.
        posted.wrapping_sub(posted.wrapping_sub(self.posted_bytes) & 0xffff_ffff)
    }
}

const _: () = assert!(size_of::<UnderWay>() == 48 && size_of::<Ring>() == 7 * 8 + RING * 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_whole_again_as_long_as_it_is_not_four_thousand_million_ago() {
        let entry =
            |posted: u64| UnderWay { posted_bytes: posted & 0xffff_ffff | 77 << 32, ..UnderWay::default() };
        for (number, posted) in [(1, 1), (5, 260), (1 << 32, (1 << 32) + 3), (0xffff_ffff, 1 << 32)] {
            assert_eq!(entry(number).posted(posted), number);
        }
    }

    #[test]
    fn a_class_tells_opcode_and_size_whatever_else_it_says() {
        let class = Class(5 | Class::SEVERAL | Class::INLINE | 12 << 8);
        assert_eq!((class.opcode(), class.size_class(), class.0 & Class::OF_LATENCY), (5, 12, 5 | 12 << 8));
    }
}
