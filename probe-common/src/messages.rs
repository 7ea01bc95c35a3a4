//! The log of single work requests that `verbs-tap` keeps for a profiler that asks for it: a ring in shared memory.
//!
//! The file is a memfd named [`NAME`], sealed against shrinking: a [`Header`], then as many [`Cell`]s as it says. It
//! exists only where the environment asks for it ([`VARIABLE`]). All threads of the process write to it, none waits for
//! the reader: a reader that falls behind by the whole ring finds cells of a later turn, and knows how many it has lost.
//!
//! A post is told by one [`kind::SEND`] or [`kind::RECEIVE`] a work request, before the provider has it, then one
//! [`kind::POSTED`] after the call, which says how many of them were really posted. A poll that finds something is told
//! by one [`kind::COMPLETION`] a completion entry, then one [`kind::POLLED`]. What belongs together has the same thread
//! and object.

use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

/// Name of the memfd.
pub const NAME: &str = "verbs-tap-messages";
/// Environment variable that asks for the log: the number of its cells in decimal.
pub const VARIABLE: &str = "VERBS_TAP_MESSAGES";
/// First word of the file: `tapmsgs` in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tapmsgs\0");
/// Layout described here. Readers refuse any other.
pub const VERSION: u32 = 1;
/// Cells of a log unless asked otherwise: 16 MiB, some 50 ms at the fastest rate a thread can post and poll.
pub const CELLS: usize = 1 << 18;
/// Fewest and most cells of a log. The number is a power of two.
pub const FEWEST_CELLS: usize = 1 << 6;
/// See [`FEWEST_CELLS`].
pub const MOST_CELLS: usize = 1 << 22;

/// Start of the file.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`], written last when the file is ready.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Cells that follow.
    pub cells: AtomicU32,
    /// Process that writes the file, in its own pid namespace.
    pub pid: AtomicU32,
    /// Number of the next message, on a line of its own since every thread writes it.
    pub next: Next,
}

/// A counter alone on its cache line.
#[repr(C, align(64))]
pub struct Next(pub AtomicU64);

/// Size of a file with so many cells, in bytes.
pub const fn bytes(cells: usize) -> usize {
    size_of::<Header>() + cells * size_of::<Cell>()
}

/// What a message is about.
pub mod kind {
    /// A send work request that is about to be posted.
    pub const SEND: u8 = 1;
    /// A receive work request of a QP that is about to be posted.
    pub const RECEIVE: u8 = 2;
    /// One of a shared receive queue.
    pub const SHARED_RECEIVE: u8 = 3;
    /// A post returned: the first `count` work requests told before it were posted.
    pub const POSTED: u8 = 4;
    /// A completion entry.
    pub const COMPLETION: u8 = 5;
    /// A poll that brought `count` completion entries returned.
    pub const POLLED: u8 = 6;
}

/// Bits of [`Message::flags`].
pub mod flag {
    /// The work request asks for a completion.
    pub const SIGNALLED: u8 = 1;
    /// Its payload is inline.
    pub const INLINE: u8 = 2;
    /// `number` of a completion is known.
    pub const NUMBER: u8 = 4;
    /// `length` of a completion is known.
    pub const LENGTH: u8 = 8;
}

/// One entry of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Message {
    /// One of [`kind`].
    pub kind: u8,
    /// `IBV_WR_…` of a send, `IBV_WC_…` of a completion (of no meaning where that failed); of [`kind::POSTED`] the
    /// kind of the queue.
    pub opcode: u8,
    /// See [`flag`].
    pub flags: u8,
    /// Status of a completion.
    pub status: u8,
    /// Thread.
    pub tid: u32,
    /// `CLOCK_MONOTONIC` at the entry of the call it belongs to; of completions at the return of the poll.
    pub t_ns: u64,
    /// The program's own number of the work request.
    pub wr_id: u64,
    /// Address of the QP, SRQ or CQ.
    pub object: u64,
    /// QP number; handle of an SRQ or CQ.
    pub number: u32,
    /// Bytes of payload, of a receive those there is room for, of its completion those received.
    pub length: u32,
    /// Of a call: work requests posted, completion entries found.
    pub count: u32,
    /// Of a call: its error, 0 for success.
    pub errno: u32,
    /// Of a call: how long it took.
    pub duration_ns: u64,
}

impl Message {
    fn pack(&self) -> [u64; 7] {
        let kinds = u32::from_le_bytes([self.kind, self.opcode, self.flags, self.status]);
        [
            self.t_ns,
            self.wr_id,
            self.object,
            pair(kinds, self.tid),
            pair(self.number, self.length),
            pair(self.count, self.errno),
            self.duration_ns,
        ]
    }

    fn unpack(words: [u64; 7]) -> Self {
        let [t_ns, wr_id, object, kinds, number, count, duration_ns] = words;
        let [kind, opcode, flags, status] = (kinds as u32).to_le_bytes();
        Self {
            kind,
            opcode,
            flags,
            status,
            tid: high(kinds),
            t_ns,
            wr_id,
            object,
            number: number as u32,
            length: high(number),
            count: count as u32,
            errno: high(count),
            duration_ns,
        }
    }
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Room for one message.
#[repr(C, align(64))]
pub struct Cell {
    /// Number of the message it holds plus one; 0 while it is written.
    turn: AtomicU64,
    words: [AtomicU64; 7],
}

/// What a cell holds for a reader that comes for one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// That message.
    Message(Message),
    /// It is not written yet, or not to its end.
    NotYet,
    /// A later one has taken its place.
    Lost,
}

impl Cell {
    /// Writes the message of that number.
    #[inline]
    pub fn write(&self, number: u64, message: &Message) {
        self.turn.store(0, Relaxed);
        // Whoever sees a word of this message sees that the one before it is gone.
        fence(Release);
        for (word, value) in self.words.iter().zip(message.pack()) {
            word.store(value, Relaxed);
        }
        self.turn.store(number + 1, Release);
    }

    /// Reads the message of that number.
    pub fn read(&self, number: u64) -> Found {
        let turn = self.turn.load(Acquire);
        if turn <= number {
            return Found::NotYet;
        }
        let words = core::array::from_fn(|i| self.words.get(i).map_or(0, |word| word.load(Relaxed)));
        fence(Acquire);
        if turn == number + 1 && self.turn.load(Relaxed) == turn {
            Found::Message(Message::unpack(words))
        } else {
            Found::Lost
        }
    }
}

const _: () = assert!(size_of::<Header>() == 128 && size_of::<Cell>() == 64);

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn cell() -> Cell {
        Cell { turn: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 7] }
    }

    /// A message whose every field follows from `n`.
    fn made(n: u64) -> Message {
        let (byte, word) = (n as u8, n as u32);
        Message {
            kind: byte,
            opcode: byte.wrapping_add(1),
            flags: byte.wrapping_add(2),
            status: byte.wrapping_add(3),
            tid: word.wrapping_mul(3),
            t_ns: n.wrapping_mul(5),
            wr_id: n.wrapping_mul(7),
            object: n.wrapping_mul(11),
            number: word.wrapping_mul(13),
            length: word.wrapping_mul(17),
            count: word.wrapping_mul(19),
            errno: word.wrapping_mul(23),
            duration_ns: n.wrapping_mul(29),
        }
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        let cell = cell();
        assert_eq!(cell.read(0), Found::NotYet);
        for n in [0, 1, 255, 1 << 40, u64::MAX - 1] {
            cell.write(n, &made(n));
            assert_eq!(cell.read(n), Found::Message(made(n)));
        }
    }

    #[test]
    fn a_reader_that_comes_too_early_or_too_late_is_told_so() {
        let cell = cell();
        cell.write(64, &made(64));
        assert_eq!(cell.read(0), Found::Lost);
        assert_eq!(cell.read(128), Found::NotYet);
    }

    #[test]
    fn no_half_written_message_is_ever_read() {
        static CELL: Cell = Cell { turn: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 7] };
        static DONE: AtomicBool = AtomicBool::new(false);
        let writer = thread::spawn(|| {
            for n in 0..200_000 {
                CELL.write(n, &made(n));
            }
            DONE.store(true, Release);
        });
        let (mut next, mut read) = (0, 0);
        loop {
            let ended = DONE.load(Acquire);
            match CELL.read(next) {
                Found::Message(message) => {
                    assert_eq!(message, made(next));
                    (next, read) = (next + 1, read + 1);
                }
                Found::Lost => next += 1,
                Found::NotYet if ended => break,
                Found::NotYet => core::hint::spin_loop(),
            }
        }
        writer.join().unwrap();
        assert!(next == 200_000 && read > 0, "{read} of {next}");
    }
}
