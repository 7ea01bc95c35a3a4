//! Reading another process' counters while it runs.

use super::counters::{CqCounter, ModelCounter, ProcessCounter, QpCounter};
use super::layout::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Why counters could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The process does not exist, or its descriptors may not be looked at.
    #[error("cannot look at the descriptors of process {pid}: {source}")]
    Process {
        /// The process asked for.
        pid: u32,
        /// What the system said.
        source: std::io::Error,
    },
    /// The process has no emulated device open.
    #[error("process {0} has no emulated RNIC open (no descriptor named /memfd:rnic-emu-stats)")]
    NoDevice(u32),
    /// Opened or read badly.
    #[error("cannot read the counters of process {pid}: {source}")]
    Io {
        /// The process asked for.
        pid: u32,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another version of the emulated device wrote it.
    #[error("process {pid} runs an emulated RNIC with counter format {found}; this program reads {VERSION}")]
    Version {
        /// The process asked for.
        pid: u32,
        /// The format it writes.
        found: u64,
    },
}

/// One QP's counters.
#[derive(Clone, Debug)]
pub struct QpSnapshot {
    /// QP number.
    pub qpn: u32,
    /// Index of its device.
    pub device: u32,
    /// `ibv_qp_type`.
    pub kind: u32,
    /// `ibv_qp_state`.
    pub state: u32,
    /// Destination QP number, 0 before it is connected.
    pub peer: u32,
    /// Handle of the send queue's CQ.
    pub send_cq: u32,
    /// Handle of the receive queue's CQ.
    pub recv_cq: u32,
    counters: [u64; QpCounter::COUNT],
}

/// One CQ's counters.
#[derive(Clone, Debug)]
pub struct CqSnapshot {
    /// `ibv_cq.handle`.
    pub handle: u32,
    /// Entries it has room for.
    pub entries: u32,
    counters: [u64; CqCounter::COUNT],
}

/// All counters of one process at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The process.
    pub pid: u32,
    /// QPs alive.
    pub qps: Vec<QpSnapshot>,
    /// CQs alive.
    pub cqs: Vec<CqSnapshot>,
    process: [u64; ProcessCounter::COUNT],
    model: [u64; ModelCounter::COUNT],
    closed_qps: [u64; QpCounter::COUNT],
    closed_cqs: [u64; CqCounter::COUNT],
}

impl QpSnapshot {
    /// Value of a counter.
    pub fn get(&self, counter: QpCounter) -> u64 {
        self.counters[counter as usize]
    }
}

impl CqSnapshot {
    /// Value of a counter.
    pub fn get(&self, counter: CqCounter) -> u64 {
        self.counters[counter as usize]
    }
}

impl Snapshot {
    /// A counter of the process.
    pub fn process(&self, counter: ProcessCounter) -> u64 {
        self.process[counter as usize]
    }

    /// A counter of the timing model; all are 0 where none is at work.
    pub fn model(&self, counter: ModelCounter) -> u64 {
        self.model[counter as usize]
    }

    /// A QP counter summed over every QP of the process, living and gone.
    pub fn qp_total(&self, counter: QpCounter) -> u64 {
        self.closed_qps[counter as usize] + self.qps.iter().map(|q| q.get(counter)).sum::<u64>()
    }

    /// A CQ counter summed over every CQ of the process, living and gone.
    pub fn cq_total(&self, counter: CqCounter) -> u64 {
        self.closed_cqs[counter as usize] + self.cqs.iter().map(|q| q.get(counter)).sum::<u64>()
    }
}

/// Reads the counters of process `pid`.
///
/// # Errors
/// [`ReadError`] says whether the process, its device or the permission is missing.
pub fn read(pid: u32) -> Result<Snapshot, ReadError> {
    let path = find(pid)?;
    let io = |source| ReadError::Io { pid, source };
    let file = File::open(path).map_err(io)?;
    head(pid, &file)?;
    let mut best = None;
    // A QP being destroyed moves its counters; a few tries always find a quiet moment.
    for _ in 0..64 {
        let before = words(&file, 0, HEADER_WORDS).map_err(io)?;
        let qps = records(&file, QPS_AT, QP_WORDS, before[word::QP_HIGH], MAX_QPS).map_err(io)?;
        let cqs = records(&file, CQS_AT, CQ_WORDS, before[word::CQ_HIGH], MAX_CQS).map_err(io)?;
        let after = words(&file, word::SEQUENCE, 1).map_err(io)?[0];
        let snapshot = build(pid, &before, &qps, &cqs);
        if after == before[word::SEQUENCE] && after % 2 == 0 {
            return Ok(snapshot);
        }
        best = Some(snapshot);
    }
    best.ok_or(ReadError::NoDevice(pid))
}

/// Checks that a file is ready, and of this version. Its magic is written last: one that has none, or is still empty, is no
/// device yet.
pub(super) fn head(pid: u32, file: &File) -> Result<(), ReadError> {
    let head = match words(file, 0, 2) {
        Ok(head) => head,
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => vec![0; 2],
        Err(source) => return Err(ReadError::Io { pid, source }),
    };
    match (head[word::MAGIC], head[word::VERSION]) {
        (MAGIC, VERSION) => Ok(()),
        (MAGIC, found) => Err(ReadError::Version { pid, found }),
        _ => Err(ReadError::NoDevice(pid)),
    }
}

pub(super) fn find(pid: u32) -> Result<PathBuf, ReadError> {
    let dir = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&dir).map_err(|source| ReadError::Process { pid, source })?;
    let wanted = format!("/memfd:{FILE_NAME}");
    for entry in entries.flatten() {
        if fs::read_link(entry.path()).is_ok_and(|t| t.to_string_lossy().starts_with(&wanted)) {
            return Ok(entry.path());
        }
    }
    Err(ReadError::NoDevice(pid))
}

pub(super) fn words(file: &File, at: usize, n: usize) -> std::io::Result<Vec<u64>> {
    let mut bytes = vec![0; n * 8];
    file.read_exact_at(&mut bytes, at as u64 * 8)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|c| u64::from_ne_bytes(*c)).collect())
}

fn records(file: &File, at: usize, size: usize, high: u64, max: usize) -> std::io::Result<Vec<u64>> {
    words(file, at, (high as usize).min(max) * size)
}

fn build(pid: u32, header: &[u64], qps: &[u64], cqs: &[u64]) -> Snapshot {
    let mut closed_qps = [0; QpCounter::COUNT];
    for device in 0..MAX_DEVICES {
        let at = word::CLOSED_QPS + device * 64;
        for (total, n) in closed_qps.iter_mut().zip(&header[at..]) {
            *total += n;
        }
    }
    Snapshot {
        pid,
        qps: qps.chunks_exact(QP_WORDS).filter(|r| r[record::LIVE] != 0).map(qp).collect(),
        cqs: cqs.chunks_exact(CQ_WORDS).filter(|r| r[record::LIVE] != 0).map(cq).collect(),
        process: take(&header[word::PROCESS..]),
        model: take(&header[word::MODEL..]),
        closed_qps,
        closed_cqs: take(&header[word::CLOSED_CQS..]),
    }
}

fn take<const N: usize>(words: &[u64]) -> [u64; N] {
    std::array::from_fn(|i| words[i])
}

fn qp(r: &[u64]) -> QpSnapshot {
    QpSnapshot {
        qpn: (r[record::LIVE] - 1) as u32,
        device: r[record::DEVICE] as u32,
        kind: r[record::KIND] as u32,
        state: r[record::STATE] as u32,
        peer: r[record::PEER] as u32,
        send_cq: r[record::SEND_CQ] as u32,
        recv_cq: r[record::RECV_CQ] as u32,
        counters: take(&r[record::COUNTERS..]),
    }
}

fn cq(r: &[u64]) -> CqSnapshot {
    CqSnapshot {
        handle: (r[record::LIVE] - 1) as u32,
        entries: r[record::KIND] as u32,
        counters: take(&r[record::COUNTERS..]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::StatsFile;
    use super::*;
    use crate::stats::ProcessCounter;
    use crate::sys::memfd;

    #[test]
    fn a_live_file_is_found_by_pid_and_survives_the_end_of_a_qp() {
        let file: &'static StatsFile = Box::leak(Box::new(StatsFile::create(1).expect("memfd")));
        let qp = file.qp(17);
        qp.open(17, 0, 2, 3, 4);
        qp.add(QpCounter::SendWrs, 5);
        file.add(ProcessCounter::MrsRegistered, 2);
        let one = read(std::process::id()).expect("own counters");
        assert_eq!((one.qps.len(), one.qps[0].qpn, one.qps[0].get(QpCounter::SendWrs)), (1, 17, 5));
        assert_eq!(one.process(ProcessCounter::MrsRegistered), 2);
        file.fold_qp(qp);
        let two = read(std::process::id()).expect("own counters");
        assert_eq!((two.qps.len(), two.qp_total(QpCounter::SendWrs)), (0, 5));
    }

    #[test]
    fn a_file_that_is_being_made_is_no_device_yet() {
        let empty = File::open("/dev/null").expect("an empty file");
        assert!(matches!(head(7, &empty), Err(ReadError::NoDevice(7))));
        let file = File::from(memfd::create(c"being-made", TOTAL_WORDS * 8).expect("memfd"));
        assert!(matches!(head(7, &file), Err(ReadError::NoDevice(7))));
        let write = |at: usize, value: u64| file.write_all_at(&value.to_ne_bytes(), at as u64 * 8);
        write(word::VERSION, VERSION + 1).expect("a version");
        assert!(matches!(head(7, &file), Err(ReadError::NoDevice(7))));
        write(word::MAGIC, MAGIC).expect("a magic");
        assert!(matches!(head(7, &file), Err(ReadError::Version { found, .. }) if found == VERSION + 1));
        write(word::VERSION, VERSION).expect("a version");
        assert!(head(7, &file).is_ok());
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let e = read(u32::MAX).expect_err("no such process");
        assert!(e.to_string().contains("4294967295"), "{e}");
    }
}
