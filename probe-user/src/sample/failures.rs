//! Requests that failed: the first of each kind, as far as it is known.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Opcode, PostedTo};

/// Failed completion entries of one status and QP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedCqes {
    /// `IBV_WC_…`, by number.
    pub status: u32,
    /// QP number in the entry.
    pub qpn: u32,
    /// How many.
    pub count: u64,
    /// The first of them; absent where its source does not look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Box<FailedRequest>>,
}

/// Posts to one queue that failed with one errno.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedPosts {
    /// What was posted to.
    pub queue: PostedTo,
    /// QP number, or handle of a shared receive queue.
    pub number: u32,
    /// What the call returned.
    pub errno: i32,
    /// How many.
    pub count: u64,
    /// The request the first of them refused; absent where its source does not look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Box<FailedRequest>>,
}

/// How far a request that failed is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// It was seen being posted.
    Exactly,
    /// Several requests under way had its number: it is taken for the oldest signalled one of them.
    ByNumber,
    /// It is one of the unsignalled requests posted before a signalled one (`next`), or a receive.
    Before,
    /// Not every post was looked at, so that it is not known.
    Sampled,
    /// No request that was seen had its number: a receive, or one posted before the recording.
    Unseen,
    /// More were under way than are remembered.
    Forgotten,
    /// Its queue pair is not known.
    NoQueue,
    /// Not known, for a reason that is not told.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The first request that failed in one way.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FailedRequest {
    /// When the poll found its completion entry, or the post returned.
    pub t_ns: u64,
    /// The program's number for it; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wr_id: Option<u64>,
    /// How far it is known.
    pub known: Known,
    /// What was posted; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<WorkRequest>,
    /// Where it is known to be `before` or `by_number` alone: unsignalled requests it may be. Of a refused post: requests
    /// of the same call that were posted before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// The signalled request after it, where that is all that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<NextRequest>,
    /// Of a completion entry: work requests of the QP posted and not known complete then, itself included. Of a refused
    /// post: requests of the call that were not posted, itself included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding: Option<u64>,
    /// What the device says of the error (`vendor_err`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor_err: Option<u32>,
    /// Of a refused post: user stack of the caller, innermost first, where one was taken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<u64>,
}

/// A signalled work request that was posted after one that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextRequest {
    /// The program's number for it.
    pub wr_id: u64,
    /// What was posted.
    #[serde(flatten)]
    pub request: WorkRequest,
}

/// What a work request consists of, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkRequest {
    /// When it was posted; absent of one that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posted_ns: Option<u64>,
    /// Opcode; absent of a receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opcode: Option<Opcode>,
    /// Bytes of its payload, of a receive of its buffers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Its data is inline.
    #[serde(skip_serializing_if = "is_false")]
    pub inline: bool,
    /// It has other buffers than the first.
    #[serde(skip_serializing_if = "is_false")]
    pub more_buffers: bool,
    /// Address of its first buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addr: Option<u64>,
    /// Key of its first buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lkey: Option<u32>,
    /// Remote address, where it names remote memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_addr: Option<u64>,
    /// Remote key, where it names remote memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rkey: Option<u32>,
}

impl FailedRequest {
    /// Passes all its times through a function.
    pub fn shift(&mut self, by: impl Fn(u64) -> u64) {
        self.t_ns = by(self.t_ns);
        for request in self.request.iter_mut().chain(self.next.iter_mut().map(|next| &mut next.request)) {
            request.posted_ns = request.posted_ns.map(&by);
        }
    }

    /// How long it had been under way when it was found to have failed, ns.
    pub fn under_way_ns(&self) -> Option<u64> {
        let posted_ns = self.request.as_ref()?.posted_ns?;
        Some(self.t_ns.saturating_sub(posted_ns))
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_trace_does_not_tell_is_not_known_and_a_newer_word_neither() {
        let old: FailedCqes = serde_json::from_str(r#"{"status":5,"qpn":7,"count":2}"#).unwrap();
        assert_eq!(old.first, None);
        let newer: FailedRequest = serde_json::from_str(r#"{"t_ns":5,"known":"by_magic"}"#).unwrap();
        assert_eq!((newer.known, newer.request), (Known::Unknown, None));
    }

    #[test]
    fn all_times_are_shifted_together() {
        let request = |t_ns| WorkRequest { posted_ns: Some(t_ns), ..WorkRequest::default() };
        let mut failed = FailedRequest {
            t_ns: 100,
            request: Some(request(40)),
            next: Some(NextRequest { wr_id: 1, request: request(50) }),
            ..FailedRequest::default()
        };
        failed.shift(|t_ns| t_ns + 1000);
        assert_eq!((failed.t_ns, failed.under_way_ns()), (1100, Some(60)));
        assert_eq!(failed.next.unwrap().request.posted_ns, Some(1050));
    }
}
