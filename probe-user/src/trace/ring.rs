//! The last minutes of a recording in memory, written only when they turn out to be worth it.
//!
//! Records are kept as a compressed trace would have them, in pieces that end with a sample. What falls out at the old
//! end is folded into a [`Carry`], so that what is left can be written as a trace of its own.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::sample::{Footer, Header, Record};

use super::carry::Carry;
use super::reader;
use super::writer::{Options, Summary, WriteError, Writer};

/// Lines of a piece that is not cut by a sample before.
const MAX_PIECE_BYTES: usize = 4 << 20;
/// zstd's fastest ordinary level: this runs all the time, and a tenth more memory matters less than processor time.
const ZSTD_LEVEL: i32 = 1;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Time before the latest sample, ns.
    pub ns: u64,
    /// Memory for it; where that is not enough, less time is kept.
    pub bytes: usize,
}

/// A compressed piece.
#[derive(Debug, Clone)]
struct Piece {
    /// Moment of its last sample; of the piece before where it has none.
    until_ns: u64,
    lines: Arc<[u8]>,
}

/// The recording in memory.
#[derive(Debug)]
pub struct Ring {
    extent: Extent,
    carry: Carry,
    pieces: VecDeque<Piece>,
    bytes: usize,
    current: Vec<u8>,
    until_ns: u64,
}

impl Ring {
    /// Begins with nothing.
    pub fn new(header: &Header, extent: Extent) -> Self {
        let mut carry = Carry::default();
        carry.take(&Record::Header(header.clone()));
        Self { extent, carry, pieces: VecDeque::new(), bytes: 0, current: Vec::new(), until_ns: header.t_ns }
    }

    /// Takes in a record, and lets go of what has become too old.
    ///
    /// # Errors
    /// [`WriteError::Encode`] where the record cannot be a line of a trace.
    pub fn push(&mut self, record: &Record) -> Result<(), WriteError> {
        let before = self.current.len();
        if let Err(error) = serde_json::to_writer(&mut self.current, record) {
            self.current.truncate(before);
            return Err(WriteError::Encode(error.to_string()));
        }
        self.current.push(b'\n');
        let sampled = if let Record::Sample(sample) = record {
            self.until_ns = self.until_ns.max(sample.t_ns);
            true
        } else {
            false
        };
        if sampled || self.current.len() >= MAX_PIECE_BYTES {
            self.close_piece()?;
        }
        Ok(())
    }

    /// Bytes of memory the records take.
    pub fn bytes(&self) -> usize {
        self.bytes + self.current.len()
    }

    fn close_piece(&mut self) -> Result<(), WriteError> {
        let lines: Arc<[u8]> = zstd::bulk::compress(&self.current, ZSTD_LEVEL)?.into();
        self.current.clear();
        self.bytes += lines.len();
        self.pieces.push_back(Piece { until_ns: self.until_ns, lines });
        let oldest = self.until_ns.saturating_sub(self.extent.ns);
        while self.pieces.len() > 1 {
            let Some(first) = self.pieces.front() else { break };
            if first.until_ns >= oldest && self.bytes <= self.extent.bytes {
                break;
            }
            let Some(piece) = self.pieces.pop_front() else { break };
            self.bytes -= piece.lines.len();
            let carry = &mut self.carry;
            each_record(&piece.lines, |record| {
                carry.take(&record);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// What is there now, to be written while the recording goes on.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            carry: self.carry.clone(),
            pieces: self.pieces.iter().map(|piece| Arc::clone(&piece.lines)).collect(),
            rest: self.current.clone(),
            until_ns: self.until_ns,
        }
    }
}

/// The recording as it was in memory at one moment.
#[derive(Debug)]
pub struct Snapshot {
    carry: Carry,
    pieces: Vec<Arc<[u8]>>,
    rest: Vec<u8>,
    until_ns: u64,
}

impl Snapshot {
    /// Writes it as a trace that ended for `reason`.
    ///
    /// # Errors
    /// As [`Writer::create`] and [`Writer::finish`]; a disk that fills up ends the trace early, with its own reason.
    pub fn write(self, path: &Path, options: Options, reason: &str) -> Result<Summary, WriteError> {
        let (header, begin) = self.carry.begin();
        let mut writer = Writer::create(path, &header, options)?;
        let mut lost = self.carry.lost();
        let mut put = |record: Record| {
            if let Record::Sample(sample) = &record {
                lost.clone_from(&sample.lost);
            }
            writer.push(&record)
        };
        let outcome = begin
            .into_iter()
            .try_for_each(&mut put)
            .and_then(|()| self.pieces.iter().try_for_each(|lines| each_record(lines, &mut put)))
            .and_then(|()| each_line(&self.rest, &mut put));
        let reason = match outcome {
            Ok(()) => reason.to_owned(),
            Err(error @ (WriteError::DiskFull | WriteError::SizeLimit)) => error.to_string(),
            Err(error) => return Err(error),
        };
        writer.finish(Footer { t_ns: self.until_ns, reason, lost, ..Footer::default() })
    }
}

fn each_record(
    compressed: &[u8],
    take: impl FnMut(Record) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let mut lines = Vec::new();
    zstd::Decoder::new(compressed)?.read_to_end(&mut lines)?;
    each_line(&lines, take)
}

fn each_line(lines: &[u8], mut take: impl FnMut(Record) -> Result<(), WriteError>) -> Result<(), WriteError> {
    let whole = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for line in whole {
        // We wrote it ourselves; a verdict or a call that is read back as unknown was unknown before.
        if let Ok(Some(record)) = reader::record_of(line) {
            take(record)?;
        }
    }
    Ok(())
}
