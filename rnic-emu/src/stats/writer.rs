//! The device's side of the counter file.

use super::counters::{CqCounter, ModelCounter, ProcessCounter, QpCounter};
use super::layout::*;
use crate::sys::memfd::{self, Shared};
use probe_common::site::Rates;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The counters of this process.
pub struct StatsFile {
    fd: OwnedFd,
    map: Shared,
    folding: crate::sys::lock::Lock<()>,
}

impl StatsFile {
    /// A fresh file for `devices` devices.
    pub fn create(devices: usize) -> io::Result<Self> {
        let len = TOTAL_WORDS * 8;
        let fd = memfd::create(FILE_NAME_C, len)?;
        let map = Shared::map(fd.as_fd(), len, true)?;
        map.keep_from_children();
        let file = Self { fd, map, folding: crate::sys::lock::Lock::new(()) };
        file.word(word::VERSION).store(VERSION, Relaxed);
        file.word(word::PID).store(u64::from(std::process::id()), Relaxed);
        file.word(word::DEVICES).store(devices as u64, Relaxed);
        // As long as nobody asks for less, tracers of any kind find every operation at the sites.
        file.word(word::RATES).store(u64::from(Rates::ALL.0), Relaxed);
        file.word(word::MAGIC).store(MAGIC, Release);
        Ok(file)
    }

    /// The file, for a context's `cmd_fd`.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// For which operations the digest sites are to be called.
    #[inline]
    pub fn rates(&self) -> Rates {
        Rates(self.word(word::RATES).load(Relaxed) as u32)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words()[at]
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has TOTAL_WORDS aligned words and lives as long as `self`; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.map.base().cast(), TOTAL_WORDS) }
    }

    /// Adds to a counter of the process.
    pub fn add(&self, counter: ProcessCounter, n: u64) {
        self.word(word::PROCESS + counter as usize).fetch_add(n, Relaxed);
    }

    /// Raises a counter of the process to at least `n`.
    pub fn max(&self, counter: ProcessCounter, n: u64) {
        self.word(word::PROCESS + counter as usize).fetch_max(n, Relaxed);
    }

    /// Publishes what the timing model has counted so far.
    pub fn set_model(&self, counter: ModelCounter, n: u64) {
        self.word(word::MODEL + counter as usize).store(n, Relaxed);
    }

    /// The record of QP index `index`, to be written under that QP's locks.
    pub fn qp(&'static self, index: usize) -> QpStats {
        self.word(word::QP_HIGH).fetch_max(index as u64 + 1, Relaxed);
        let at = QPS_AT + index * QP_WORDS;
        QpStats { words: &self.words()[at..at + QP_WORDS] }
    }

    /// The record of CQ `index`, to be written under that CQ's lock.
    pub fn cq(&'static self, index: usize) -> CqStats {
        self.word(word::CQ_HIGH).fetch_max(index as u64 + 1, Relaxed);
        let at = CQS_AT + index * CQ_WORDS;
        CqStats { words: &self.words()[at..at + CQ_WORDS] }
    }

    /// Moves a QP's counters into its device's totals and frees the record.
    pub fn fold_qp(&self, qp: QpStats) {
        let device = (qp.words[record::DEVICE].load(Relaxed) as usize).min(MAX_DEVICES - 1);
        self.fold(qp.words, QpCounter::COUNT, word::CLOSED_QPS + device * 64);
    }

    /// Moves a CQ's counters into the process' totals and frees the record.
    pub fn fold_cq(&self, cq: CqStats) {
        self.fold(cq.words, CqCounter::COUNT, word::CLOSED_CQS);
    }

    fn fold(&self, words: &[AtomicU64], counters: usize, totals: usize) {
        let _one_at_a_time = self.folding.lock();
        self.word(word::SEQUENCE).fetch_add(1, AcqRel);
        for i in 0..counters {
            let n = words[record::COUNTERS + i].swap(0, Relaxed);
            self.word(totals + i).fetch_add(n, Relaxed);
        }
        words[record::LIVE].store(0, Relaxed);
        self.word(word::SEQUENCE).fetch_add(1, AcqRel);
    }
}

/// Where one QP is counted.
#[derive(Clone, Copy)]
pub struct QpStats {
    words: &'static [AtomicU64],
}

impl QpStats {
    /// Claims the record.
    pub fn open(&self, qpn: u32, device: usize, kind: u32, send_cq: u32, recv_cq: u32) {
        self.words[record::DEVICE].store(device as u64, Relaxed);
        self.words[record::KIND].store(u64::from(kind), Relaxed);
        self.words[record::STATE].store(0, Relaxed);
        self.words[record::PEER].store(0, Relaxed);
        self.words[record::SEND_CQ].store(u64::from(send_cq), Relaxed);
        self.words[record::RECV_CQ].store(u64::from(recv_cq), Relaxed);
        self.words[record::LIVE].store(u64::from(qpn) + 1, Release);
    }

    /// Notes the QP's state and destination.
    pub fn state(&self, state: u32, peer: u32) {
        self.words[record::STATE].store(u64::from(state), Relaxed);
        self.words[record::PEER].store(u64::from(peer), Relaxed);
    }

    /// Adds to a counter. The caller holds the lock that counter belongs to: a plain add is then exact.
    #[inline]
    pub fn add(&self, counter: QpCounter, n: u64) {
        bump(&self.words[record::COUNTERS + counter as usize], n);
    }
}

/// Where one CQ is counted.
#[derive(Clone, Copy)]
pub struct CqStats {
    words: &'static [AtomicU64],
}

impl CqStats {
    /// Claims the record.
    pub fn open(&self, handle: u32, device: usize, entries: u32) {
        self.words[record::DEVICE].store(device as u64, Relaxed);
        self.words[record::KIND].store(u64::from(entries), Relaxed);
        self.words[record::LIVE].store(u64::from(handle) + 1, Release);
    }

    /// Adds to a counter, under the CQ's lock.
    #[inline]
    pub fn add(&self, counter: CqCounter, n: u64) {
        bump(&self.words[record::COUNTERS + counter as usize], n);
    }
}

#[inline]
fn bump(word: &AtomicU64, n: u64) {
    word.store(word.load(Relaxed).wrapping_add(n), Relaxed);
}
