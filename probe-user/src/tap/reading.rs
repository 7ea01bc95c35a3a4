//! One consistent reading of the counters, by object.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use probe_common::counters::{COUNTERS, cq, kind, qp};
use probe_common::tap::{self, SHARED_SLOTS, Slot, state};
use serde::Serialize;

use super::{Tap, TapError};
use crate::sample::QueueKind;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Queue pair.
    Qp,
    /// Completion queue.
    Cq,
    /// Shared receive queue.
    Srq,
}

impl Kind {
    pub(crate) fn from_wire(kind: u32) -> Option<Self> {
        match kind {
            kind::QP => Some(Self::Qp),
            kind::CQ => Some(Self::Cq),
            kind::SRQ => Some(Self::Srq),
            _ => None,
        }
    }
}

impl From<Kind> for QueueKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Qp => Self::Qp,
            Kind::Cq => Self::Cq,
            Kind::Srq => Self::Srq,
        }
    }
}

/// Counters of one object, of one thread's use of it, or of a process. What they count: [`probe_common::tap`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "the counters of probe_common::tap, where each is described")]
pub struct Counts {
    pub post_calls: u64,
    pub post_failed: u64,
    pub wrs: u64,
    pub signalled: u64,
    pub inline: u64,
    pub bytes: u64,
    pub sges: u64,
    pub longest_unsignalled: u64,
    pub opcodes: BTreeMap<&'static str, u64>,
    pub recv_calls: u64,
    pub recv_failed: u64,
    pub recv_wrs: u64,
    pub recv_bytes: u64,
    pub recv_sges: u64,
    pub cut: u64,
    pub aborted: u64,
    pub polls: u64,
    pub empty_polls: u64,
    pub failed_polls: u64,
    pub cqes: u64,
    pub cqe_errors: u64,
    /// Extended polls of which only the first completion entry was looked at: `cqes` is too low by what came after.
    pub cut_polls: u64,
    pub notifies: u64,
    /// By number of the status (`IBV_WC_…`), 0 being success.
    pub statuses: BTreeMap<u32, u64>,
}

/// `enum ibv_wr_opcode`; its gaps have no name.
const OPCODES: [&str; qp::OPCODE_COUNT] = [
    "rdma_write",
    "rdma_write_with_imm",
    "send",
    "send_with_imm",
    "rdma_read",
    "atomic_cmp_and_swp",
    "atomic_fetch_and_add",
    "local_inv",
    "bind_mw",
    "send_with_inv",
    "tso",
    "driver1",
    "opcode_12",
    "opcode_13",
    "flush",
    "atomic_write_or_later",
];

/// Name of an opcode (`IBV_WR_…`); those from 15 on share the last.
pub fn opcode_name(opcode: u8) -> &'static str {
    OPCODES.get(usize::from(opcode)).copied().unwrap_or(OPCODES[qp::OPCODE_COUNT - 1])
}

impl Counts {
    pub(crate) fn from_wire(kind: Kind, c: &[u64; COUNTERS]) -> Self {
        if kind == Kind::Cq {
            let statuses = c.iter().skip(cq::STATUSES).take(cq::STATUS_COUNT);
            return Self {
                polls: c[cq::POLLS],
                empty_polls: c[cq::EMPTY],
                failed_polls: c[cq::FAILED],
                cqes: c[cq::CQES],
                cqe_errors: c[cq::CQE_ERRORS],
                cut_polls: c[cq::CUT],
                notifies: c[cq::NOTIFIES],
                statuses: (0..).zip(statuses.copied()).filter(|(_, n)| *n != 0).collect(),
                ..Self::default()
            };
        }
        let opcodes = c.iter().skip(qp::OPCODES).copied();
        Self {
            post_calls: c[qp::POST_CALLS],
            post_failed: c[qp::POST_FAILED],
            wrs: c[qp::WRS],
            signalled: c[qp::SIGNALLED],
            inline: c[qp::INLINE],
            bytes: c[qp::BYTES],
            sges: c[qp::SGES],
            longest_unsignalled: c[qp::LONGEST_UNSIGNALLED],
            opcodes: OPCODES.into_iter().zip(opcodes).filter(|(_, n)| *n != 0).collect(),
            recv_calls: c[qp::RECV_CALLS],
            recv_failed: c[qp::RECV_FAILED],
            recv_wrs: c[qp::RECV_WRS],
            recv_bytes: c[qp::RECV_BYTES],
            recv_sges: c[qp::RECV_SGES],
            cut: c[qp::CUT],
            aborted: c[qp::ABORTED],
            ..Self::default()
        }
    }

    /// Adds other counts to these.
    pub fn add(&mut self, other: &Self) {
        let Self { opcodes, statuses, .. } = other;
        for (name, n) in opcodes {
            *self.opcodes.entry(name).or_default() += n;
        }
        for (status, n) in statuses {
            *self.statuses.entry(*status).or_default() += n;
        }
        let pairs = [
            (&mut self.post_calls, other.post_calls),
            (&mut self.post_failed, other.post_failed),
            (&mut self.wrs, other.wrs),
            (&mut self.signalled, other.signalled),
            (&mut self.inline, other.inline),
            (&mut self.bytes, other.bytes),
            (&mut self.sges, other.sges),
            (&mut self.recv_calls, other.recv_calls),
            (&mut self.recv_failed, other.recv_failed),
            (&mut self.recv_wrs, other.recv_wrs),
            (&mut self.recv_bytes, other.recv_bytes),
            (&mut self.recv_sges, other.recv_sges),
            (&mut self.cut, other.cut),
            (&mut self.aborted, other.aborted),
            (&mut self.polls, other.polls),
            (&mut self.empty_polls, other.empty_polls),
            (&mut self.failed_polls, other.failed_polls),
            (&mut self.cqes, other.cqes),
            (&mut self.cqe_errors, other.cqe_errors),
            (&mut self.cut_polls, other.cut_polls),
            (&mut self.notifies, other.notifies),
        ];
        for (sum, n) in pairs {
            *sum = sum.wrapping_add(n);
        }
        self.longest_unsignalled = self.longest_unsignalled.max(other.longest_unsignalled);
    }
}

/// What one thread did with an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadCounts {
    /// The thread that counts or last counted here, in its own pid namespace.
    pub tid: u32,
    /// Threads whose counts these are, one after the other.
    pub threads: u32,
    /// The counts.
    pub counts: Counts,
}

/// One object of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Object {
    /// Numbers the objects of the process from 1, never again the same.
    pub id: u64,
    /// What it is.
    pub kind: Kind,
    /// Its address in the process.
    pub address: u64,
    /// The address of its context.
    pub context: u64,
    /// QP number; handle of a CQ or SRQ.
    pub number: u32,
    /// Whether every send work request makes a completion; `None` where that is not known.
    pub signal_all: Option<bool>,
    /// It was destroyed.
    pub gone: bool,
    /// Sums over its threads.
    pub counts: Counts,
    /// Each thread's part.
    pub threads: Vec<ThreadCounts>,
}

/// All counters of a process at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Reading {
    /// Objects, in the order in which they came into sight.
    pub objects: Vec<Object>,
    /// Sums of objects that are gone and gave up their slots.
    pub retired: Counts,
    /// Counts that found no slot of their own.
    pub unnamed: Counts,
    /// Sums of everything.
    pub total: Counts,
    /// Contexts whose operations pass through the tap.
    pub contexts: u32,
    /// Contexts left alone: their operations cannot be written, or there are too many.
    pub untapped_contexts: u32,
    /// Objects without room for a name.
    pub unnamed_objects: u32,
    /// Functions a provider had replaced and that were tapped again.
    pub retapped: u32,
    /// Look-ups in a second libibverbs, which is not tapped.
    pub foreign_libraries: u32,
    /// Calls that could not be counted.
    pub uncounted: u64,
}

/// A slot, copied out.
struct Copy {
    index: usize,
    slot: SlotValues,
}

struct SlotValues {
    state: u32,
    kind: Kind,
    object: u64,
    address: u64,
    context: u64,
    number: u32,
    tid: u32,
    owners: u32,
    signal_all: u32,
    counts: Counts,
}

impl Tap {
    /// Reads all counters.
    ///
    /// # Errors
    /// [`TapError::Unsteady`] when the process reorganised its slots during every attempt.
    pub fn read(&self) -> Result<Reading, TapError> {
        const ATTEMPTS: u32 = 100;
        for _ in 0..ATTEMPTS {
            let before = self.header().folding.load(Acquire);
            if before.is_multiple_of(2) {
                let slots = self.slots().iter().enumerate().filter_map(|(index, s)| copy(index, s)).collect();
                std::sync::atomic::fence(Acquire);
                if self.header().folding.load(Relaxed) == before {
                    return Ok(self.sum(slots));
                }
            }
            std::thread::yield_now();
        }
        Err(TapError::Unsteady(self.pid(), ATTEMPTS))
    }

    fn sum(&self, slots: Vec<Copy>) -> Reading {
        let header = self.header();
        let mut reading = Reading {
            contexts: header.contexts.load(Relaxed),
            untapped_contexts: header.untapped_contexts.load(Relaxed),
            unnamed_objects: header.unnamed_objects.load(Relaxed),
            retapped: header.retapped.load(Relaxed),
            foreign_libraries: header.foreign_libraries.load(Relaxed),
            uncounted: header.uncounted.load(Relaxed),
            ..Reading::default()
        };
        let mut objects: BTreeMap<u64, Object> = BTreeMap::new();
        for Copy { index, slot } in slots {
            reading.total.add(&slot.counts);
            if index < SHARED_SLOTS {
                let retired = (kind::QP..=kind::SRQ).any(|k| tap::shared::retired(k) == index);
                (if retired { &mut reading.retired } else { &mut reading.unnamed }).add(&slot.counts);
                continue;
            }
            let object = objects.entry(slot.object).or_insert_with(|| Object {
                id: slot.object,
                kind: slot.kind,
                address: slot.address,
                context: slot.context,
                number: slot.number,
                signal_all: [Some(false), Some(true)].get(slot.signal_all as usize).copied().flatten(),
                gone: false,
                counts: Counts::default(),
                threads: Vec::new(),
            });
            object.gone |= slot.state == state::GONE;
            object.counts.add(&slot.counts);
            object.threads.push(ThreadCounts { tid: slot.tid, threads: slot.owners, counts: slot.counts });
        }
        reading.objects = objects.into_values().collect();
        reading
    }
}

fn copy(index: usize, slot: &Slot) -> Option<Copy> {
    let state = slot.state.load(Acquire);
    if state == state::FREE {
        return None;
    }
    let kind = Kind::from_wire(slot.kind.load(Relaxed))?;
    let counters = std::array::from_fn(|n| slot.counters[n].load(Relaxed));
    let values = SlotValues {
        state,
        kind,
        object: slot.object.load(Relaxed),
        address: slot.address.load(Relaxed),
        context: slot.context.load(Relaxed),
        number: slot.number.load(Relaxed),
        tid: slot.tid.load(Relaxed),
        owners: slot.owners.load(Relaxed),
        signal_all: slot.signal_all.load(Relaxed),
        counts: Counts::from_wire(kind, &counters),
    };
    Some(Copy { index, slot: values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_queue_pair_get_their_names() {
        let mut wire = [0; COUNTERS];
        (wire[qp::WRS], wire[qp::LONGEST_UNSIGNALLED], wire[qp::OPCODES]) = (7, 3, 5);
        wire[qp::OPCODES + 15] = 2;
        let counts = Counts::from_wire(Kind::Qp, &wire);
        assert_eq!((counts.wrs, counts.longest_unsignalled, counts.polls), (7, 3, 0));
        assert_eq!(counts.opcodes, BTreeMap::from([("rdma_write", 5), ("atomic_write_or_later", 2)]));
    }

    #[test]
    fn counters_of_a_completion_queue_get_theirs() {
        let mut wire = [0; COUNTERS];
        (wire[cq::POLLS], wire[cq::STATUSES], wire[cq::STATUSES + 12]) = (9, 4, 1);
        let counts = Counts::from_wire(Kind::Cq, &wire);
        assert_eq!((counts.polls, counts.post_calls), (9, 0));
        assert_eq!(counts.statuses, BTreeMap::from([(0, 4), (12, 1)]));
    }

    #[test]
    fn sums_add_and_the_longest_run_is_the_longest() {
        let mut sum = Counts { wrs: 1, longest_unsignalled: 9, ..Counts::default() };
        sum.add(&Counts { wrs: 2, longest_unsignalled: 4, ..Counts::default() });
        assert_eq!((sum.wrs, sum.longest_unsignalled), (3, 9));
    }
}
