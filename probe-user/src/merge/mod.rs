//! Recordings of several hosts on one time line, with both ends of each connection joined.
//!
//! Every recording is read twice: once for its queue pairs and what relates them to those of other recordings
//! ([`ends`]), from which the offsets between the clocks follow ([`clocks`]), and once to be written
//! ([`Merger::write`]). Memory grows with queue pairs, not with records.
//!
//! Where the recordings have single work requests (`record --messages`), messages are paired one by one ([`messages`]).

mod clocks;
mod ends;
mod messages;
mod write;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::Latency;
use crate::sample::{Connection, Header, Host};
use crate::trace::{ReadError, Reader, WriteError};

pub use clocks::{Bounds, Estimate, estimate};
use ends::{Ends, Joined};

/// The schema named by every summary of a merge.
pub const SCHEMA: &str = "rdma-merge/1";

/// Why traces could not be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// One of them cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The result cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A trace that was itself merged has no single clock to relate.
    #[error("'{}' is itself a merged trace; merge the recordings it was made from", .0.display())]
    Merged(PathBuf),
}

/// What came out of a merge.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Summary {
    /// Always `rdma-merge/1`.
    pub schema: String,
    /// The recordings, in the order given.
    pub hosts: Vec<Host>,
    /// Connections whose ends were both found.
    pub connections: u64,
    /// Those of them between two different recordings.
    pub between_hosts: u64,
    /// Connected queue pairs whose other end is in no recording.
    pub without_peer: u64,
    /// Connected queue pairs for which several others would do, because QP numbers were used again; not joined.
    pub ambiguous: u64,
    /// Messages whose post at one end and receive at the other were both found, on reliable connections (RC).
    pub messages: u64,
    /// Those of which only one was: still on their way at the end, or missing in a recording.
    pub messages_unpaired: u64,
    /// From the beginning of a post to the return of the poll that brought its receive, uncertain by the clocks' bounds.
    pub message_latency_ns: Latency,
    /// Events written.
    pub events: u64,
    /// Samples written.
    pub samples: u64,
    /// Bytes of the merged trace.
    pub bytes: u64,
}

/// Recordings related to each other, ready to be written.
#[derive(Debug)]
pub struct Merger {
    files: Vec<PathBuf>,
    headers: Vec<Header>,
    hosts: Vec<Host>,
    joined: Joined,
}

impl Merger {
    /// Reads the recordings and relates their clocks; the first one's clock is the reference.
    ///
    /// # Errors
    /// When one cannot be read, or was itself merged.
    pub fn read(files: &[PathBuf]) -> Result<Self, MergeError> {
        let mut headers = Vec::new();
        let mut reasons = Vec::new();
        let mut all = Vec::new();
        for file in files {
            let (header, ends, reason) = survey(file)?;
            if !header.hosts.is_empty() {
                return Err(MergeError::Merged(file.clone()));
            }
            headers.push(header);
            reasons.push(reason);
            all.push(ends);
        }
        let joined = ends::join(&headers, &all);
        let offsets = clocks::place(&headers, &joined.bounds);
        let names = labels(&headers);
        let hosts = headers
            .iter()
            .zip(names)
            .zip(offsets.iter().zip(reasons))
            .map(|((header, host), (offset, reason))| Host {
                host,
                kernel: header.kernel.clone(),
                offset_ns: offset.offset_ns,
                bound_ns: offset.bound_ns,
                offset_from: offset.from,
                reason,
            })
            .collect();
        Ok(Self { files: files.to_vec(), headers, hosts, joined })
    }

    /// The recordings and their offsets.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Connections whose ends were both found, as (recording, queue pair) twice, each with the moment it was ready.
    pub fn connections(&self) -> impl Iterator<Item = Connection> + '_ {
        self.joined.connections(&self.hosts)
    }
}

/// Reads a recording once: its header, its queue pairs, how it ended.
fn survey(file: &Path) -> Result<(Header, Ends, String), MergeError> {
    let mut reader = Reader::open(file)?;
    let header = reader.header().clone();
    let mut ends = Ends::default();
    for record in reader.by_ref() {
        ends.take(&record?);
    }
    let reason = ends.reason.clone();
    Ok((header, ends, reason))
}

/// Host names, with a number behind those that occur more than once.
fn labels(headers: &[Header]) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for header in headers {
        let host = if header.host.is_empty() { "host" } else { header.host.as_str() };
        let mut label = host.to_owned();
        let mut n = 2;
        while labels.contains(&label) {
            label = format!("{host}#{n}");
            n += 1;
        }
        labels.push(label);
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_name_are_told_apart() {
        let named = |host: &str| Header { host: host.to_owned(), ..Header::default() };
        assert_eq!(labels(&["a", "b", "a", ""].map(named)), ["a", "b", "a#2", "host"]);
    }
}
