//! The device's own counters: the ground truth tools are held against.
//!
//! They live in a sealed memory file named `rnic-emu-stats` that every context's `cmd_fd` refers to, so a reader finds
//! it in `/proc/PID/fd` while the program runs, and it is gone with the process. A QP's counters are written by whoever
//! holds that QP's lock (plain stores, no shared cache line), and folded into the device's totals when the QP goes.

mod asked;
mod counters;
mod layout;
mod reader;
mod writer;

pub use asked::Asked;
pub use counters::{CqCounter, ModelCounter, ProcessCounter, QpCounter};
pub use layout::{FILE_NAME, MAX_CQS, MAX_DEVICES, MAX_QPS, VERSION};
pub use reader::{CqSnapshot, QpSnapshot, ReadError, Snapshot, read};
pub use writer::{CqStats, QpStats, StatsFile};
