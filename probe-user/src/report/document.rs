//! The report as data: what `rdma-probe report --json` prints, key for key.
//!
//! The keys are a contract: they are added to, never renamed. A figure that could not be observed is `null` and its
//! section says why in `unavailable`; 0 always means that something was watched and did not happen. Where a figure rests
//! on events and some were lost, the section says so in `exact`.

mod data_path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::sample::{Call, Device, Verdict};

pub use data_path::*;

/// The schema named by every report this version prints.
pub const SCHEMA: &str = "rdma-report/1";

/// A whole report.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Always `rdma-report/1`.
    pub schema: String,
    /// Which recording this is about.
    pub trace: Trace,
    /// The part of the recording that was looked at; `null` for all of it.
    pub window: Option<Window>,
    /// What was missed.
    pub lost: Lost,
    /// The file whose probes came latest after a process had loaded it; `null` where all were there first.
    pub late: Option<Late>,
    /// Every probe and its verdict.
    pub probes: Vec<Probe>,
    /// Devices of the host, with the counters last seen.
    pub devices: Vec<Device>,
    /// Processes that used RDMA, those with most control-path time first.
    pub processes: Vec<Process>,
    /// Processes seen that made no RDMA call, and those left out by a filter.
    pub processes_not_shown: u64,
}

/// Which recording a report is about, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Trace {
    /// Host it was recorded on.
    pub host: String,
    /// Its kernel release.
    pub kernel: String,
    /// Its architecture.
    pub arch: String,
    /// Program and version that recorded.
    pub writer: String,
    /// Command started under the profiler.
    pub command: Vec<String>,
    /// Processes asked for with `--pid`.
    pub pids: Vec<u32>,
    /// Wall clock (Unix epoch) at the beginning.
    pub started_wall_ns: u64,
    /// From the beginning to the last record.
    pub duration_ns: u64,
    /// Why the recording ended; `null` when it was cut off, or is still going on.
    pub ended: Option<String>,
    /// Exit status of the command, 128 + signal where one ended it.
    pub exit_status: Option<i32>,
    /// Number of the last line, where that was cut off and is not counted in.
    pub cut_off_line: Option<u64>,
    /// Lines of kinds this version does not know.
    pub unknown_lines: u64,
}

/// A part of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Window {
    /// Beginning, from the beginning of the recording.
    pub from_ns: u64,
    /// End, from the beginning of the recording.
    pub to_ns: u64,
}

/// What was missed. `total` 0 means that every count is exact, from the moment each probe was in place on: those that came late
/// say so (`late_ns`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lost {
    /// All of the following.
    pub total: u64,
    /// Events that found the ring buffer full: counts and latencies are not affected, figures of live objects are.
    pub ring_events: u64,
    /// Returns whose entry could not be remembered.
    pub unpaired: u64,
    /// Kernel returns missed for want of return-probe slots.
    pub kernel_returns: u64,
    /// Hits that found a counter table full: some counts are too low.
    pub uncounted: u64,
}

/// Probes that were put into a file after a process had loaded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Late {
    /// The file.
    pub file: String,
    /// How long after; calls of that time are in no count.
    pub late_ns: u64,
}

/// A probe's verdict.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Probe {
    /// Stable name.
    pub name: String,
    /// Where it sits, empty when nowhere.
    pub place: String,
    /// The call it counts, where it counts one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<Call>,
    /// How long a process had already mapped its file when the probe got there: calls of that time are in no count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_ns: Option<u64>,
    /// The verdict, with its reason where it is not `live`.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time since boot: tells two processes of the same id apart.
    pub start_ns: u64,
    /// Command name.
    pub comm: String,
    /// Executable, empty where unknown.
    pub exe: String,
    /// Real user id.
    pub uid: u32,
    /// Parent process id, 0 where unknown.
    pub parent_pid: u32,
    /// True when it ended while recorded. What is `live` then was not freed by any call before.
    pub exited: bool,
    /// Control calls on objects that left no event.
    pub calls_without_event: u64,
    /// Memory regions registered (`ibv_reg_mr` and its kin, dmabuf included).
    pub registration: Registration,
    /// Memory regions changed (`ibv_rereg_mr`).
    pub reregistration: Calls,
    /// Memory regions deregistered.
    pub deregistration: Deregistration,
    /// User memory pinned in the kernel.
    pub kernel_pin: KernelPin,
    /// Queue pairs, completion queues, shared receive queues.
    pub queues: Queues,
    /// Posts and polls.
    pub data_path: DataPath,
    /// Single work requests; `null` where the recording has none (`record --messages`).
    pub messages: Option<Messages>,
    /// `ibv_modify_qp`.
    pub modify_qp: ModifyQp,
    /// Waiting for completions and events.
    pub waits: Waits,
    /// Connections through librdmacm.
    pub connections: Connections,
    /// Other objects.
    pub objects: OtherObjects,
}

/// Counts and latencies of one kind of call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Calls {
    /// Calls entered, failed ones included.
    pub count: Option<u64>,
    /// Calls that failed.
    pub failed: Option<u64>,
    /// Calls entered whose return was not seen: still inside, cancelled within, or missed (see `lost`).
    pub not_returned: Option<u64>,
    /// Latency of the returned calls.
    pub latency_ns: Latency,
    /// Failures by errno, most frequent first; from events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Why nothing could be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Quantiles of a latency, from a histogram whose buckets are 1/16 wide: each is within 1/32 of the true value,
/// `max` is exact where its event was seen and at most 1/16 too high otherwise. All `null` when nothing returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Latency {
    /// Median.
    pub p50: Option<u64>,
    /// 90th percentile.
    pub p90: Option<u64>,
    /// 99th percentile.
    pub p99: Option<u64>,
    /// Longest.
    pub max: Option<u64>,
    /// Mean.
    pub mean: Option<u64>,
    /// Sum over all calls.
    pub total: Option<u64>,
}

/// Work requests one by one, each with its completion.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Messages {
    /// Send work requests posted.
    pub sends: u64,
    /// Receives posted.
    pub receives: u64,
    /// Work requests seen to be done, by their own completion or by a later one of their queue.
    pub done: u64,
    /// Those of them that failed, flushed ones included.
    pub failed: u64,
    /// Entries of the log that were overwritten before they could be read. Requests outstanding at such a moment are
    /// not paired.
    pub missing: u64,
    /// From the post of a send to the return of the poll that brought its own completion.
    pub send_ns: Latency,
    /// From the post of a receive to the return of the poll that brought its completion: how long it waited.
    pub receive_ns: Latency,
}

/// Failed calls of one errno.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Failure {
    /// Name such as `ENOMEM`, or `unknown` where the errno could not be seen.
    pub errno: String,
    /// Its number; -1 where it could not be seen.
    pub number: i32,
    /// How many.
    pub count: u64,
}

/// Memory registration.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Registration {
    /// Counts and latencies.
    #[serde(flatten)]
    pub calls: Calls,
    /// Bytes of the regions registered.
    pub bytes: Option<u64>,
    /// Regions registered and not deregistered by a call.
    pub live: Option<u64>,
    /// Their bytes.
    pub live_bytes: Option<u64>,
    /// Most regions live at once.
    pub peak: Option<u64>,
    /// Most bytes live at once.
    pub peak_bytes: Option<u64>,
    /// False where events are missing, so that live, peak, sizes, pages, split and repetitions are incomplete.
    pub exact: bool,
    /// Where the time went.
    pub split: Split,
    /// What a page costs.
    pub pages: Pages,
    /// By length.
    pub sizes: Vec<SizeClass>,
    /// Ranges registered more than once.
    pub repeated: Repeated,
    /// Registrations with on-demand paging, which pin nothing.
    pub on_demand: Option<u64>,
}

/// Where the time of registrations went: shares of their whole duration, 0–1, `null` where the kernel has no hook.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, JsonSchema)]
pub struct Split {
    /// In the kernel.
    pub kernel_share: Option<f64>,
    /// In the library: what is not in the kernel.
    pub library_share: Option<f64>,
    /// Pinning pages (part of the kernel's).
    pub pin_share: Option<f64>,
    /// Mapping for the device (part of pinning's).
    pub dma_map_share: Option<f64>,
    /// The driver, without pinning (part of the kernel's).
    pub driver_share: Option<f64>,
    /// Elsewhere in the kernel.
    pub kernel_other_share: Option<f64>,
    /// Page faults while pinning: memory touched for the first time.
    pub page_faults: Option<u64>,
}

/// What a page costs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, JsonSchema)]
pub struct Pages {
    /// Pages of 4 KiB in all registrations that pin.
    pub count: Option<u64>,
    /// Their time divided by their pages, everything included.
    pub mean_ns_per_page: Option<f64>,
    /// Fitted over all of them; `null` where the sizes differ too little.
    pub fit: Option<Fit>,
    /// Fitted over those without page faults only: memory that was there already.
    pub fit_resident: Option<Fit>,
}

/// `duration = base_ns + ns_per_page × pages`, fitted to the median of each size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Fit {
    /// Fixed part.
    pub base_ns: f64,
    /// Part per page of 4 KiB.
    pub ns_per_page: f64,
    /// Registrations it rests on.
    pub registrations: u64,
    /// Smallest number of pages among them.
    pub from_pages: f64,
    /// Largest number of pages among them.
    pub to_pages: f64,
    /// Largest relative deviation of a size's median from the fit.
    pub worst_deviation: f64,
}

/// Registrations of one power of two of length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SizeClass {
    /// Longest length in this class; half of it is the longest of the class below.
    pub up_to_bytes: u64,
    /// Successful registrations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their mean duration.
    pub mean_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
}

/// Ranges registered more than once.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Repeated {
    /// Registrations of a range (same address and length) that had been registered before.
    pub count: Option<u64>,
    /// True where so many ranges were in use that some were forgotten: the count is then a lower bound.
    pub at_least: bool,
    /// The ranges registered most often.
    pub ranges: Vec<Range>,
}

/// A range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Range {
    /// First byte.
    pub addr: u64,
    /// Length.
    pub length_bytes: u64,
    /// Times it was registered.
    pub count: u64,
}

/// Memory deregistration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Deregistration {
    /// Counts and latencies.
    #[serde(flatten)]
    pub calls: Calls,
    /// Regions whose registration was not seen: older than the recording, or an event was lost.
    pub of_unknown: Option<u64>,
}

/// User memory pinned in the kernel.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct KernelPin {
    /// Counts and latencies.
    #[serde(flatten)]
    pub calls: Calls,
    /// Bytes pinned.
    pub bytes: Option<u64>,
    /// Pins inside a registration, which belong to a region; from events.
    pub in_registration: Option<u64>,
    /// Page faults taken inside pins.
    pub page_faults: Option<u64>,
}

/// Queues.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Queues {
    /// QPs created.
    pub qp_created: Option<u64>,
    /// QP creations that failed.
    pub qp_failed: Option<u64>,
    /// QPs destroyed.
    pub qp_destroyed: Option<u64>,
    /// QPs created while recorded and not destroyed by a call.
    pub qp_live: Option<u64>,
    /// Most of them at once.
    pub qp_peak: Option<u64>,
    /// Creation.
    pub qp_create: Calls,
    /// CQs created.
    pub cq_created: Option<u64>,
    /// CQ creations that failed.
    pub cq_failed: Option<u64>,
    /// CQs destroyed.
    pub cq_destroyed: Option<u64>,
    /// CQs created while recorded and not destroyed by a call.
    pub cq_live: Option<u64>,
    /// Most of them at once.
    pub cq_peak: Option<u64>,
    /// Creation.
    pub cq_create: Calls,
    /// SRQs created.
    pub srq_created: Option<u64>,
    /// SRQs created while recorded and not destroyed by a call.
    pub srq_live: Option<u64>,
    /// Most of them at once.
    pub srq_peak: Option<u64>,
    /// Most QPs that shared one CQ at the same time.
    pub qps_per_cq_max: Option<u64>,
    /// False where events are missing, so that live, peak and the lists are incomplete.
    pub exact: bool,
    /// Destroyed objects whose creation was not seen: older than the recording, or an event was lost.
    pub destroyed_of_unknown: u64,
    /// QPs: those alive in order of creation, then the last 4096 destroyed ones, then those known by their posts alone.
    pub qps: Vec<Qp>,
    /// Destroyed QPs beyond those listed.
    pub qps_not_listed: u64,
    /// Live CQs, those with most QPs first, then destroyed ones whose polls were seen.
    pub cqs: Vec<Cq>,
}

/// A queue pair's life.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Qp {
    /// QP number.
    pub qpn: u32,
    /// The process's pointer.
    pub qp: u64,
    /// True when it was destroyed, also where nothing told when.
    pub gone: bool,
    /// `RC`, `UD`, …; `null` where its creation was not seen.
    pub qp_type: Option<String>,
    /// State after the last successful change; `null` before any.
    pub state: Option<String>,
    /// When it was created, from the beginning of the recording; `null` where that was not seen.
    pub created_ns: Option<u64>,
    /// When it was destroyed by a call.
    pub destroyed_ns: Option<u64>,
    /// Send queue depth, WRs.
    pub max_send_wr: u32,
    /// Receive queue depth, WRs.
    pub max_recv_wr: u32,
    /// SGEs per send.
    pub max_send_sge: u32,
    /// SGEs per receive.
    pub max_recv_sge: u32,
    /// Longest inline send.
    pub max_inline_bytes: u32,
    /// Every send is signalled.
    pub sq_sig_all: bool,
    /// CQ of its sends: the process's pointer.
    pub send_cq: u64,
    /// CQ of its receives: the process's pointer.
    pub recv_cq: u64,
    /// SRQ: the process's pointer, 0 without.
    pub srq: u64,
    /// What peers may do through it, bits of `enum ibv_access_flags`.
    pub qp_access_flags: Option<u32>,
    /// Path MTU as set.
    pub path_mtu_bytes: Option<u32>,
    /// The peer's QP number.
    pub dest_qpn: Option<u32>,
    /// The peer's GID.
    pub dgid: Option<String>,
    /// The peer's LID.
    pub dlid: Option<u16>,
    /// Index of the GID used.
    pub sgid_index: Option<u8>,
    /// Traffic class.
    pub traffic_class: Option<u8>,
    /// Acknowledgement timeout: 4.096 µs × 2^this, 0 for ever.
    pub timeout: Option<u8>,
    /// Retries before the QP fails.
    pub retry_cnt: Option<u8>,
    /// Retries when the peer is not ready; 7 for ever.
    pub rnr_retry: Option<u8>,
    /// Code of the shortest wait asked of a peer that found no receive; 0 means 655 ms.
    pub min_rnr_timer: Option<u8>,
    /// READs and atomics outstanding as initiator.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// `ibv_modify_qp` calls on it that failed.
    pub failed_changes: u64,
    /// State changes asked for, oldest first, the first 32.
    pub transitions: Vec<Transition>,
    /// What was posted on it; `null` where that was not seen.
    pub data_path: Option<QpPath>,
}

/// A state change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Transition {
    /// When, from the beginning of the recording.
    pub t_ns: u64,
    /// How long the call took.
    pub duration_ns: u64,
    /// State before, where known.
    pub from: Option<String>,
    /// State asked for.
    pub to: String,
    /// 0 on success.
    pub errno: i32,
}

/// A completion queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Cq {
    /// The process's pointer.
    pub cq: u64,
    /// Entries asked for; `null` where its creation was not seen.
    pub cqe: Option<u32>,
    /// True when it has a completion channel (its user may sleep).
    pub channel: bool,
    /// Numbers of the QPs that complete into it now.
    pub qpns: Vec<u32>,
    /// Most QPs at once.
    pub qps_peak: u64,
    /// True when it was destroyed: listed for what was polled from it.
    pub gone: bool,
    /// What was polled from it; `null` where that was not seen.
    pub data_path: Option<CqPath>,
}

/// State changes of QPs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct ModifyQp {
    /// Counts and latencies.
    #[serde(flatten)]
    pub calls: Calls,
    /// Successful changes by the state reached; from events.
    pub reached: std::collections::BTreeMap<String, u64>,
}

/// Waiting.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Waits {
    /// `ibv_get_cq_event`: its duration is time asleep.
    pub cq_event: Calls,
    /// Completion events acknowledged.
    pub acknowledged: Option<u64>,
    /// `ibv_get_async_event`.
    pub async_event: Calls,
    /// Async events received, by the verbs' name.
    pub async_events: std::collections::BTreeMap<String, u64>,
}

/// Connections through librdmacm.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Connections {
    /// Connections that peers asked for.
    pub requested: Option<u64>,
    /// Connections established.
    pub established: Option<u64>,
    /// Connections ended.
    pub disconnected: Option<u64>,
    /// Requests refused by this process.
    pub rejected: Option<u64>,
    /// From `rdma_resolve_addr` to its answer.
    pub resolve_addr_ns: Latency,
    /// From `rdma_resolve_route` to its answer.
    pub resolve_route_ns: Latency,
    /// From `rdma_connect` to the established connection.
    pub connect_ns: Latency,
    /// From `rdma_accept` to the established connection.
    pub accept_ns: Latency,
    /// From `rdma_disconnect` to its event.
    pub disconnect_ns: Latency,
    /// Steps that failed.
    pub failures: Vec<CmFailure>,
    /// Why nothing could be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Connection steps that failed alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CmFailure {
    /// `resolve_addr`, `resolve_route`, `connect`, `accept` or `disconnect`.
    pub step: String,
    /// Status of the event: a negative errno, or the reason the peer gave for rejecting.
    pub status: i32,
    /// How many.
    pub count: u64,
}

/// Objects of which only the number matters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct OtherObjects {
    /// Protection domains made.
    pub pd_created: Option<u64>,
    /// Protection domains live.
    pub pd_live: Option<u64>,
    /// Completion channels made.
    pub comp_channel_created: Option<u64>,
    /// Completion channels live.
    pub comp_channel_live: Option<u64>,
    /// Devices opened.
    pub device_opened: Option<u64>,
    /// Devices open.
    pub device_open: Option<u64>,
}
