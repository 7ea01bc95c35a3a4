//! A place in a trace file, moved on record by record.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use probe_user::sample::Record;
use probe_user::trace::{ReadError, Reader};

use crate::app::world::{Status, World};

/// Records put into the world in one go: a millisecond or so.
const BATCH: usize = 512;

/// A place in a trace.
pub struct Cursor {
    reader: Reader,
    /// Read, but belonging to what comes after the place.
    next: Option<Record>,
    read: Arc<AtomicU64>,
    size: u64,
    /// Nothing is left to read.
    pub at_end: bool,
}

impl Cursor {
    /// Opens a trace at its beginning.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a trace.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let fail = |reason| ReadError::Io { name: name.clone(), reason };
        let file = File::open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        if meta.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        let read = Arc::new(AtomicU64::new(0));
        let counted = Counted { file, read: Arc::clone(&read) };
        let reader = Reader::new(&name, BufReader::with_capacity(256 << 10, counted))?;
        Ok(Self { reader, next: None, read, size: meta.len(), at_end: false })
    }

    /// Takes a batch of records in; stops before the sample after moment `until`. False when there is nothing more to
    /// take in.
    ///
    /// # Errors
    /// When a line is not what a trace holds.
    pub fn batch(&mut self, world: &mut World, until: Option<u64>) -> Result<bool, ReadError> {
        for _ in 0..BATCH {
            let Some(record) = self.next.take().map(Ok).or_else(|| self.reader.next()) else {
                self.at_end = true;
                return Ok(false);
            };
            let record = record?;
            // A moment may come in several samples of the same time; it is over when another record comes.
            let reached = until.is_some_and(|until| world.source.moment >= until);
            let part = matches!(&record, Record::Sample(s) if s.t_ns == world.model.interval.1);
            if reached && !part {
                self.next = Some(record);
                return Ok(false);
            }
            world.push(&record);
        }
        Ok(true)
    }

    /// Share of the file read, 0–1.
    pub fn share_read(&self) -> Option<f64> {
        (self.size > 0).then(|| (self.read.load(Ordering::Relaxed) as f64 / self.size as f64).min(1.0))
    }

    /// Tells the world where it now stands, and what is wrong there.
    pub fn arrived(&self, world: &mut World) {
        world.diagnose();
        world.source.status = Status::Standing;
        world.source.loaded = None;
        if self.at_end {
            world.source.moments = Some(world.source.moment);
            world.source.notes = self.notes();
        }
        world.touch();
    }

    fn notes(&self) -> Vec<String> {
        let notes = self.reader.notes();
        let mut told = Vec::new();
        if let Some(line) = notes.cut_off_line {
            told.push(format!("line {line} is cut off"));
        }
        if notes.no_footer {
            told.push("no footer: the recorder was killed, or still runs".to_owned());
        }
        if notes.unknown_kinds > 0 {
            told.push(format!("{} lines of kinds unknown to this version", notes.unknown_kinds));
        }
        told
    }
}

struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buf)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}
