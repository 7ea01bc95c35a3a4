//! Asking the device of another process for which operations it calls its digest sites.

use super::layout::word;
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
        reader::head(pid, &file)?;
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
