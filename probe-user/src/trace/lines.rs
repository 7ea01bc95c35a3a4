//! Lines of bounded length out of any stream of bytes.

use std::io::{self, BufRead};

use super::MAX_LINE_BYTES;

/// What the next line turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A whole line is in the buffer, its newline taken off.
    Whole,
    /// The stream ended without a newline; what there was is in the buffer.
    Unfinished,
    /// The line is longer than [`MAX_LINE_BYTES`].
    TooLong,
    /// Nothing is left.
    End,
}

/// Reads the next line into `line`, replacing what it held, and never holding more than [`MAX_LINE_BYTES`].
///
/// A compressed stream cut short (the recorder was killed) ends like a file without a last newline.
pub fn next(source: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    loop {
        let available = match source.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => &[],
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok(if line.is_empty() { Line::End } else { Line::Unfinished });
        }
        let newline = memchr::memchr(b'\n', available);
        let part = newline.unwrap_or(available.len());
        if line.len() + part >= MAX_LINE_BYTES {
            return Ok(Line::TooLong);
        }
        line.extend_from_slice(&available[..part]);
        source.consume(newline.map_or(part, |at| at + 1));
        if newline.is_some() {
            return Ok(Line::Whole);
        }
    }
}
