//! What was seen of posts and polls: cumulative counts per queue pair, completion queue and shared receive queue.
//!
//! Counts that are 0 are left out of a trace; what only some sources can know is an `Option`, and `None` is "not
//! known". Which source counted, and whether it looked at every call, is said beside the counts ([`Observed`]).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FailedCqes, Histogram, RefusedPosts};

/// What was seen of the posts and polls of one process, cumulative since its observation began.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DataPath {
    /// How its posts and polls are observed, where a queue does not say otherwise.
    pub observed: Observed,
    /// Sums over all queues it has and had, those without a record of their own included. Where both differ, this is
    /// the exact one.
    pub totals: QueueCounts,
    /// Queues whose counts changed since the sample before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueSample>,
    /// Calls that the source saw and could not count: totals are too low by these.
    #[serde(skip_serializing_if = "is_zero")]
    pub uncounted: u64,
    /// What else of this process the source cannot see, each in a sentence of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
}

impl DataPath {
    /// Passes all times in it through a function.
    pub fn shift(&mut self, by: impl Fn(u64) -> u64) {
        let queues = self.queues.iter_mut().map(|queue| &mut queue.counts);
        for detail in queues.chain([&mut self.totals]).filter_map(|counts| counts.detail.as_deref_mut()) {
            let failed = detail.failed_by_qp.iter_mut().filter_map(|one| one.first.as_deref_mut());
            let refused = detail.refused.iter_mut().filter_map(|one| one.first.as_deref_mut());
            failed.chain(refused).for_each(|first| first.shift(&by));
        }
    }
}

/// Said of a process that has queues and of which no post and no poll was seen though probes look at them.
pub const NO_POST_SEEN: &str = "no post and no poll passed a probe: it made none, or its provider's functions could not be \
                                probed (the verdicts of data-path probes tell)";

/// What kind of queue a record is about.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum QueueKind {
    /// A queue pair.
    Qp,
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// A kind this version does not know, read from a newer trace; never written.
    #[default]
    #[serde(other, skip_serializing)]
    Unknown,
}

/// One queue and its cumulative counts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct QueueSample {
    /// What it is.
    pub queue: QueueKind,
    /// Names the queue within its process for the whole trace: a pointer or number used again gets another.
    pub object: u64,
    /// The process's own pointer to it.
    pub pointer: u64,
    /// QP number; kernel handle of a CQ or SRQ. 0 where unknown.
    pub number: u32,
    /// It was destroyed: these are its last counts.
    #[serde(skip_serializing_if = "is_false")]
    pub gone: bool,
    /// How it is observed, where that differs from the rest of its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
    /// The counts.
    pub counts: QueueCounts,
}

/// By which of its ways the data path is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ObservedBy {
    /// The preloaded tap counts itself.
    Tap,
    /// Probe sites of the tap or the emulated device.
    Site,
    /// Probes in the provider's own functions.
    Function,
    /// Not at all: `why` tells the reason.
    #[default]
    Nothing,
    /// A way this version does not know, read from a newer trace; never written.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// How the kernel handles the instruction a probe sits on: what a hit costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Instruction {
    /// A nop that the kernel rewrote into a call.
    Optimised,
    /// Emulated in one trap.
    Emulated,
    /// Executed out of line with a second trap.
    SingleStepped,
    /// A class this version does not know, read from a newer trace; never written.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// What the counts stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Counting {
    /// Every call was looked at: the counts are what happened.
    #[default]
    Every,
    /// A share of the calls was looked at, and the counts are estimates of all, within `error`.
    Estimated,
    /// A share of the calls was looked at and the counts are of those alone: only their ratios mean something.
    Ratios,
    /// Something this version does not know, read from a newer trace; never written.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// How posts and polls are observed, and how far the counts can be trusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Observed {
    /// The way.
    pub by: ObservedBy,
    /// Why not at all, or not wholly; empty where there is nothing to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// What the counts stand for.
    #[serde(skip_serializing_if = "is_every")]
    pub counting: Counting,
    /// Share of the calls that were looked at since the observation began, 0–1.
    #[serde(skip_serializing_if = "is_whole")]
    pub share: f64,
    /// Relative error bound of estimated counts (95 % confidence): 0.02 is ±2 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Class of the probed instruction, where a probe is hit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<Instruction>,
    /// What one hit costs the process, as measured on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ns: Option<u64>,
    /// Share of the process's CPU time that hits have cost so far: hits times what one costs, and the time in the
    /// programs, by its CPU time. 0.01 is 1 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<f64>,
    /// CPUs that the profiler itself uses, beside what hits cost and for all it watches: 0.01 is a hundredth of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profiler: Option<f64>,
    /// How many times as long the process takes while a slice of time is watched, where it is watched in slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice_slowdown: Option<f64>,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            by: ObservedBy::Nothing,
            why: String::new(),
            counting: Counting::Every,
            share: 1.0,
            error: None,
            instruction: None,
            hit_ns: None,
            overhead: None,
            profiler: None,
            slice_slowdown: None,
        }
    }
}

/// `enum ibv_wr_opcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the verbs' own")]
pub enum Opcode {
    RdmaWrite,
    RdmaWriteWithImm,
    Send,
    SendWithImm,
    RdmaRead,
    AtomicCmpAndSwp,
    AtomicFetchAndAdd,
    LocalInv,
    BindMw,
    SendWithInv,
    Tso,
    Driver1,
    Flush,
    AtomicWrite,
    /// An opcode without a name here.
    #[serde(other)]
    Other,
}

impl Opcode {
    /// By its number in `enum ibv_wr_opcode`; its gaps have no name.
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::RdmaWrite,
            1 => Self::RdmaWriteWithImm,
            2 => Self::Send,
            3 => Self::SendWithImm,
            4 => Self::RdmaRead,
            5 => Self::AtomicCmpAndSwp,
            6 => Self::AtomicFetchAndAdd,
            7 => Self::LocalInv,
            8 => Self::BindMw,
            9 => Self::SendWithInv,
            10 => Self::Tso,
            11 => Self::Driver1,
            14 => Self::Flush,
            15 => Self::AtomicWrite,
            _ => Self::Other,
        }
    }

    /// Whether such requests name remote memory by address and key.
    pub const fn names_remote_memory(self) -> bool {
        matches!(
            self,
            Self::RdmaWrite
                | Self::RdmaWriteWithImm
                | Self::RdmaRead
                | Self::AtomicCmpAndSwp
                | Self::AtomicFetchAndAdd
        )
    }

    /// The name, as traces and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RdmaWrite => "rdma_write",
            Self::RdmaWriteWithImm => "rdma_write_with_imm",
            Self::Send => "send",
            Self::SendWithImm => "send_with_imm",
            Self::RdmaRead => "rdma_read",
            Self::AtomicCmpAndSwp => "atomic_cmp_and_swp",
            Self::AtomicFetchAndAdd => "atomic_fetch_and_add",
            Self::LocalInv => "local_inv",
            Self::BindMw => "bind_mw",
            Self::SendWithInv => "send_with_inv",
            Self::Tso => "tso",
            Self::Driver1 => "driver1",
            Self::Flush => "flush",
            Self::AtomicWrite => "atomic_write",
            Self::Other => "other",
        }
    }
}

/// Counts of one queue, or of all of a process. A QP has those of posting, a CQ those of polling, an SRQ those of
/// posting receives; sums have all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct QueueCounts {
    /// Calls of `ibv_post_send`, and batches completed by `ibv_wr_complete`, failed ones included.
    #[serde(skip_serializing_if = "is_zero")]
    pub post_calls: u64,
    /// Those that returned an error.
    #[serde(skip_serializing_if = "is_zero")]
    pub post_failed: u64,
    /// Those by errno, as far as known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub post_errnos: BTreeMap<i32, u64>,
    /// Send work requests that were posted (of a failed call, those before `bad_wr`).
    #[serde(skip_serializing_if = "is_zero")]
    pub wrs: u64,
    /// Those that ask for a completion entry.
    #[serde(skip_serializing_if = "is_zero")]
    pub signalled: u64,
    /// Those with inline data.
    #[serde(skip_serializing_if = "is_zero")]
    pub inline: u64,
    /// Bytes of their payload.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Their scatter/gather entries.
    #[serde(skip_serializing_if = "is_zero")]
    pub sges: u64,
    /// Most unsignalled work requests in a row, as far as one thread posted them.
    #[serde(skip_serializing_if = "is_zero")]
    pub longest_unsignalled: u64,
    /// Send work requests by opcode.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub opcodes: BTreeMap<Opcode, u64>,
    /// Calls of `ibv_post_recv` or `ibv_post_srq_recv`, failed ones included.
    #[serde(skip_serializing_if = "is_zero")]
    pub recv_calls: u64,
    /// Those that returned an error.
    #[serde(skip_serializing_if = "is_zero")]
    pub recv_failed: u64,
    /// Receive work requests that were posted.
    #[serde(skip_serializing_if = "is_zero")]
    pub recv_wrs: u64,
    /// Bytes of their buffers.
    #[serde(skip_serializing_if = "is_zero")]
    pub recv_bytes: u64,
    /// Their scatter/gather entries.
    #[serde(skip_serializing_if = "is_zero")]
    pub recv_sges: u64,
    /// Chains longer than the source walks: work requests, bytes and opcodes lack what came after.
    #[serde(skip_serializing_if = "is_zero")]
    pub cut: u64,
    /// Batches of the extended API given up by `ibv_wr_abort`.
    #[serde(skip_serializing_if = "is_zero")]
    pub aborted: u64,
    /// Calls of `ibv_poll_cq` and `ibv_start_poll`.
    #[serde(skip_serializing_if = "is_zero")]
    pub polls: u64,
    /// Those that found nothing.
    #[serde(skip_serializing_if = "is_zero")]
    pub empty_polls: u64,
    /// Those that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_polls: u64,
    /// Completion entries taken.
    #[serde(skip_serializing_if = "is_zero")]
    pub cqes: u64,
    /// Those whose status is an error.
    #[serde(skip_serializing_if = "is_zero")]
    pub cqe_errors: u64,
    /// Extended polls (`ibv_start_poll`) of which only the first completion entry was looked at: `cqes` is too low by
    /// those that came after it.
    #[serde(skip_serializing_if = "is_zero")]
    pub cut_polls: u64,
    /// Completion entries by status (`IBV_WC_…`, by number), success being 0.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub statuses: BTreeMap<u32, u64>,
    /// Calls of `ibv_req_notify_cq`.
    #[serde(skip_serializing_if = "is_zero")]
    pub notifies: u64,
    /// Threads that posted or polled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// What only some sources know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<QueueDetail>>,
}

impl QueueCounts {
    /// Completion entries taken; `None` where some were not looked at.
    pub fn all_cqes(&self) -> Option<u64> {
        (self.cut_polls == 0).then_some(self.cqes)
    }
}

/// What only some sources know of a queue. `None` and empty is "not known", except where a sibling is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct QueueDetail {
    /// Send work requests these figures are taken from, where they are not all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examined_wrs: Option<u64>,
    /// Send work requests by size class of their payload: class n holds those of at most 2^n bytes and more than
    /// 2^(n-1); empty ones are in class 0.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sizes: BTreeMap<u8, u64>,
    /// Send work requests with a local or remote address that is no multiple of 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unaligned_64: Option<u64>,
    /// Send work requests with a local or remote address that is no multiple of 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unaligned_4096: Option<u64>,
    /// Send work requests whose payload is no multiple of 64 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub odd_lengths: Option<u64>,
    /// How the remote address moves from one work request to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_strides: Option<Strides>,
    /// How the local address moves from one work request to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_strides: Option<Strides>,
    /// Send work requests that were not inline and would have fitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub could_inline: Option<u64>,
    /// Send work requests that continue the one before in local and remote memory: both could have been one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mergeable: Option<u64>,
    /// Most send work requests posted and not known to be complete at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_outstanding: Option<u64>,
    /// Most completion entries one poll brought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_cqes_per_poll: Option<u64>,
    /// Events that `ibv_get_cq_event` brought though the queue had not been polled since it was armed
    /// (`ibv_req_notify_cq`): what completed before it was armed raised no event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blind_events: Option<u64>,
    /// Completion entries an extended poll stood at of which it was guessed what they complete, for the provider's
    /// functions that tell are not understood: latencies of queue pairs that share the queue may be exchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guessed_cqes: Option<u64>,
    /// From post to the poll that reaped the completion (polling delay included), of signalled work requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_to_reap_ns: Vec<ReapLatency>,
    /// From a poll that brought completions to the next post of the same thread: what the program did in between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cqe_to_post_ns: Option<Histogram>,
    /// Failed completion entries by status and QP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_by_qp: Vec<FailedCqes>,
    /// Failed posts by queue and errno.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedPosts>,
}

/// How an address moves from one work request of a queue to the next. The first one counts nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Strides {
    /// To the byte after the last one.
    pub sequential: u64,
    /// To the same address.
    pub same: u64,
    /// To anywhere else.
    pub random: u64,
}

/// Latencies of one opcode and size class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReapLatency {
    /// Opcode of the work request.
    pub opcode: Opcode,
    /// Size class of its payload, as in [`QueueDetail::sizes`].
    pub size_class: u8,
    /// Latencies.
    pub latency_ns: Histogram,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_every(counting: &Counting) -> bool {
    *counting == Counting::Every
}

fn is_whole(share: &f64) -> bool {
    *share >= 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opcode_is_named_as_traces_spell_it() {
        for number in 0..20 {
            let opcode = Opcode::from_number(number);
            assert_eq!(serde_json::to_value(opcode).unwrap(), opcode.name());
        }
        let newer: Opcode = serde_json::from_str("\"teleport\"").unwrap();
        assert_eq!((newer, Opcode::from_number(12)), (Opcode::Other, Opcode::Other));
    }

    #[test]
    fn what_is_nothing_takes_no_room_in_a_trace() {
        let queue = QueueSample { queue: QueueKind::Qp, object: 1, ..QueueSample::default() };
        let text = serde_json::to_string(&queue).unwrap();
        assert_eq!(text, r#"{"queue":"qp","object":1,"pointer":0,"number":0,"counts":{}}"#);
        assert_eq!(serde_json::from_str::<QueueSample>(&text).unwrap(), queue);
        let observed: Observed = serde_json::from_str(r#"{"by":"tap"}"#).unwrap();
        assert_eq!((observed.share, observed.counting), (1.0, Counting::Every));
    }
}
