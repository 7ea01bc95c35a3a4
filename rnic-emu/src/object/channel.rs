//! Completion channels.

use crate::abi::{ibv_comp_channel, ibv_cq};
use crate::object::cq::Cq;
use crate::sys::bell::Bell;
use crate::sys::lock::Lock;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;

/// A channel: its descriptor is readable while events wait.
#[repr(C)]
pub struct Channel {
    /// What the program sees.
    pub ibv: ibv_comp_channel,
    /// The descriptor.
    pub bell: Bell,
    /// CQs with an event not yet fetched, oldest first.
    pub queue: Lock<VecDeque<CqRef>>,
    /// CQs attached to it.
    pub users: AtomicU32,
}

/// A CQ in a channel's queue. It cannot be destroyed before its events are taken out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CqRef(pub *const Cq);

// SAFETY: a `Cq` may be used from any thread.
unsafe impl Send for CqRef {}

// SAFETY: the program's view holds pointers only programs follow; everything else is atomic, locked or immutable.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Our struct around a channel of ours.
    ///
    /// # Safety
    /// `channel` is a live channel of an emulated device.
    pub unsafe fn of(channel: *mut ibv_comp_channel) -> &'static Self {
        // SAFETY: the caller's promise; the program's view is the first field.
        unsafe { &*channel.cast() }
    }

    /// Adds an event of `cq`.
    pub fn notify(&self, cq: &Cq) {
        self.queue.lock().push_back(CqRef(cq));
        self.bell.ring();
    }

    /// The next event's CQ, waiting unless the program made the descriptor non-blocking.
    pub fn take(&self) -> std::io::Result<*mut ibv_cq> {
        loop {
            self.bell.take()?;
            if let Some(CqRef(cq)) = self.queue.lock().pop_front() {
                return Ok(cq.cast::<ibv_cq>().cast_mut());
            }
        }
    }

    /// Takes out the events of a CQ that is being destroyed; says how many there were.
    pub fn forget(&self, cq: &Cq) -> u32 {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|c| *c != CqRef(cq));
        (before - queue.len()) as u32
    }
}
