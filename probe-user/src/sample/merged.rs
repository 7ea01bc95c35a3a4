//! What only a trace merged from several recordings holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ProcessId;

/// A recording that was merged into a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Host {
    /// Its host, with a number behind it where several recordings are of the same one.
    pub host: String,
    /// Its kernel release.
    pub kernel: String,
    /// What was added to its `t_ns`.
    pub offset_ns: i64,
    /// The clocks differ from that by no more than this; `null` where nothing but wall clocks relates them.
    pub bound_ns: Option<u64>,
    /// How the offset was found.
    pub offset_from: OffsetFrom,
    /// How its recording ended; empty where it was cut off.
    pub reason: String,
}

/// How the offset between two hosts' clocks was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OffsetFrom {
    /// Its clock is the trace's own.
    Reference,
    /// The same boot of the same machine: one clock.
    SameClock,
    /// From what must have come before what in the connections between the hosts, within which the wall clocks choose.
    Connections,
    /// The connections contradict each other by twice the bound: the clocks drifted apart while recorded, or two ends
    /// were joined that do not belong together.
    Contradiction,
    /// From the wall clocks alone: as good as they agreed.
    #[default]
    WallClocks,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct End {
    /// Whose queue pair.
    #[serde(flatten)]
    pub id: ProcessId,
    /// The process's own pointer.
    pub qp: u64,
    /// QP number.
    pub qpn: u32,
}

/// Two queue pairs that talk to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// When the second of them was ready to receive.
    pub t_ns: u64,
    /// The end that was ready to receive first.
    pub a: End,
    /// The other.
    pub b: End,
}
