//! Queue pairs.
//!
//! The memory of a QP is never given back, only used again for another QP, and its number is cleared first: a packet or
//! timer that still refers to it finds a QP with another number and goes away.

use crate::abi::{consts::*, *};
use crate::device::context::DeviceContext;
use crate::device::process::Process;
use crate::engine::pacing::PacedQp;
use crate::object::cq::Cq;
use crate::object::recv_ring::{RecvRing, Taken};
use crate::object::send_queue::SendQueue;
use crate::object::srq::Srq;
use crate::stats::QpStats;
use crate::sys::lock::Lock;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// A queue pair.
#[repr(C)]
pub struct Qp {
    /// What the program sees, and may change; the extended table is filled only on QPs created with it.
    pub ex: UnsafeCell<ibv_qp_ex>,
    number: AtomicU32,
    state: AtomicU32,
    /// Completions of the send queue polled: its slots below this are free.
    pub send_freed: AtomicU64,
    /// The same for the receive queue.
    pub recv_freed: AtomicU64,
    /// When the timer wants this QP; `u64::MAX` for never.
    pub timer: AtomicU64,
    /// The open device, for events.
    pub context: AtomicPtr<DeviceContext>,
    /// Asynchronous events about it that the program has fetched.
    pub async_taken: AtomicU32,
    /// Held from `ibv_wr_start` to `ibv_wr_complete`, and by posts to QPs that have the extended table.
    pub staging: Lock<()>,
    /// Requester. Taken before any `recv`.
    pub send: Lock<Option<Requester>>,
    /// Responder. Its holder takes no `send`.
    pub recv: Lock<Option<Responder>>,
}

/// What the requester needs of the QP beside its queue.
pub struct Requester {
    /// The queue.
    pub queue: SendQueue,
    /// Immutable properties.
    pub fixed: Fixed,
    /// Attributes as set by modify_qp.
    pub attr: ibv_qp_attr,
    /// Device of the connected peer; `None` if its GID is none of ours.
    pub peer_device: Option<u8>,
    /// The QP in the timing model, from its first post on.
    pub paced: Option<PacedQp>,
}

/// What the responder needs of the QP.
pub struct Responder {
    /// Receive queue, unless an SRQ serves it.
    pub ring: RecvRing,
    /// Shared receive queue.
    pub srq: Option<&'static Srq>,
    /// Immutable properties.
    pub fixed: Fixed,
    /// Attributes as set by modify_qp.
    pub attr: ibv_qp_attr,
    /// PSN of the next request.
    pub expected_psn: u32,
    /// A message of which only the first chunks have come.
    pub partial: Option<Partial>,
    /// The requester's round in which a sequence error was reported and not yet cured: further ones stay unreported.
    pub gap_reported: Option<u32>,
    /// The event that no more receives of the SRQ will be used was raised.
    pub last_wqe_raised: bool,
    /// The first message since RTR has come.
    pub established: bool,
    /// Scatter entries of the receive in use.
    pub scratch: Box<[ibv_sge]>,
    /// Counters.
    pub stats: QpStats,
}

/// Properties of a QP that never change.
#[derive(Clone, Copy)]
pub struct Fixed {
    /// QP number.
    pub qpn: u32,
    /// `ibv_qp_type`.
    pub kind: u32,
    /// Protection domain.
    pub pd: u32,
    /// Device index.
    pub device: u8,
    /// The process.
    pub process: &'static Process,
    /// CQ of the send queue.
    pub send_cq: &'static Cq,
    /// CQ of the receive queue.
    pub recv_cq: &'static Cq,
}

/// A message arriving in several chunks.
#[derive(Clone, Copy)]
pub struct Partial {
    /// Its PSN.
    pub psn: u32,
    /// Bytes that have come.
    pub offset: u32,
    /// The receive it fills; `None` for a WRITE.
    pub taken: Option<Taken>,
}

// SAFETY: the program's view holds pointers only programs follow; everything else is atomic, locked or immutable.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// A QP nobody uses.
    pub fn vacant() -> Self {
        Self {
            // SAFETY: pointers, integers and optional function pointers; all zeroes is a valid value.
            ex: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            number: AtomicU32::new(0),
            state: AtomicU32::new(IBV_QPS_RESET),
            send_freed: AtomicU64::new(0),
            recv_freed: AtomicU64::new(0),
            timer: AtomicU64::new(u64::MAX),
            context: AtomicPtr::new(std::ptr::null_mut()),
            async_taken: AtomicU32::new(0),
            staging: Lock::new(()),
            send: Lock::new(None),
            recv: Lock::new(None),
        }
    }

    /// Our struct around a QP of ours.
    ///
    /// # Safety
    /// `qp` is a live QP of an emulated device.
    #[inline]
    pub unsafe fn of(qp: *mut ibv_qp) -> &'static Self {
        // SAFETY: the caller's promise; the program's view is the first field.
        unsafe { &*qp.cast() }
    }

    /// Whether it has the extended posting table.
    #[inline]
    pub fn is_extended(&self) -> bool {
        // SAFETY: the table is written before the program gets the QP, and never after.
        unsafe { (*self.ex.get()).wr_start.is_some() }
    }

    /// Its number; 0 when it is none.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Acquire)
    }

    /// Makes it QP `number`, or nobody with 0.
    pub fn set_number(&self, number: u32) {
        self.number.store(number, Release);
    }

    /// Its state, errors included (the program's view only changes with modify_qp).
    #[inline]
    pub fn state(&self) -> u32 {
        self.state.load(Acquire)
    }

    /// Changes the state.
    pub fn set_state(&self, state: u32) {
        self.state.store(state, Release);
    }

    /// Reports an asynchronous event about it.
    pub fn raise(&self, event: i32) {
        // SAFETY: null, or the open device, which outlives its QPs.
        if let Some(ctx) = unsafe { self.context.load(Acquire).as_ref() } {
            ctx.process.stats.add(crate::stats::ProcessCounter::AsyncEvents, 1);
            ctx.async_events.raise(std::ptr::from_ref(self) as usize, event);
        }
    }
}
