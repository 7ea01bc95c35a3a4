//! The trace file: JSON Lines, one [`Record`](crate::sample::Record) per line, described in `docs/trace-format.md`.
//!
//! [`Writer`] is what a recording writes through; [`Reader`] is how everything offline reads it back. A path ending in
//! `.zst` is compressed with zstd on the way, `-` is standard output or input.

mod carry;
mod destination;
mod event_line;
mod lines;
mod reader;
mod ring;
mod rotate;
mod sink;
mod writer;

pub use carry::Carry;
pub use reader::{Notes, ReadError, Reader};
pub use ring::{Extent, Ring, Snapshot};
pub use rotate::{Rotating, Rotation, numbered};
pub use writer::{Options, Summary, WriteError, Writer};

/// Longest line a reader accepts and a writer produces, newline included.
///
/// It bounds what a hostile or foreign file can make a reader hold in memory. A sample that would be longer is written
/// as several samples of the same moment.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Space a writer keeps in hand beyond what it has written, so that a full disk still leaves room for what is
/// buffered and for the footer.
pub const RESERVE_BYTES: u64 = 512 << 10;
