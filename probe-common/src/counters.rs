//! What is counted of a queue pair, shared receive queue or completion queue: [`COUNTERS`] words, whoever counts.
//!
//! The tap keeps them in the memory it shares, the BPF programs in a map, with more beside them ([`ObjectCounters`]);
//! both are read by the same code.

/// Counters of an object.
pub const COUNTERS: usize = 32;

/// What is counted.
pub mod kind {
    /// A queue pair: counters of [`super::qp`].
    pub const QP: u32 = 1;
    /// A completion queue: counters of [`super::cq`].
    pub const CQ: u32 = 2;
    /// A shared receive queue: the receive counters of [`super::qp`].
    pub const SRQ: u32 = 3;
}

/// Counters of a queue pair or shared receive queue. Only work requests that were really posted count.
pub mod qp {
    /// Calls of `post_send`, and batches completed by `wr_complete`.
    pub const POST_CALLS: usize = 0;
    /// Those that returned an error.
    pub const POST_FAILED: usize = 1;
    /// Send work requests.
    pub const WRS: usize = 2;
    /// Those that ask for a completion entry.
    pub const SIGNALLED: usize = 3;
    /// Those with inline data.
    pub const INLINE: usize = 4;
    /// Bytes of their payload.
    pub const BYTES: usize = 5;
    /// Their scatter/gather entries (or inline buffers).
    pub const SGES: usize = 6;
    /// Most unsignalled work requests in a row, as far as one thread posted them.
    pub const LONGEST_UNSIGNALLED: usize = 7;
    /// Unsignalled work requests since the last signalled one of this thread.
    pub const UNSIGNALLED_RUN: usize = 8;
    /// Calls of `post_recv` or `post_srq_recv`.
    pub const RECV_CALLS: usize = 9;
    /// Those that returned an error.
    pub const RECV_FAILED: usize = 10;
    /// Receive work requests.
    pub const RECV_WRS: usize = 11;
    /// Bytes of their buffers.
    pub const RECV_BYTES: usize = 12;
    /// Their scatter/gather entries.
    pub const RECV_SGES: usize = 13;
    /// Chains longer than is walked, or whose end after a failure was not found: their counts are too low.
    pub const CUT: usize = 14;
    /// Batches of the extended API given up by `wr_abort`.
    pub const ABORTED: usize = 15;
    /// First of 16: work requests by opcode (`IBV_WR_…`); opcodes from 15 on share the last.
    pub const OPCODES: usize = 16;
    /// Counters of opcodes.
    pub const OPCODE_COUNT: usize = 16;
}

/// Counters of a completion queue.
pub mod cq {
    /// Calls of `poll_cq` and `start_poll`.
    pub const POLLS: usize = 0;
    /// Those that found nothing.
    pub const EMPTY: usize = 1;
    /// Those that failed.
    pub const FAILED: usize = 2;
    /// Completion entries.
    pub const CQES: usize = 3;
    /// Those whose status is an error.
    pub const CQE_ERRORS: usize = 4;
    /// Calls of `req_notify_cq`.
    pub const NOTIFIES: usize = 5;
    /// Most completion entries one poll found. Counted by the BPF programs only.
    pub const MOST_CQES: usize = 6;
    /// Extended polls of which only the first completion entry was looked at: [`CQES`] is too low by what came after it.
    /// Counted by the BPF programs only.
    pub const CUT: usize = 7;
    /// First of 24: completion entries by status (`IBV_WC_…`); from 23 on they share the last.
    pub const STATUSES: usize = 8;
    /// Counters of statuses.
    pub const STATUS_COUNT: usize = 24;
}

const _: () =
    assert!(qp::OPCODES + qp::OPCODE_COUNT <= COUNTERS && cq::STATUSES + cq::STATUS_COUNT <= COUNTERS);

/// Who counted: an operation may pass several places, and each counts it.
pub mod source {
    /// A digested site of the tap.
    pub const TAP: u16 = 1;
    /// A digested site of the emulated device.
    pub const EMULATOR: u16 = 2;
    /// A function of a provider.
    pub const FUNCTION: u16 = 3;
}

/// Key of the BPF programs' table of counters; the value is [`ObjectCounters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct ObjectKey {
    /// Start time of the process, as in [`crate::wire::Target`].
    pub start_ns: u64,
    /// Address of the `ibv_qp`, `ibv_cq` or `ibv_srq` in the process.
    pub address: u64,
    /// `CLOCK_MONOTONIC` when the object was destroyed; 0 while it lives. Keeps objects at one address apart.
    pub ended_ns: u64,
    /// Thread-group id.
    pub tgid: u32,
    /// One of [`kind`].
    pub kind: u16,
    /// One of [`source`].
    pub source: u16,
}

/// Set in [`ObjectKey::ended_ns`] of what was counted at the place of an object that is gone ([`crate::hot`]), on top of
/// what its entry, where this bit is clear, says: an entry with a place has such a sister.
pub const AT_PLACE: u64 = 1;

/// Classes of payload sizes: class n holds those of more than 2^(n−1) and at most 2^n bytes, class 0 also empty ones.
pub const SIZES: usize = 32;

/// What is seen of the work requests of a queue pair beyond [`qp`], where their chains are walked.
pub mod detail {
    /// Send work requests looked at.
    pub const WRS: usize = 0;
    /// Those with a local or remote address that is no multiple of 64.
    pub const UNALIGNED_64: usize = 1;
    /// Those with a local or remote address that is no multiple of 4096.
    pub const UNALIGNED_4096: usize = 2;
    /// Those whose payload is no multiple of 64 bytes.
    pub const ODD_LENGTHS: usize = 3;
    /// Those whose first buffer begins where that of the one before began.
    pub const LOCAL_SAME: usize = 4;
    /// Those whose first buffer begins where that of the one before ended.
    pub const LOCAL_SEQUENTIAL: usize = 5;
    /// Those that name remote memory.
    pub const REMOTE_WRS: usize = 6;
    /// As [`LOCAL_SAME`], of remote memory.
    pub const REMOTE_SAME: usize = 7;
    /// As [`LOCAL_SEQUENTIAL`], of remote memory.
    pub const REMOTE_SEQUENTIAL: usize = 8;
    /// Those that are sequential both locally and remotely.
    pub const MERGEABLE: usize = 9;
    /// Those that were not inline and would have fitted. Told only where the room is known ([`super::Granted`]).
    pub const COULD_INLINE: usize = 12;
    /// Posts by another thread than the one before.
    pub const THREAD_CHANGES: usize = 10;
    /// A bit for each thread that posted or polled, by its number modulo 64.
    pub const THREADS: usize = 11;
    /// Most posted and not known complete; 0 where that was not followed.
    pub const MOST_OUTSTANDING: usize = 13;
    /// Of a queue pair that is gone: [`crate::under_way::Ring::unmatched`].
    pub const UNMATCHED: usize = 14;
    /// Calls (posts, or polls) that are counted and were not looked at: others stand for them.
    pub const UNSEEN_CALLS: usize = 15;
    /// Variance of what the counts of calls estimate, where the calls looked at were drawn by chance: the sum of
    /// w (w − 1) over them, each standing for w.
    pub const CALL_VARIANCE: usize = 16;
    /// The same of work requests, or completion entries: the sum of w (w − 1) n² over calls with n of them.
    pub const VARIANCE: usize = 17;
    /// Of a completion queue: events that `ibv_get_cq_event` brought though it had not been polled since it was armed.
    pub const BLIND_EVENTS: usize = 18;
    /// Of a completion queue: completion entries an extended poll stood at of which it was guessed what they complete.
    pub const GUESSED: usize = 19;
    /// Words there are.
    pub const COUNT: usize = 20;
}

/// Place in [`ObjectCounters::last`]: 1 where a completion queue was armed and not polled since.
pub const ARMED: usize = 0;

/// Counters of one object, as the BPF programs keep them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ObjectCounters {
    /// See [`qp`] and [`cq`]; of a queue pair, without what [`Self::counts`] adds.
    pub counters: [u64; COUNTERS],
    /// Send work requests by size; see [`SIZES`].
    pub sizes: [u64; SIZES],
    /// See [`detail`].
    pub details: [u64; detail::COUNT],
    /// First buffer of the last work request: its address, and the address behind it; the same of its remote memory. Of
    /// a completion queue, [`ARMED`].
    pub last: [u64; 4],
    /// Address of the object's context.
    pub context: u64,
    /// Of a queue pair: its completion queues for sends and receives, and its shared receive queue.
    pub queues: [u64; 3],
    /// QP number; handle of a CQ or SRQ.
    pub number: u32,
    /// Type of a queue pair (`IBV_QPT_…`); else 0.
    pub qp_type: u32,
    /// Thread that posted or polled last.
    pub last_tid: u32,
    /// The [`crate::wire::Slice`] it was last seen in.
    pub slice: u32,
    /// Of an entry that has a place besides ([`crate::hot`]): its number, plus one.
    pub place: u64,
    /// What the queue pair was made with, where that was seen.
    pub granted: Granted,
    /// The batch of the extended API in progress.
    pub batch: Batch,
}

/// Places of [`ObjectCounters::counters`] that are no sums but the most there was: [`qp::LONGEST_UNSIGNALLED`] (which
/// with [`qp::UNSIGNALLED_RUN`] is handed on), and [`cq::MOST_CQES`].
const MOST_OF_QP: [usize; 2] = [qp::LONGEST_UNSIGNALLED, qp::UNSIGNALLED_RUN];
const MOST_OF_CQ: [usize; 1] = [cq::MOST_CQES];

impl ObjectCounters {
    /// Adds what was counted of the same object at its place.
    pub fn sum(&mut self, object_kind: u32, more: &Self) {
        let most: &[usize] = if object_kind == kind::CQ { &MOST_OF_CQ } else { &MOST_OF_QP };
        for (place, (sum, n)) in self.counters.iter_mut().zip(more.counters).enumerate() {
            *sum = if most.contains(&place) { n.max(*sum) } else { sum.wrapping_add(n) };
        }
        for (sum, n) in self.sizes.iter_mut().zip(more.sizes) {
            *sum = sum.wrapping_add(n);
        }
        for (place, (sum, n)) in self.details.iter_mut().zip(more.details).enumerate() {
            *sum = match place {
                detail::THREADS => *sum | n,
                detail::MOST_OUTSTANDING => n.max(*sum),
                _ => sum.wrapping_add(n),
            };
        }
    }

    /// The counters, whole.
    ///
    /// An atomic addition is a good part of what a digest costs. So the programs do not add up what follows from other
    /// counters: work requests are counted by opcode, and only those whose opcode is not told in [`qp::WRS`] itself;
    /// scatter/gather entries are counted beyond one for each work request.
    pub fn counts(&self, object_kind: u32) -> [u64; COUNTERS] {
        let mut all = self.counters;
        if object_kind == kind::CQ {
            return all;
        }
        // A difference is less than nothing where requests have no entries. Read while it changes, it may be ahead.
        let and = |n: u64, more: u64| n.saturating_add_signed(more.cast_signed());
        let by_opcode = self.counters[qp::OPCODES..].iter().fold(0_u64, |sum, n| sum.saturating_add(*n));
        all[qp::WRS] = and(by_opcode, self.counters[qp::WRS]);
        all[qp::SGES] = and(all[qp::WRS], self.counters[qp::SGES]);
        all[qp::RECV_SGES] = and(all[qp::RECV_WRS], self.counters[qp::RECV_SGES]);
        all
    }
}

/// What a queue pair was made with; all zeroes where that was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Granted {
    /// Send work requests its queue holds.
    pub max_send_wr: u32,
    /// Bytes that go inline.
    pub max_inline: u32,
    /// 1 where every send work request makes a completion entry (`sq_sig_all`).
    pub signal_all: u32,
    /// 1 where these are known.
    pub known: u32,
}

/// Key of the table of [`Granted`]: a queue pair by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct MadeKey {
    /// Start time of the process.
    pub start_ns: u64,
    /// Address of the `ibv_qp`.
    pub address: u64,
    /// Thread-group id.
    pub tgid: u32,
    /// Always 0.
    pub zero: u32,
}

/// Key of the table of latencies; the value is a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct LatencyKey {
    /// Start time of the process.
    pub start_ns: u64,
    /// Thread-group id.
    pub tgid: u32,
    /// Opcode, and size class from bit 8 on; or [`CQE_TO_POST`].
    pub class: u16,
    /// See [`crate::histogram::bucket`].
    pub bucket: u16,
}

/// From a poll that found completion entries to the next post of the same thread.
pub const CQE_TO_POST: u16 = 0xff;

/// What the extended API has put together since `wr_start`, or found since `start_poll`. Until `wr_complete` and
/// `end_poll` the object belongs to one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Batch {
    /// Not 0 between start and end.
    pub open: u64,
    /// Work requests, or completion entries.
    pub entries: u64,
    /// Work requests that ask for a completion entry.
    pub signalled: u64,
    /// Those with inline data.
    pub inline: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Scatter/gather entries.
    pub sges: u64,
    /// Lists that could not be read to their end.
    pub cut: u64,
    /// Unsignalled work requests up to here, those before the batch included, and the most in a row.
    pub run: u64,
    /// See `run`.
    pub longest: u64,
    /// As [`ObjectCounters::last`], up to here.
    pub last: [u64; 4],
    /// The work request that was begun last, and is not counted yet: what it consists of is said call by call.
    pub building: Building,
    /// Work requests by opcode.
    pub opcodes: [u32; qp::OPCODE_COUNT],
    /// Work requests by size.
    pub sizes: [u32; SIZES],
    /// See [`detail`]: those that are counts of work requests, up to [`detail::COULD_INLINE`].
    pub details: [u32; BATCH_DETAILS],
}

/// Places of [`Batch::details`].
pub const BATCH_DETAILS: usize = 14;

/// A work request of the extended API that is being built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Building {
    /// 1 where there is one.
    pub begun: u64,
    /// The program's number for it.
    pub wr_id: u64,
    /// `IBV_WR_…`.
    pub opcode: u64,
    /// 1 where it asks for a completion entry.
    pub signalled: u64,
    /// 1 where its data is inline.
    pub inline: u64,
    /// Bytes of its payload.
    pub bytes: u64,
    /// Its scatter/gather entries, or inline buffers.
    pub sges: u64,
    /// Its remote address, where it names remote memory.
    pub remote_addr: u64,
    /// Its keys, as in [`crate::under_way::UnderWay::keys`].
    pub keys: u64,
    /// Its first buffer.
    pub addr: u64,
    /// Bytes of its first buffer.
    pub length: u64,
    /// The addresses of all its buffers, their bits put together.
    pub low: u64,
}

/// Queue pairs that send to one completion queue and are remembered for it.
pub const SENDERS: usize = 64;

/// Key of the table of [`Senders`]: a completion queue by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SendersKey {
    /// Start time of the process.
    pub start_ns: u64,
    /// Address of the `ibv_cq`.
    pub address: u64,
    /// Thread-group id.
    pub tgid: u32,
    /// Always 0.
    pub zero: u32,
}

/// Who completes into a completion queue: an extended one shows status and number of a completion entry, and neither its
/// queue pair nor whether it is of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Senders {
    /// Not 0 where receives complete into it too.
    pub receives: u32,
    /// Not 0 where there are more queue pairs than are remembered.
    pub more: u32,
    /// Numbers of the queue pairs whose sends do; 0 behind the last one, [`Self::GONE`] where one was.
    pub numbers: [u32; SENDERS],
}

impl Senders {
    /// In place of a queue pair that was destroyed.
    pub const GONE: u32 = u32::MAX;
}

/// What a data-path probe is told about its place, in the cookie of its attachment.
pub mod place {
    /// `post_recv` of a QP, not of a shared receive queue.
    pub const QP: u64 = super::kind::QP as u64;
    /// `post_srq_recv`.
    pub const SRQ: u64 = super::kind::SRQ as u64;

    /// Entry of `start_poll` where `next_poll` is not looked at: of each poll that finds something, only the first
    /// completion entry is seen.
    pub const FIRST_ONLY: u64 = 1;

    /// A digested site of one of [`super::source`]; `walk` also looks at the chain of work requests.
    pub const fn site(source: u16, walk: bool) -> u64 {
        source as u64 | (walk as u64) << 16
    }

    /// `wr_set_sge`.
    pub const SET_SGE: u64 = 0;
    /// `wr_set_sge_list`.
    pub const SET_SGE_LIST: u64 = 1;
    /// `wr_set_inline_data`.
    pub const SET_INLINE: u64 = 2;
    /// `wr_set_inline_data_list`.
    pub const SET_INLINE_LIST: u64 = 3;
}

const _: () = assert!(size_of::<ObjectKey>() == 32);
// Without gaps: what is not written must not be read.
const _: () = assert!(
    size_of::<Batch>()
        == (7 + 2 + 4) * 8 + size_of::<Building>() + (qp::OPCODE_COUNT + SIZES + BATCH_DETAILS) * 4
        && size_of::<Building>() == 12 * 8
        && size_of::<Senders>() == 8 + SENDERS * 4
        && detail::COULD_INLINE < BATCH_DETAILS
        && size_of::<ObjectCounters>()
            == (COUNTERS + SIZES + detail::COUNT + 4 + 1 + 3 + 1) * 8
                + 4 * 4
                + size_of::<Granted>()
                + size_of::<Batch>()
        && size_of::<LatencyKey>() == 16
);

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(words: &[(usize, u64)]) -> ObjectCounters {
        // SAFETY: plain numbers, for which all zeroes are valid.
        let mut counted: ObjectCounters = unsafe { core::mem::zeroed() };
        for (place, n) in words {
            counted.counters[*place] = *n;
        }
        counted
    }

    #[test]
    fn requests_are_those_of_all_opcodes_and_of_none_and_entries_come_on_top() {
        let by_opcode = [(qp::OPCODES, 5), (qp::OPCODES + 4, 2), (qp::WRS, 3), (qp::SGES, 4)];
        let counts = counted(&by_opcode).counts(kind::QP);
        assert_eq!((counts[qp::WRS], counts[qp::SGES], counts[qp::OPCODES]), (10, 14, 5));
        let received = counted(&[(qp::RECV_WRS, 7), (qp::RECV_SGES, 1)]).counts(kind::SRQ);
        assert_eq!((received[qp::RECV_WRS], received[qp::RECV_SGES]), (7, 8));
    }

    #[test]
    fn requests_without_entries_and_what_is_taken_back_make_no_giants() {
        let minus = |n: u64| n.wrapping_neg();
        let counts = counted(&[(qp::OPCODES, 5), (qp::SGES, minus(5))]).counts(kind::QP);
        assert_eq!((counts[qp::WRS], counts[qp::SGES]), (5, 0));
        // Read between two additions.
        let counts =
            counted(&[(qp::OPCODES, 1), (qp::WRS, minus(2)), (qp::RECV_SGES, minus(1))]).counts(kind::QP);
        assert_eq!((counts[qp::WRS], counts[qp::SGES], counts[qp::RECV_SGES]), (0, 0, 0));
    }

    #[test]
    fn counters_of_a_completion_queue_are_what_they_are() {
        let all = counted(&[(cq::POLLS, 9), (cq::STATUSES + 9, 4)]);
        assert_eq!(all.counts(kind::CQ), all.counters);
    }
}
