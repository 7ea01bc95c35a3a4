//! What failed: posts that were refused, and completion entries with an error; how often, and which request was the first.

use crate::wire::STACK_FRAMES;

/// Key of the table of failures; the value is [`Failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct FailureKey {
    /// Start time of the process.
    pub start_ns: u64,
    /// Thread-group id.
    pub tgid: u32,
    /// QP number, or the handle of a shared receive queue.
    pub number: u32,
    /// One of [`what`], and who counted from bit 16 on, one of [`crate::counters::source`].
    pub what: u32,
    /// errno of a post, status of a completion entry.
    pub code: u32,
}

/// What failed.
pub mod what {
    /// A post to a send queue.
    pub const POST: u32 = 1;
    /// A post to a receive queue.
    pub const RECEIVE: u32 = 2;
    /// A post to a shared receive queue.
    pub const SHARED_RECEIVE: u32 = 3;
    /// A work request, by its completion entry. The QP number is 0 where the extended API does not tell it.
    pub const CQE: u32 = 4;
}

/// Failures of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Failed {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first: Request,
}

/// A request that failed, as far as it is known. What [`known`] does not promise is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Request {
    /// When the poll found its completion entry, or the post returned.
    pub t_ns: u64,
    /// The program's number for it.
    pub wr_id: u64,
    /// When it was posted; of [`known::BEFORE`] that is when the one after it was.
    pub posted_ns: u64,
    /// At the place of its remote address; see [`crate::under_way::UnderWay::remote_addr`].
    pub remote_addr: u64,
    /// Address of its first buffer.
    pub addr: u64,
    /// Bytes of its payload.
    pub bytes: u64,
    /// Remote key, or the QP number of a datagram's peer.
    pub rkey: u32,
    /// Key of the first buffer.
    pub lkey: u32,
    /// See [`crate::under_way::Class`].
    pub class: u32,
    /// One of [`known`].
    pub known: u32,
    /// What the device says of the error; 0 of posts, and where the interface does not tell it.
    pub vendor_err: u32,
    /// Of posts: entries of its list.
    pub sges: u32,
    /// Of posts: requests of the same call before it. Of [`known::BEFORE`]: unsignalled ones of which it is one.
    pub before: u64,
    /// Of completion entries: work requests posted and not known complete, itself included. Of posts: requests of the
    /// call that were not posted, itself included.
    pub outstanding: u64,
    /// Of [`known::BEFORE`]: number of the signalled request after it.
    pub next_wr_id: u64,
    /// Of posts: who called, innermost first; zeroes behind the last one, or where nobody is known.
    pub stack: [u64; STACK_FRAMES],
}

/// How the failed request is known.
pub mod known {
    /// Not at all.
    pub const NOT: u32 = 0;
    /// It was read, or remembered.
    pub const EXACTLY: u32 = 1;
    /// The oldest that is remembered with its number: others have that number, too.
    pub const BY_NUMBER: u32 = 2;
    /// It is one of the unsignalled requests posted before a signalled one that is remembered, or none is remembered; or a
    /// receive. What is told is of that signalled one, where there is one.
    pub const BEFORE: u32 = 3;
    /// Not every post is looked at.
    pub const SAMPLED: u32 = 4;
    /// No request that was seen has its number: a receive, or one posted before anybody looked.
    pub const UNSEEN: u32 = 5;
    /// More were under way than are remembered.
    pub const FORGOTTEN: u32 = 6;
    /// Which queue pair it was posted to is not known.
    pub const NO_QUEUE: u32 = 7;
}

const _: () = assert!(size_of::<FailureKey>() == 24 && size_of::<Failed>() == 8 + 96 + STACK_FRAMES * 8);
