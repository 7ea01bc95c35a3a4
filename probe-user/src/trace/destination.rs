//! Where a trace goes: which existing files may be replaced, and with which permissions a new one is made.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, fchown};
use std::path::Path;

use crate::target::invoking_user;

use super::writer::WriteError;

/// Opens `path` for a new trace.
///
/// A new file belongs to whoever called sudo, and is readable by its owner alone: a trace tells addresses, commands and peers of other people's programs.
/// An existing file is replaced only when it is empty or itself a trace, and replaced rather than truncated, so that
/// nobody who still reads the old one sees it change. Pipes and character devices (`/dev/null`) are written to as they
/// are. A symbolic link is followed only below `/dev` and `/proc`: a recording runs as root, and a link that someone
/// laid in `/tmp` must not choose which file root overwrites.
pub fn open(path: &Path) -> Result<File, WriteError> {
    let io = |reason| WriteError::Create { path: path.to_owned(), reason };
    let found = if path.starts_with("/dev") || path.starts_with("/proc") {
        std::fs::metadata(path)
    } else {
        std::fs::symlink_metadata(path)
    };
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
        Ok(meta) if meta.file_type().is_fifo() || meta.file_type().is_char_device() => {
            return OpenOptions::new().write(true).open(path).map_err(io);
        }
        Ok(meta) if !meta.is_file() => {
            let what = if meta.is_dir() { "is a directory" } else { "is neither a file nor a pipe" };
            return Err(WriteError::Refused { path: path.to_owned(), why: what.to_owned() });
        }
        Ok(meta) => {
            if meta.len() > 0 && !looks_like_a_trace(path).map_err(io)? {
                let why = "exists and is not a trace; remove it or choose another name".to_owned();
                return Err(WriteError::Refused { path: path.to_owned(), why });
            }
            std::fs::remove_file(path).map_err(io)?;
        }
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
    if let Some(user) = invoking_user() {
        // Whoever called sudo wants to read the trace. Where the file system knows no owners, it stays root's.
        let _ = fchown(&file, Some(user.uid), Some(user.gid));
    }
    Ok(file)
}

/// True when the file's first bytes are those of a trace of any version, compressed or not.
fn looks_like_a_trace(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let mut start = Vec::new();
    if path.extension().is_some_and(|e| e == "zst") {
        // A recording that was killed leaves a frame without an end: what could be read decides.
        let _ = zstd::Decoder::new(file)?.take(256).read_to_end(&mut start);
    } else {
        file.take(256).read_to_end(&mut start)?;
    }
    Ok(start.starts_with(b"{") && memchr::memmem::find(&start, b"\"rdma-trace/").is_some())
}
