//! Single work requests, in recordings that were asked for them: what each post handed over and each poll brought.
//!
//! A call is one record. Which completion belongs to which work request is not observed but worked out by the reader
//! ([`crate::pairing`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Opcode, ProcessId, QueueKind};

/// One call that posted work requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Post {
    /// When the call began; in the extended API, `ibv_wr_complete`.
    pub t_ns: u64,
    /// How long it took, as the tap saw it.
    pub duration_ns: u64,
    /// Who called.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Which thread.
    pub tid: u32,
    /// Which queue of a QP, or an SRQ.
    pub queue: PostedTo,
    /// Pointer of the QP or SRQ.
    pub object: u64,
    /// QP number; handle of an SRQ.
    pub number: u32,
    /// What the call returned, where it failed: only the work requests listed were posted then.
    #[serde(skip_serializing_if = "is_zero")]
    pub errno: u32,
    /// Work requests posted, in their order.
    pub wrs: Vec<PostedWr>,
}

/// Where work requests were posted to.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PostedTo {
    /// Send queue of a QP.
    #[default]
    Send,
    /// Receive queue of a QP.
    Receive,
    /// Shared receive queue.
    SharedReceive,
}

impl PostedTo {
    /// The kind of object that queue belongs to.
    pub fn of(self) -> QueueKind {
        match self {
            Self::Send | Self::Receive => QueueKind::Qp,
            Self::SharedReceive => QueueKind::Srq,
        }
    }

    /// The name, as traces spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::SharedReceive => "shared_receive",
        }
    }
}

/// One work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PostedWr {
    /// The program's own number.
    pub wr_id: u64,
    /// What it does; absent for receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opcode: Option<Opcode>,
    /// Payload; of a receive, the room there is for one.
    pub bytes: u32,
    /// It asks for a completion, or its QP asks for all.
    #[serde(skip_serializing_if = "is_false")]
    pub signalled: bool,
    /// Its payload is inline.
    #[serde(skip_serializing_if = "is_false")]
    pub inline: bool,
}

/// One poll that brought completion entries; polls that found nothing are only counted, in samples.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Poll {
    /// When the call began; in the extended API, `ibv_start_poll`.
    pub t_ns: u64,
    /// How long it took; in the extended API, until `ibv_end_poll` returned.
    pub duration_ns: u64,
    /// Who called.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Which thread.
    pub tid: u32,
    /// Pointer of the CQ.
    pub cq: u64,
    /// Completion entries, in their order.
    pub cqes: Vec<Cqe>,
}

/// One completion entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cqe {
    /// The number of the work request it is of.
    pub wr_id: u64,
    /// QP it names; absent where the CQ was made without that field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qpn: Option<u32>,
    /// `IBV_WC_…`, absent for success.
    #[serde(skip_serializing_if = "is_zero")]
    pub status: u32,
    /// It is of a receive; absent where it failed, since its opcode is undefined then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<bool>,
    /// Bytes received; absent for other completions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
}

/// Posts and polls of a process that are missing: the log was written faster than it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Gap {
    /// When that was found.
    pub t_ns: u64,
    /// Whose.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Entries lost: work requests, completion entries, and one for each call.
    pub entries: u64,
}

/// A message of a connection whose ends were both recorded, in a merged trace: the post at one end, and the poll that
/// brought its receive at the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Message {
    /// Counts the messages of that connection and direction from 0.
    pub number: u64,
    /// Opcode of the sender's work request.
    pub opcode: Option<Opcode>,
    /// Bytes received.
    pub bytes: u32,
    /// The post.
    pub from: MessageEnd,
    /// The poll.
    pub to: MessageEnd,
}

/// One end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MessageEnd {
    /// When the call began, on the common time line.
    pub t_ns: u64,
    /// How long it took: a receive was there when it had returned.
    pub duration_ns: u64,
    /// Whose queue pair.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Thread that posted or polled.
    pub tid: u32,
    /// QP number.
    pub qpn: u32,
    /// Number of the work request.
    pub wr_id: u64,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_false(value: &bool) -> bool {
    !value
}
