//! The shared counters of a process.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use probe_common::site::Rates;
use probe_common::tap::{BYTES, Header, MAGIC, NAME, SLOTS, Slot, VERSION};

use super::memfd::{self, Mapped};

/// Why the counters of a process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The process is not there, or may not be looked into.
    #[error("cannot look into process {0}")]
    Process(u32, #[source] io::Error),
    /// Something else bears the name of the tap's file.
    #[error("process {pid} has a file named verbs-tap that is not this version's: {what}")]
    Foreign {
        /// The process.
        pid: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The file could not be mapped.
    #[error("cannot map the counters of process {0}")]
    Map(u32, #[source] io::Error),
    /// The process folded slots during every attempt to read them.
    #[error("process {0} reorganised its counters during each of {1} attempts to read them")]
    Unsteady(u32, u32),
}

/// The shared file of one process, open.
pub struct Tap {
    pid: u32,
    file: Mapped,
}

impl Tap {
    /// Opens the file of a process; `None` when it does not run under the tap, or has not used verbs yet.
    ///
    /// # Errors
    /// [`TapError`] for a process that cannot be looked into, and for a file that is not the tap's.
    pub fn of(pid: u32) -> Result<Option<Self>, TapError> {
        let found = memfd::find(
            pid,
            NAME,
            |bytes| bytes == BYTES,
            |file| {
                let header = header(file);
                if (header.magic.load(Acquire), header.version.load(Relaxed)) != (MAGIC, VERSION) {
                    return Err("it was written by another version of the tap");
                }
                let sizes = (header.slot_bytes.load(Relaxed), header.slots.load(Relaxed));
                if sizes != (u32::try_from(size_of::<Slot>()).unwrap_or(0), u32::try_from(SLOTS).unwrap_or(0))
                {
                    return Err("its slots have another size");
                }
                Ok(header.pid.load(Relaxed))
            },
        )?;
        Ok(found.map(|file| Self { pid, file }))
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Device and inode of the file: a program that replaced another has a file of its own.
    pub fn identity(&self) -> (u64, u64) {
        self.file.identity()
    }

    /// Asks the process to call its probe sites for so many of its operations.
    pub fn ask(&self, rates: Rates) {
        self.header().fire.store(rates.0, Relaxed);
    }

    pub(super) fn header(&self) -> &Header {
        header(&self.file)
    }

    /// The slots that were ever used.
    pub(super) fn slots(&self) -> &[Slot] {
        let used = usize::try_from(self.header().used.load(Acquire)).unwrap_or(SLOTS).min(SLOTS);
        // SAFETY: SLOTS slots follow the header in a file of BYTES; they consist of atomics.
        unsafe { self.file.rest(size_of::<Header>(), used) }
    }
}

fn header(file: &Mapped) -> &Header {
    // SAFETY: the file has BYTES, and begins with one; it consists of atomics.
    unsafe { file.start() }
}
