//! Shared receive queues.

use crate::abi::{consts::*, *};
use crate::device::context::DeviceContext;
use crate::object::recv_ring::{RecvRing, Taken};
use crate::sys::lock::Lock;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    /// What the program sees, and may change.
    pub ibv: UnsafeCell<ibv_srq>,
    /// The open device, which outlives the SRQ.
    pub context: &'static DeviceContext,
    /// QPs that take from it.
    pub users: AtomicU32,
    /// Requests polled so far.
    pub freed: AtomicU64,
    /// Its protection domain.
    pub pd: u32,
    /// Asynchronous events about it that the program has fetched.
    pub async_taken: AtomicU32,
    /// Its requests.
    pub queue: Lock<SrqQueue>,
}

/// Requests of an SRQ.
pub struct SrqQueue {
    /// The requests.
    pub ring: RecvRing,
    /// Raise an event when fewer than this wait; 0 when not armed.
    pub limit: u32,
}

// SAFETY: the program's view holds pointers only programs follow; everything else is atomic, locked or immutable.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// Our struct around an SRQ of ours.
    ///
    /// # Safety
    /// `srq` is a live SRQ of an emulated device.
    pub unsafe fn of(srq: *mut ibv_srq) -> &'static Self {
        // SAFETY: the caller's promise; the program's view is the first field.
        unsafe { &*srq.cast() }
    }

    /// Takes the oldest request, and reports once when the limit is passed.
    pub fn take(&self, out: &mut [ibv_sge]) -> Option<Taken> {
        let mut queue = self.queue.lock();
        let taken = queue.ring.take(out);
        if queue.limit != 0 && queue.ring.waiting() < u64::from(queue.limit) {
            queue.limit = 0;
            drop(queue);
            let ctx = self.context;
            ctx.process.stats.add(crate::stats::ProcessCounter::AsyncEvents, 1);
            ctx.async_events.raise(std::ptr::from_ref(self) as usize, IBV_EVENT_SRQ_LIMIT_REACHED);
        }
        taken
    }

    /// Posts one request.
    ///
    /// # Errors
    /// As [`RecvRing::post`].
    pub fn post(&self, queue: &mut SrqQueue, wr_id: u64, sges: &[ibv_sge]) -> Result<(), i32> {
        queue.ring.post(wr_id, sges, self.freed.load(Acquire))
    }
}
