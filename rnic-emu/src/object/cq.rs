//! Completion queues.

use crate::abi::{consts::*, *};
use crate::device::context::DeviceContext;
use crate::object::channel::Channel;
use crate::object::qp::Qp;
use crate::object::srq::Srq;
use crate::stats::{CqCounter, CqStats};
use crate::sys::clock;
use crate::sys::lock::Lock;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// A completion queue.
#[repr(C)]
pub struct Cq {
    /// What the program sees, and may change.
    pub ex: UnsafeCell<ibv_cq_ex>,
    /// The open device, which outlives the CQ.
    pub context: &'static DeviceContext,
    /// The channel it reports to.
    pub channel: Option<&'static Channel>,
    /// Queues that complete into it.
    pub users: AtomicU32,
    /// Completion events handed to the program.
    pub events_taken: AtomicU32,
    /// Asynchronous events raised about it that the program has fetched.
    pub async_taken: AtomicU32,
    /// Index of its counters.
    pub index: u32,
    /// Its contents.
    pub ring: Lock<CqRing>,
    /// Held from `ibv_start_poll` to `ibv_end_poll`. Not the ring's lock: a program may post while it polls.
    pub poller: Lock<Poller>,
}

/// Which queue a completion frees a slot of.
#[derive(Clone, Copy)]
pub enum Frees {
    /// The QP's send queue, up to and including this WQE counter.
    Send(u64),
    /// The QP's receive queue, up to and including this WQE counter.
    Recv(u64),
    /// One slot of a shared receive queue.
    Srq(&'static Srq),
}

/// A completion in the queue.
#[derive(Clone, Copy)]
pub struct Cqe {
    /// What the program will see.
    pub wc: ibv_wc,
    /// The queue pair; its memory outlives it, `wc.qp_num` says whether it is still that one.
    pub qp: &'static Qp,
    /// What it frees.
    pub frees: Frees,
    /// Nanoseconds of the monotonic clock, where the program asked for time stamps.
    pub at_ns: u64,
    /// The same moment on the wall clock.
    pub wall_ns: u64,
}

/// When the CQ shall report to its channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// Not at all.
    No,
    /// With the next completion that is solicited or failed.
    Solicited,
    /// With the next completion.
    Any,
}

/// Contents of a CQ.
pub struct CqRing {
    slots: Box<[Option<Cqe>]>,
    head: u64,
    tail: u64,
    /// Entries promised to the program.
    capacity: u64,
    /// A completion was lost: the CQ takes no more.
    pub overrun: bool,
    /// Program promised to handle overruns itself.
    pub ignore_overrun: bool,
    /// Time stamps wanted.
    pub stamps: bool,
    /// Reporting.
    pub armed: Armed,
    /// Counters.
    pub stats: CqStats,
}

/// An extended poll under way.
pub struct Poller {
    /// The completion it stands at.
    pub current: Option<Cqe>,
    /// Its completions so far, for the probe site.
    pub batch: Box<[ibv_wc]>,
    /// When each was found, while a profiler asks for all.
    pub found_ns: Box<[u64]>,
    /// How many of them.
    pub batched: usize,
    /// Completions of this poll.
    pub taken: u64,
    /// When it began, with a timing model.
    pub start_ns: u64,
}

impl Poller {
    /// No poll under way. Only extended CQs have room for a batch.
    pub fn new(extended: bool) -> Self {
        let room = if extended { BATCH } else { 0 };
        Self {
            current: None,
            batch: vec![ibv_wc::default(); room].into_boxed_slice(),
            found_ns: vec![0; room].into_boxed_slice(),
            batched: 0,
            taken: 0,
            start_ns: 0,
        }
    }
}

/// Completions of one extended poll that the probe site is shown at once.
pub const BATCH: usize = 256;

impl CqRing {
    /// An empty ring of `capacity` entries.
    pub fn new(capacity: u32, stats: CqStats) -> Self {
        Self {
            slots: vec![None; capacity.next_power_of_two() as usize].into_boxed_slice(),
            head: 0,
            tail: 0,
            capacity: u64::from(capacity),
            overrun: false,
            ignore_overrun: false,
            stamps: false,
            armed: Armed::No,
            stats,
        }
    }

    /// Completions waiting.
    pub fn len(&self) -> u64 {
        self.tail - self.head
    }

    /// Takes the oldest completion and frees its queue slot.
    #[inline]
    pub fn pop(&mut self) -> Option<Cqe> {
        if self.head == self.tail {
            return None;
        }
        let mask = self.slots.len() - 1;
        let cqe = self.slots[self.head as usize & mask].take();
        self.head += 1;
        if let Some(cqe) = &cqe {
            cqe.free();
        }
        cqe
    }

    fn push(&mut self, cqe: Cqe) -> bool {
        if self.len() >= self.capacity {
            return false;
        }
        let mask = self.slots.len() - 1;
        self.slots[self.tail as usize & mask] = Some(cqe);
        self.tail += 1;
        true
    }

    /// Removes the completions of a QP that is being reset or destroyed; their queue slots go with it.
    pub fn forget(&mut self, qp: &Qp) {
        let mask = self.slots.len() - 1;
        let mut keep = self.head;
        for at in self.head..self.tail {
            let cqe = self.slots[at as usize & mask].take();
            match cqe {
                Some(c) if std::ptr::eq(c.qp, qp) => {
                    if let Frees::Srq(_) = c.frees {
                        c.free();
                    }
                }
                other => {
                    self.slots[keep as usize & mask] = other;
                    keep += 1;
                }
            }
        }
        self.tail = keep;
    }

    /// Changes the size, keeping the contents. False if they would not fit.
    pub fn resize(&mut self, capacity: u32) -> bool {
        if self.len() > u64::from(capacity) {
            return false;
        }
        let mut slots = vec![None; capacity.next_power_of_two() as usize].into_boxed_slice();
        let mask = self.slots.len() - 1;
        let n = self.len();
        for i in 0..n {
            slots[i as usize] = self.slots[(self.head + i) as usize & mask].take();
        }
        (self.slots, self.head, self.tail, self.capacity) = (slots, 0, n, u64::from(capacity));
        true
    }
}

impl Cqe {
    /// Frees the queue slots this completion stands for. On hardware, too, a slot is free when its completion has been
    /// *polled*: a program that never signals fills its send queue.
    #[inline]
    fn free(&self) {
        match self.frees {
            Frees::Send(counter) if self.qp.number() == self.wc.qp_num => {
                self.qp.send_freed.fetch_max(counter + 1, AcqRel);
            }
            Frees::Recv(counter) if self.qp.number() == self.wc.qp_num => {
                self.qp.recv_freed.fetch_max(counter + 1, AcqRel);
            }
            Frees::Srq(srq) => {
                srq.freed.fetch_add(1, AcqRel);
            }
            _ => {}
        }
    }
}

// SAFETY: the program's view holds pointers only programs follow; everything else is atomic, locked or immutable.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// Our struct around a CQ of ours.
    ///
    /// # Safety
    /// `cq` is a live CQ of an emulated device.
    #[inline]
    pub unsafe fn of(cq: *mut ibv_cq) -> &'static Self {
        // SAFETY: the caller's promise; the program's view is the first field.
        unsafe { &*cq.cast() }
    }

    /// Adds a completion. False if the queue was full: the completion is lost and the CQ in error.
    pub fn push(&self, mut cqe: Cqe, solicited: bool) -> bool {
        let mut ring = self.ring.lock();
        if ring.stamps {
            cqe.at_ns = clock::now_ns();
            cqe.wall_ns = clock::wall_ns();
        }
        if ring.overrun || !ring.push(cqe) {
            ring.stats.add(CqCounter::Overruns, 1);
            let ignored = ring.ignore_overrun;
            let first = !std::mem::replace(&mut ring.overrun, !ignored);
            drop(ring);
            if first && !ignored {
                let ctx = self.context;
                ctx.process.stats.add(crate::stats::ProcessCounter::AsyncEvents, 1);
                ctx.async_events.raise(std::ptr::from_ref(self) as usize, IBV_EVENT_CQ_ERR);
            }
            return ignored;
        }
        ring.stats.add(CqCounter::Cqes, 1);
        let report = match ring.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited || cqe.wc.status != IBV_WC_SUCCESS,
        };
        if report {
            ring.armed = Armed::No;
            if let Some(channel) = self.channel {
                ring.stats.add(CqCounter::Events, 1);
                channel.notify(self);
            }
        }
        true
    }
}
