//! Layout of the memory file of one connection.

use std::sync::atomic::AtomicU64;

/// Bytes of each ring. Power of two.
pub const RING: usize = 1 << 20;
/// Where the rings begin.
const CONTROL: usize = 4096;
/// Bytes of the whole file.
pub const TOTAL: usize = CONTROL + 2 * RING;

/// Control words, each on a cache line of its own: two processes write them.
#[repr(C)]
pub struct Control {
    /// Bytes ever written to the request ring, by the requester.
    pub request_head: Line,
    /// Bytes ever consumed from it, by the responder.
    pub request_tail: Line,
    /// Bytes ever written to the answer ring, by the responder.
    pub answer_head: Line,
    /// Bytes ever consumed from it, by the requester.
    pub answer_tail: Line,
    /// How the responder wants to be woken when requests come: see `Rouse`.
    pub rouse_responder: Line,
    /// How the requester wants to be woken when answers come or room appears.
    pub rouse_requester: Line,
    /// 1 while the responder cannot go on for want of room in the answer ring.
    pub answers_stalled: Line,
}

/// A word on a line of its own.
#[repr(C, align(128))]
pub struct Line(pub AtomicU64);

/// Nobody sleeps: whoever is awake will look.
pub const AWAKE: u64 = 0;
/// The helper thread sleeps: send a byte over the connection.
pub const HELPER: u64 = 1;

const _: () = assert!(size_of::<Control>() <= CONTROL);

/// The parts of a mapped connection.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Control words.
    pub control: &'static Control,
    /// Request ring.
    pub requests: *mut u8,
    /// Answer ring.
    pub answers: *mut u8,
}

// SAFETY: addresses of shared memory that is only touched through atomics and raw copies, under the link's locks.
unsafe impl Send for Parts {}

impl Parts {
    /// Takes a mapping of at least [`TOTAL`] bytes apart.
    ///
    /// # Safety
    /// `base` maps TOTAL bytes, and the parts are not used after it is unmapped.
    pub unsafe fn of(base: *mut u8) -> Self {
        // SAFETY: the caller's promise; the mapping is page aligned.
        unsafe {
            Self { control: &*base.cast(), requests: base.add(CONTROL), answers: base.add(CONTROL + RING) }
        }
    }
}
