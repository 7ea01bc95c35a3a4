//! What was observed, and nothing derived from it: the one vocabulary between collection and analysis.
//!
//! Live collection produces these values, a trace file stores them as JSON Lines, replay reads them back, and
//! everything after (model, report, dashboard, diagnosis, export) starts from them and from nothing else. A record
//! is therefore stable: keys are added, never renamed, and readers skip what they do not know.
//!
//! Times named `t_ns` are `CLOCK_MONOTONIC` nanoseconds of the recording host; the header anchors them to wall time.
//! Every other key carries its unit, except counts and identifiers.

mod data_path;
mod facts;
mod failures;
mod judgement;
mod merged;
mod messages;
mod symbol;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use data_path::{
    Counting, DataPath, Instruction, NO_POST_SEEN, Observed, ObservedBy, Opcode, QueueCounts, QueueDetail,
    QueueKind, QueueSample, ReapLatency, Strides,
};
pub use facts::{Facts, Limits, Machine, Placement};
pub use failures::{FailedCqes, FailedRequest, Known, NextRequest, RefusedPosts, WorkRequest};
pub use judgement::Judgement;
pub use merged::{Connection, End, Host, OffsetFrom};
pub use messages::{Cqe, Gap, Message, MessageEnd, Poll, Post, PostedTo, PostedWr};
pub use symbol::{Symbol, is_verbs_header};

/// The schema named by every trace header this version writes.
pub const SCHEMA: &str = "rdma-trace/1";

/// One line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// First line: where, when and how the trace was taken.
    Header(Header),
    /// What is known of a process, when it is first seen and whenever it changes (exec, exit).
    Process(Process),
    /// The limits, environment and placement of a process, as read at one moment.
    Facts(Facts),
    /// A probe reached a verdict, or changed it.
    Probe(Probe),
    /// Cumulative counters at one moment; only what changed since the sample before.
    Sample(Sample),
    /// One control-path call.
    Event(Event),
    /// One call that posted work requests, where the recording was asked for single ones.
    Post(Post),
    /// One poll that brought completion entries, likewise.
    Poll(Poll),
    /// Posts and polls that are missing.
    Gap(Gap),
    /// What an address in a stack is.
    Symbol(Symbol),
    /// Two queue pairs that talk to each other, in a merged trace.
    Connection(Connection),
    /// A message from one of two such queue pairs to the other, in a merged trace.
    Message(Message),
    /// What was wrong when the recording ended, in the recorder's own judgement.
    Finding(Judgement),
    /// Last line: how the recording ended. Missing after a crash.
    Footer(Footer),
}

/// Where, when and how a trace was taken.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Header {
    /// Always [`SCHEMA`] in files of this version.
    pub schema: String,
    /// Program and version that wrote the trace.
    pub writer: String,
    /// Host name.
    pub host: String,
    /// Kernel release, as `uname -r`.
    pub kernel: String,
    /// Machine architecture, as `uname -m`.
    pub arch: String,
    /// `CLOCK_MONOTONIC` at the anchor.
    pub t_ns: u64,
    /// Wall clock (Unix epoch) at the same moment.
    pub wall_ns: u64,
    /// Command started under the profiler, if any.
    pub command: Vec<String>,
    /// Processes asked for by `--pid`; empty for a command or the whole host.
    pub pids: Vec<u32>,
    /// RDMA devices present at the start.
    pub devices: Vec<Device>,
    /// Identity of the host's boot: recordings with the same one have the same clock.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// True where what comes before `t_ns` only tells how things stood then: the recording goes on from another file,
    /// or began in memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub continued: bool,
    /// The recordings this trace was merged from; empty for a recording.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Host>,
    /// The machine.
    pub machine: Machine,
}

/// An RDMA device as the host shows it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Device {
    /// Device name, such as `mlx5_0`, `rxe0` or `emu0`.
    pub name: String,
    /// Kernel driver or provider, such as `mlx5_core`, `rdma_rxe`, `rnic-emu`.
    pub driver: String,
    /// Node GUID in the kernel's notation.
    pub node_guid: String,
    /// Firmware version, empty where the device has none.
    pub firmware: String,
    /// True for the emulated RNIC: its figures are modelled, never measured.
    pub emulated: bool,
    /// Ports, numbered from 1.
    pub ports: Vec<Port>,
    /// Its place in the machine.
    #[serde(skip_serializing_if = "is_default")]
    pub placement: Placement,
    /// What it can hold, where somebody could ask it.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: Limits,
}

/// A port of a [`Device`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Port {
    /// Port number, from 1.
    pub number: u32,
    /// `ACTIVE`, `DOWN`, …
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// Bit rate of the link, in units of 100 Mb/s; 0 where unknown.
    pub rate_100mbps: u32,
    /// Active MTU; 0 where unknown.
    pub active_mtu_bytes: u32,
    /// Network interface behind the port, empty where there is none.
    pub netdev: String,
    /// GIDs in use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<Gid>,
    /// Port and hardware counters, by the kernel's names; counters that could not be read are left out.
    pub counters: BTreeMap<String, u64>,
}

/// A place in a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Gid {
    /// Its index, as `ibv_modify_qp` names it.
    pub index: u32,
    /// The GID in the kernel's notation.
    pub gid: String,
    /// `IB/RoCE v1` or `RoCE v2`; empty where unknown.
    pub gid_type: String,
}

/// Names one process for the whole trace, also when its pid is used again.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
pub struct ProcessId {
    /// Process id (thread-group id) in the profiler's pid namespace.
    pub pid: u32,
    /// Start time since boot of the process; 0 where it ended before it could be read.
    pub start_ns: u64,
}

/// What is known of a process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Process {
    /// Which process.
    #[serde(flatten)]
    pub id: ProcessId,
    /// When this was read.
    pub t_ns: u64,
    /// Command name as the kernel keeps it (15 bytes).
    pub comm: String,
    /// Executable path in the process's own mount namespace, empty where it could not be read.
    pub exe: String,
    /// Real user id.
    pub uid: u32,
    /// Parent process id; 0 where unknown.
    pub parent_pid: u32,
    /// Control group path, empty where unknown.
    pub cgroup: String,
    /// Set when the process has ended.
    pub exited: bool,
    /// Its host, in a merged trace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
}

/// How a probe fares: the answer to "why is this figure missing?".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Attached; every hit is seen.
    Live,
    /// Attached, but only a share of the hits is looked at.
    Sampled {
        /// Share of hits looked at, 0–1.
        share: f64,
    },
    /// This kernel, library or process has no such hook.
    NotHere {
        /// What is absent.
        why: String,
    },
    /// It exists, but this user may not attach.
    Denied {
        /// The capability or sysctl that is missing, and how to grant it.
        missing: String,
    },
    /// It should have attached and did not: a defect to be reported.
    Broken {
        /// What to report.
        report: String,
    },
    /// A verdict this version does not know, read from a newer trace; never written.
    #[serde(other, skip_serializing)]
    Unknown,
}

impl Verdict {
    /// The verdict in a word, and its reason (empty where there is none).
    pub fn words(&self) -> (&'static str, String) {
        match self {
            Self::Live => ("live", String::new()),
            Self::Sampled { share } => ("sampled", share.to_string()),
            Self::NotHere { why } => ("not here", why.clone()),
            Self::Denied { missing } => ("denied", missing.clone()),
            Self::Broken { report } => ("broken", report.clone()),
            Self::Unknown => ("unknown", String::new()),
        }
    }
}

/// One probe and its verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Stable name, such as `ibv_reg_mr_iova2` or `kernel:ib_umem_get`.
    pub name: String,
    /// Where it sits: `path+0xoffset` for a library, the symbol for the kernel; empty when nowhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
    /// The call it counts, so that a reader can tell "none" from "could not be seen"; absent where it counts none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Call>,
    /// When the verdict was reached.
    pub t_ns: u64,
    /// How long a process had already mapped the file when the probe got there: what was called in that time is in no count.
    /// Absent where the probe came first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_ns: Option<u64>,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// A call the probes watch. One name per purpose, whichever entry point the program used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the verbs' own")]
pub enum Call {
    RegMr,
    RegDmabufMr,
    ReregMr,
    DeregMr,
    CreateQp,
    DestroyQp,
    ModifyQp,
    CreateCq,
    ResizeCq,
    DestroyCq,
    CreateSrq,
    DestroySrq,
    AllocPd,
    DeallocPd,
    CreateCompChannel,
    DestroyCompChannel,
    OpenDevice,
    CloseDevice,
    GetCqEvent,
    AckCqEvents,
    GetAsyncEvent,
    CmResolveAddr,
    CmResolveRoute,
    CmConnect,
    CmAccept,
    CmReject,
    CmDisconnect,
    CmGetEvent,
    /// `ib_umem_get` and its variants: pinning user memory.
    KernelPin,
    /// `ib_umem_release`.
    KernelUnpin,
    KernelRegMr,
    KernelDeregMr,
    KernelCreateQp,
    KernelDestroyQp,
    KernelModifyQp,
    KernelCreateCq,
    KernelDestroyCq,
    /// A call this version does not know, read from a newer trace; never written.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// Cumulative counts of one kind of call in one process, since the recording began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CallCount {
    /// Calls entered. Counted at the entry probe, so exact even when a return is missed.
    pub entered: u64,
    /// Calls whose return was seen.
    pub returned: u64,
    /// Returned calls that failed.
    pub failed: u64,
    /// Bytes of the calls that succeeded (length of the region registered or pinned); 0 where it means nothing.
    pub bytes: u64,
    /// Time spent inside the returned calls.
    pub total_ns: u64,
}

/// A log-linear histogram, sparse: each bucket is at most 1/16 wider than its lower bound.
///
/// Bucket `i` covers `[lo(i), lo(i+1))` with `lo(i) = i` for `i < 16`, and otherwise
/// `lo(i) = (16 + i % 16) << (i / 16 - 1)`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Histogram(pub BTreeMap<u16, u64>);

/// Cumulative counters of one process at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProcessSample {
    /// Which process.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Per call; absent when never entered.
    pub calls: BTreeMap<Call, CallCount>,
    /// Latency of each call that has returned, in ns.
    pub latency_ns: BTreeMap<Call, Histogram>,
    /// Posts and polls; absent where nothing changed since the sample before, or nothing watches them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_path: Option<DataPath>,
}

/// What was missed, cumulative. All zero means every count is exact.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Lost {
    /// Events that found the ring buffer full (counters are not affected).
    pub ring_events: u64,
    /// Returns whose entry could not be remembered, by reason of a full table.
    pub unpaired: u64,
    /// Kernel returns missed for want of return-probe slots (the kernel's own count).
    pub kernel_returns: u64,
    /// Hits that found a counter table full: the counts of some process are too low by these.
    pub uncounted: u64,
}

/// Cumulative counters at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sample {
    /// When the maps were read.
    pub t_ns: u64,
    /// Processes whose counters changed since the sample before.
    pub processes: Vec<ProcessSample>,
    /// What was missed so far.
    pub lost: Lost,
    /// Devices whose counters changed since the sample before.
    pub devices: Vec<Device>,
}

/// One control-path call, from its entry to its return.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// When the call was entered.
    pub t_ns: u64,
    /// From entry to return, as the probe saw it.
    pub duration_ns: u64,
    /// Which process.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Thread id.
    pub tid: u32,
    /// Which call.
    pub call: Call,
    /// 0 on success; otherwise the errno, or -1 where the call failed and the errno could not be seen.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errno: i32,
    /// What the call was about.
    #[serde(default, skip_serializing_if = "Detail::is_none")]
    pub detail: Detail,
    /// User stack of the caller, innermost first, where one was taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// What a call was about. Addresses of verbs objects (`mr`, `qp`, `cq`, …) are the process's own pointers: they name
/// an object while it lives, and are used again afterwards.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "of", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are the verbs' own, with units in their names")]
pub enum Detail {
    /// Nothing beyond the call itself.
    #[default]
    None,
    Mr {
        mr: u64,
        pd: u64,
        addr: u64,
        length_bytes: u64,
        access: u32,
        lkey: u32,
        rkey: u32,
        #[serde(flatten)]
        split: RegistrationSplit,
    },
    Qp {
        qp: u64,
        pd: u64,
        qpn: u32,
        /// `RC`, `UC`, `UD`, `XRC_SEND`, `XRC_RECV`, `RAW_PACKET`, `DRIVER`, or the number.
        qp_type: String,
        send_cq: u64,
        recv_cq: u64,
        srq: u64,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_bytes: u32,
        sq_sig_all: bool,
    },
    ModifyQp(QpAttributes),
    Cq {
        cq: u64,
        cqe: u32,
        channel: u64,
    },
    Srq {
        srq: u64,
        max_wr: u32,
    },
    /// Another object (PD, completion channel, context).
    Object {
        object: u64,
    },
    /// Waits and acknowledgements on a completion channel or context.
    Wait {
        object: u64,
        /// Completion events acknowledged, or the async event's type.
        value: u32,
    },
    /// A call on an `rdma_cm_id`.
    Cm {
        id: u64,
        /// Type of the CM event received, else 0.
        event: u32,
        /// Status carried by the CM event (negative errno or reject reason), else 0.
        status: i32,
    },
    /// A kernel-side call on user memory.
    Pages {
        addr: u64,
        length_bytes: u64,
        /// Page faults the calling thread took inside: memory touched for the first time.
        page_faults: u32,
        /// True when it ran inside a registration of the same thread, so that it belongs to an MR.
        in_registration: bool,
    },
    /// A detail this version does not know, read from a newer trace; never written.
    #[serde(other, skip_serializing)]
    Unknown,
}

impl Detail {
    /// True for [`Detail::None`].
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Length of the memory a call was about, where it was about memory.
    pub fn length_bytes(&self) -> Option<u64> {
        match self {
            Self::Mr { length_bytes, .. } | Self::Pages { length_bytes, .. } => Some(*length_bytes),
            _ => None,
        }
    }
}

/// Where the time of a registration went, as far as the kernel's hooks allow; a part that could not be seen is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RegistrationSplit {
    /// Inside the kernel, from handler entry to return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_ns: Option<u64>,
    /// Pinning pages, page faults included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin_ns: Option<u64>,
    /// Mapping the pages for the device (part of pinning's call, told apart where the kernel has a hook).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dma_map_ns: Option<u64>,
    /// The driver's own work (mkey creation), pinning excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_ns: Option<u64>,
    /// Page faults taken inside the pin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u32>,
}

/// The attributes of one `ibv_modify_qp`; those its mask does not name are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the names of struct ibv_qp_attr")]
pub struct QpAttributes {
    pub qp: u64,
    pub qpn: u32,
    pub attr_mask: u32,
    /// Current state before the call, as the library's object says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE`, `ERR`, or the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// What peers may do through it, bits of `enum ibv_access_flags`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp_access_flags: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dest_qpn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dgid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlid: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sgid_index: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// The exponent t of 4.096 µs × 2^t; 0 means for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_cnt: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rnr_retry: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rnr_timer: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rd_atomic: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_dest_rd_atomic: Option<u8>,
}

/// How a recording ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Footer {
    /// When it ended.
    pub t_ns: u64,
    /// Why: `target exited`, `interrupted`, `duration`, `size limit`, `disk full`, …
    pub reason: String,
    /// Exit status of the command started under the profiler, shell convention (128 + signal).
    pub exit_status: Option<i32>,
    /// Events written.
    pub events: u64,
    /// Samples written.
    pub samples: u64,
    /// What was missed in all.
    pub lost: Lost,
}
