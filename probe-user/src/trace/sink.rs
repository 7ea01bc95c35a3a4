//! The bytes of a trace on their way to disk, with room for the end always in hand.

use std::fs::File;
use std::io::{self, Stdout, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use super::RESERVE_BYTES;

/// How much more is allocated at once, so that reserving costs one system call every few megabytes.
const STEP_BYTES: u64 = 4 << 20;

/// A file, pipe or standard output that refuses to go on while there is still room to end properly.
///
/// Before any write, [`RESERVE_BYTES`] beyond it are allocated; once that fails, [`Write::write`] answers
/// [`io::ErrorKind::StorageFull`] and keeps answering it until [`Sink::use_reserve`] opens what was kept.
#[derive(Debug)]
pub struct Sink {
    output: Output,
    written: u64,
    /// End of the last whole line written; meaningful for uncompressed traces.
    whole_lines: u64,
    limit: Option<u64>,
    reserve: Reserve,
    ending: bool,
}

#[derive(Debug)]
enum Output {
    File(File),
    Stdout(Stdout),
}

/// How the room for the end is kept.
#[derive(Debug)]
enum Reserve {
    /// Blocks are allocated up to this offset, past the end of the file.
    Allocated(u64),
    /// The file system cannot do that (9p, most NFS): an unlinked file of that size is given back at the end.
    Ballast { _file: File },
    /// A pipe, a device, or a file system without room for either.
    None,
}

/// The limit set by the user was reached; carried inside an [`io::Error`] of kind `StorageFull`.
#[derive(Debug, thiserror::Error)]
#[error("the size limit was reached")]
pub struct LimitReached;

impl Sink {
    /// Writes to `file`, at `path`; `limit` is the most bytes it may grow to.
    pub fn file(file: File, path: &Path, limit: Option<u64>) -> Self {
        let regular = file.metadata().is_ok_and(|m| m.is_file());
        let reserve = if !regular {
            Reserve::None
        } else {
            match fallocate(file.as_fd(), FallocateFlags::KEEP_SIZE, 0, RESERVE_BYTES) {
                Ok(()) => Reserve::Allocated(RESERVE_BYTES),
                Err(_) => ballast(path).map_or(Reserve::None, |file| Reserve::Ballast { _file: file }),
            }
        };
        Self { output: Output::File(file), written: 0, whole_lines: 0, limit, reserve, ending: false }
    }

    /// Writes to standard output.
    pub fn stdout() -> Self {
        let output = Output::Stdout(io::stdout());
        Self { output, written: 0, whole_lines: 0, limit: None, reserve: Reserve::None, ending: false }
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// From now on writes may use the room that was kept for the end.
    pub fn use_reserve(&mut self) {
        self.ending = true;
        if matches!(self.reserve, Reserve::Ballast { .. }) {
            self.reserve = Reserve::None;
        }
    }

    /// Gives back what was allocated and not used; with `torn`, also cuts off a line that did not fit.
    pub fn close(self, torn: bool) -> io::Result<u64> {
        let Output::File(file) = &self.output else { return Ok(self.written) };
        let end = if torn { self.whole_lines } else { self.written };
        if let Reserve::Allocated(allocated) = self.reserve {
            // XFS keeps blocks past the end of the file unless they are punched out, ext4 unless it is truncated.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(file.as_fd(), flags, end, allocated.saturating_sub(end).max(1));
        }
        if file.metadata()?.is_file() {
            file.set_len(end)?;
        }
        Ok(end)
    }

    fn make_room(&mut self, more: u64) -> io::Result<()> {
        if self.ending {
            return Ok(());
        }
        let need = self.written.saturating_add(more).saturating_add(RESERVE_BYTES);
        if self.limit.is_some_and(|limit| need > limit) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, LimitReached));
        }
        let (Reserve::Allocated(allocated), Output::File(file)) = (&mut self.reserve, &self.output) else {
            return Ok(());
        };
        if need <= *allocated {
            return Ok(());
        }
        let missing = need - *allocated;
        for extra in [missing + STEP_BYTES, missing] {
            if fallocate(file.as_fd(), FallocateFlags::KEEP_SIZE, *allocated, extra).is_ok() {
                *allocated += extra;
                return Ok(());
            }
        }
        Err(io::ErrorKind::StorageFull.into())
    }
}

fn ballast(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::tempfile_in(folder)?;
    file.write_all(&vec![0; RESERVE_BYTES as usize])?;
    file.flush()?;
    Ok(file)
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.make_room(bytes.len() as u64)?;
        let n = match &mut self.output {
            Output::File(file) => file.write(bytes)?,
            Output::Stdout(out) => out.write(bytes)?,
        };
        if let Some(newline) = memchr::memrchr(b'\n', &bytes[..n]) {
            self.whole_lines = self.written + newline as u64 + 1;
        }
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.output {
            Output::File(file) => file.flush(),
            Output::Stdout(out) => out.flush(),
        }
    }
}
