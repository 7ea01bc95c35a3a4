//! Asking the device of another process for which operations it calls its digest sites.

use super::layout::{MAGIC, VERSION, word};
use super::reader::{self, ReadError};
use probe_common::site::Rates;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// A process with an emulated device, which is told what its digest sites are wanted for.
#[derive(Debug)]
pub struct Asked {
    pid: u32,
    file: File,
}

impl Asked {
    /// Opens the counter file of a process.
    ///
    /// # Errors
    /// [`ReadError`] as for reading it.
    pub fn of(pid: u32) -> Result<Self, ReadError> {
        let path = reader::find(pid)?;
        let io = |source| ReadError::Io { pid, source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        let head = reader::words(&file, 0, 2).map_err(io)?;
        if head[word::MAGIC] != MAGIC {
            return Err(ReadError::NoDevice(pid));
        }
        if head[word::VERSION] != VERSION {
            return Err(ReadError::Version { pid, found: head[word::VERSION] });
        }
        Ok(Self { pid, file })
    }

    /// Asks for so many of each kind of operation.
    ///
    /// # Errors
    /// When the file cannot be written to.
    pub fn ask(&self, rates: Rates) -> Result<(), ReadError> {
        let io = |source| ReadError::Io { pid: self.pid, source };
        self.file.write_all_at(&u64::from(rates.0).to_ne_bytes(), word::RATES as u64 * 8).map_err(io)
    }
}
