//! Posts and polls in a report: of a process, a queue pair, a completion queue.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::sample::{FailedRequest, Observed, RefusedPosts, Strides};

use super::{Failure, Latency};

/// Posts and polls of one process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct DataPath {
    /// What it posted, on all queues, destroyed ones included.
    #[serde(flatten)]
    pub posts: Posts,
    /// What it polled.
    #[serde(flatten)]
    pub polls: Polls,
    /// How posts and polls were seen; `null` where they were not.
    pub observed: Option<Observed>,
    /// Calls that were seen and could not be counted: figures are too low by these.
    pub uncounted: Option<u64>,
    /// What else of this process could not be seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
    /// Why nothing could be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Posts on one queue pair.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct QpPath {
    /// The figures.
    #[serde(flatten)]
    pub posts: Posts,
    /// How they were seen.
    pub observed: Observed,
}

/// Polls of one completion queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct CqPath {
    /// The figures.
    #[serde(flatten)]
    pub polls: Polls,
    /// How they were seen.
    pub observed: Observed,
}

/// Work requests posted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Posts {
    /// Calls that post sends (`ibv_post_send`, `ibv_wr_complete`), failed ones included.
    pub post_calls: Option<u64>,
    /// Those that failed.
    pub post_failed: Option<u64>,
    /// Those by errno, where known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_failures: Vec<Failure>,
    /// The same, and of receives, by queue and with the first request refused, where known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedPosts>,
    /// Send work requests really posted.
    pub wrs: Option<u64>,
    /// Those that ask for a completion.
    pub signaled: Option<u64>,
    /// Those with inline data.
    pub inline: Option<u64>,
    /// Bytes of their payload.
    pub bytes: Option<u64>,
    /// Their scatter/gather entries.
    pub sges: Option<u64>,
    /// Most unsignalled ones in a row, as far as one thread posted them.
    pub longest_unsignaled: Option<u64>,
    /// By opcode.
    pub opcodes: BTreeMap<String, u64>,
    /// Calls that post receives, failed ones included.
    pub recv_calls: Option<u64>,
    /// Those that failed.
    pub recv_failed: Option<u64>,
    /// Receive work requests really posted.
    pub recv_posted: Option<u64>,
    /// Bytes of their buffers.
    pub recv_bytes: Option<u64>,
    /// Chains longer than the source walks: what came after is not counted.
    pub cut: Option<u64>,
    /// Batches of the extended API given up (`ibv_wr_abort`).
    pub aborted: Option<u64>,
    /// Send work requests per call that did not fail; `null` where there was none.
    pub wrs_per_post: Option<f64>,
    /// Share of them that ask for a completion, 0–1.
    pub signaled_share: Option<f64>,
    /// Share of them with inline data, 0–1.
    pub inline_share: Option<f64>,
    /// What only some sources know: sizes, alignment, latencies.
    pub shape: Option<Shape>,
}

/// What work requests look like, as far as their source knows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Shape {
    /// Work requests looked at, where not all.
    pub examined_wrs: Option<u64>,
    /// By size of the payload.
    pub sizes: Vec<WrSizes>,
    /// With an address that is no multiple of 64.
    pub unaligned_64: Option<u64>,
    /// With an address that is no multiple of 4096.
    pub unaligned_4096: Option<u64>,
    /// With a length that is no multiple of 64 bytes.
    pub odd_lengths: Option<u64>,
    /// How the remote address moves from one to the next.
    pub remote_strides: Option<Strides>,
    /// How the local address moves from one to the next.
    pub local_strides: Option<Strides>,
    /// Not inline, and would have fitted.
    pub could_inline: Option<u64>,
    /// Continue the one before in both memories: both could have been one.
    pub mergeable: Option<u64>,
    /// Most posted and not known complete at once.
    pub most_outstanding: Option<u64>,
    /// From post to the poll that reaped the completion (polling delay included), signalled ones only.
    pub post_to_reap_ns: Vec<ReapOf>,
}

/// Work requests of one size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WrSizes {
    /// Largest payload in this class; half of it is the largest of the class below.
    pub up_to_bytes: u64,
    /// How many.
    pub count: u64,
}

/// Post to reap of one opcode and size class.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ReapOf {
    /// Opcode.
    pub opcode: String,
    /// Largest payload of the size class.
    pub up_to_bytes: u64,
    /// Work requests measured.
    pub count: u64,
    /// Quantiles.
    pub latency_ns: Latency,
}

/// Completions polled.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Polls {
    /// Polls (`ibv_poll_cq`, `ibv_start_poll`).
    pub polls: Option<u64>,
    /// Those that found nothing.
    pub empty_polls: Option<u64>,
    /// Those that failed.
    pub failed_polls: Option<u64>,
    /// Completions taken; `null` where some were not looked at.
    pub cqes: Option<u64>,
    /// Extended polls of which only the first completion was looked at.
    pub cut_polls: Option<u64>,
    /// Those with an error.
    pub cqe_errors: Option<u64>,
    /// Those by status, and by QP where known; what was flushed behind others last, else most frequent first.
    pub errors: Vec<CqeErrors>,
    /// Calls of `ibv_req_notify_cq`.
    pub notifies: Option<u64>,
    /// Completions per poll that found any; `null` where none did.
    pub cqes_per_poll: Option<f64>,
    /// Share of the polls that found nothing, 0–1.
    pub empty_share: Option<f64>,
    /// Most completions one poll brought, where known.
    pub most_cqes_per_poll: Option<u64>,
    /// Events taken though the queue had not been polled since it was armed; `null` where none was seen.
    pub blind_events: Option<u64>,
    /// Completions of which it was guessed what they complete; `null` where none was.
    pub guessed_cqes: Option<u64>,
    /// From a poll that brought completions to the next post of the thread, where known.
    pub cqe_to_post_ns: Option<Latency>,
}

/// Completions that failed alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CqeErrors {
    /// Name of the status without its prefix, such as `WR_FLUSH_ERR`.
    pub status: String,
    /// Its number.
    pub number: u32,
    /// The QP the completions name, where known.
    pub qpn: Option<u32>,
    /// How many.
    pub count: u64,
    /// They were flushed because a request before them failed.
    pub flushed: bool,
    /// The first of them, where its source looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<FailedRequest>,
}
