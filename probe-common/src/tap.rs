//! The memory `verbs-tap` shares with a profiler: one file per process, exact counters, and the profiler's wish.
//!
//! The file is a memfd named [`NAME`], sealed against shrinking, found through `/proc/PID/fd` or `/proc/PID/maps`. It
//! is a [`Header`] followed by [`SLOTS`] [`Slot`]s. A slot belongs to one thread and one object at a time and is
//! written by that thread alone, so its counters need no lock; the first slots are shared by all threads and added to
//! atomically. All counters only grow, except where a slot is folded into another (see [`Header::folding`]).

use core::sync::atomic::{AtomicU32, AtomicU64};

pub use crate::counters::{COUNTERS, cq, kind, qp};

/// Name of the memfd.
pub const NAME: &str = "verbs-tap";
/// First word of the file: `verbstap` in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"verbstap");
/// Layout described here. Readers refuse any other.
pub const VERSION: u32 = 2;
/// Slots of the file.
pub const SLOTS: usize = 16_384;
/// Slots shared by all threads, at the front: [`shared::retired`] and [`shared::overflow`] for each kind.
pub const SHARED_SLOTS: usize = 8;
/// Size of the file in bytes.
pub const BYTES: usize = size_of::<Header>() + SLOTS * size_of::<Slot>();

/// Start of the file.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`], written last when the file is ready.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Bytes of a slot.
    pub slot_bytes: AtomicU32,
    /// [`SLOTS`].
    pub slots: AtomicU32,
    /// Process that writes the file, in its own pid namespace: a forked child inherits the descriptor before it makes
    /// its own file.
    pub pid: AtomicU32,
    /// Written by the profiler: for which operations probe sites are called ([`crate::site::Rates`]).
    pub fire: AtomicU32,
    /// Slots from here on were never used.
    pub used: AtomicU32,
    /// Odd while slots are folded: a reader that saw it odd, or changed over a reading, reads again.
    pub folding: AtomicU32,
    /// Contexts whose operations pass through the tap.
    pub contexts: AtomicU32,
    /// Contexts left alone because their operations cannot be written or the table of contexts is full.
    pub untapped_contexts: AtomicU32,
    /// Objects that found no room in the table of objects: counted in the overflow slots, without a name.
    pub unnamed_objects: AtomicU32,
    /// Operations that a provider had replaced after the tap, and that were tapped again.
    pub retapped: AtomicU32,
    /// Calls to `dlsym` that asked for the verbs of a second libibverbs, which is not tapped.
    pub foreign_libraries: AtomicU32,
    /// Calls that could not be counted at all (no memory).
    pub uncounted: AtomicU64,
}

/// What has become of a [`Slot`].
pub mod state {
    /// Never used, or folded into another.
    pub const FREE: u32 = 0;
    /// A thread counts here.
    pub const LIVE: u32 = 1;
    /// Its thread has ended; the counts stand.
    pub const ORPHAN: u32 = 2;
    /// Its object was destroyed; the counts stand until the slot is needed, then they move to the retired slot.
    pub const GONE: u32 = 3;
}

/// The slots shared by all threads.
pub mod shared {
    /// Sums of slots whose objects are gone, by kind.
    pub const fn retired(kind: u32) -> usize {
        (kind as usize).saturating_sub(1) % 3
    }

    /// Counts that found no slot of their own, by kind.
    pub const fn overflow(kind: u32) -> usize {
        3 + retired(kind)
    }
}

/// Counters of one object as one thread uses it.
#[repr(C, align(64))]
pub struct Slot {
    /// One of [`state`].
    pub state: AtomicU32,
    /// One of [`kind`].
    pub kind: AtomicU32,
    /// Numbers objects of a process from 1, never again the same; 0 in shared slots.
    pub object: AtomicU64,
    /// Address of the `ibv_qp`, `ibv_cq` or `ibv_srq`.
    pub address: AtomicU64,
    /// Address of its `ibv_context`.
    pub context: AtomicU64,
    /// QP number; handle of a CQ or SRQ.
    pub number: AtomicU32,
    /// Thread that counts or last counted here.
    pub tid: AtomicU32,
    /// Threads that have counted here, one after the other.
    pub owners: AtomicU32,
    /// 1 where every send work request makes a completion (`sq_sig_all`); 2 where that is not known because the QP was
    /// made out of the tap's sight.
    pub signal_all: AtomicU32,
    /// See [`qp`] and [`cq`].
    pub counters: [AtomicU64; COUNTERS],
}

const _: () = assert!(size_of::<Header>() == 64 && size_of::<Slot>() == 64 + COUNTERS * 8);
const _: () =
    assert!(qp::OPCODES + qp::OPCODE_COUNT <= COUNTERS && cq::STATUSES + cq::STATUS_COUNT <= COUNTERS);
