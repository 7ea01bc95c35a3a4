//! Layout of the counter file: a header of 64-bit words, then QP records, then CQ records.

use super::counters::{CqCounter, ModelCounter, ProcessCounter, QpCounter};

/// Name of the memory file, as `/proc/PID/fd` shows it: `/memfd:rnic-emu-stats (deleted)`.
pub const FILE_NAME: &str = "rnic-emu-stats";
pub(super) const FILE_NAME_C: &std::ffi::CStr = c"rnic-emu-stats";
/// "RNICEMUS" in memory order.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"RNICEMUS");
/// Raised with every change of this file's format.
pub const VERSION: u64 = 3;
/// QP records, one per QP number a process can use.
pub const MAX_QPS: usize = 1 << 16;
/// CQ records.
pub const MAX_CQS: usize = 1 << 14;
/// Emulated devices a process can have.
pub const MAX_DEVICES: usize = 16;

pub(super) mod word {
    //! Word offsets in the header.
    use super::*;
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const PID: usize = 2;
    /// Odd while totals are being changed together.
    pub const SEQUENCE: usize = 3;
    pub const DEVICES: usize = 4;
    /// One more than the highest QP record ever used.
    pub const QP_HIGH: usize = 5;
    pub const CQ_HIGH: usize = 6;
    /// Written by a profiler: for which operations the digest sites are called (`probe_common::site::Rates`).
    pub const RATES: usize = 7;
    pub const PROCESS: usize = 16;
    /// Per device, the counters of QPs that are gone.
    pub const CLOSED_QPS: usize = PROCESS + 64;
    pub const CLOSED_CQS: usize = CLOSED_QPS + MAX_DEVICES * 64;
    /// What the timing model counts.
    pub const MODEL: usize = CLOSED_CQS + 64;
    pub const END: usize = MODEL + 64;

    const _: () = assert!(ProcessCounter::COUNT <= 64 && QpCounter::COUNT <= 64 && CqCounter::COUNT <= 16);
    const _: () = assert!(ModelCounter::COUNT <= 64);
}

pub(super) mod record {
    //! Words of one QP or CQ record before its counters.
    /// 0 where unused, else QP number + 1 or CQ handle + 1.
    pub const LIVE: usize = 0;
    pub const DEVICE: usize = 1;
    /// QP type; entries of a CQ.
    pub const KIND: usize = 2;
    pub const STATE: usize = 3;
    /// Destination QP number; CQ of the send queue and of the receive queue.
    pub const PEER: usize = 4;
    pub const SEND_CQ: usize = 5;
    pub const RECV_CQ: usize = 6;
    pub const COUNTERS: usize = 8;
}

pub(super) const HEADER_WORDS: usize = 2048;
pub(super) const QP_WORDS: usize = 64;
pub(super) const CQ_WORDS: usize = 32;
pub(super) const QPS_AT: usize = HEADER_WORDS;
pub(super) const CQS_AT: usize = QPS_AT + MAX_QPS * QP_WORDS;
/// Words of the whole file; its pages exist only where touched.
pub(super) const TOTAL_WORDS: usize = CQS_AT + MAX_CQS * CQ_WORDS;

const _: () = assert!(word::END <= HEADER_WORDS);
const _: () = assert!(record::COUNTERS + QpCounter::COUNT <= QP_WORDS);
const _: () = assert!(record::COUNTERS + CqCounter::COUNT <= CQ_WORDS);
