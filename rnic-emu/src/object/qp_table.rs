//! Queue pairs by number.
//!
//! A QP number is `slot << 16 | index`: the slot says which process of the host, the index which of its QPs.

use super::qp::Qp;
use crate::device::attr::MAX_QP;
use crate::stats::MAX_QPS;
use crate::sys::lock::Lock;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// Indices below this are never used: QP numbers 0 and 1 have a meaning of their own.
const FIRST: u32 = 0x10;

/// QPs of this process.
pub struct QpTable {
    slot: u8,
    entries: Box<[AtomicPtr<Qp>]>,
    free: Lock<Free>,
}

struct Free {
    next: u32,
    live: u32,
    vacant: Vec<&'static Qp>,
}

/// The process a QP number belongs to.
pub fn slot_of(qpn: u32) -> u8 {
    (qpn >> 16) as u8
}

/// The index of a QP number within its process.
pub fn index_of(qpn: u32) -> usize {
    (qpn & 0xffff) as usize
}

impl QpTable {
    /// No QPs, for the process at `slot`.
    pub fn new(slot: u8) -> Self {
        Self {
            slot,
            entries: (0..MAX_QPS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            free: Lock::new(Free { next: FIRST, live: 0, vacant: Vec::new() }),
        }
    }

    /// Whether QP number `qpn` would be of this process.
    #[inline]
    pub fn is_local(&self, qpn: u32) -> bool {
        slot_of(qpn) == self.slot && qpn >> 24 == 0
    }

    /// A vacant QP and a number for it, not yet findable; ENOMEM when there are too many.
    pub fn claim(&self) -> Result<(&'static Qp, u32), i32> {
        let mut free = self.free.lock();
        if free.live >= MAX_QP {
            return Err(libc::ENOMEM);
        }
        // Numbers are handed out round robin: one that was just in use would receive its predecessor's packets.
        let mut index = free.next;
        while !self.entries[index as usize].load(Relaxed).is_null() {
            index = if index as usize + 1 == MAX_QPS { FIRST } else { index + 1 };
        }
        free.next = if index as usize + 1 == MAX_QPS { FIRST } else { index + 1 };
        free.live += 1;
        let qp = free.vacant.pop().unwrap_or_else(|| Box::leak(Box::new(Qp::vacant())));
        self.entries[index as usize].store(std::ptr::from_ref(qp).cast_mut(), Release);
        Ok((qp, u32::from(self.slot) << 16 | index))
    }

    /// Takes a QP out: its number means nothing from now on.
    pub fn release(&self, qp: &'static Qp, qpn: u32) {
        let mut free = self.free.lock();
        self.entries[index_of(qpn)].store(std::ptr::null_mut(), Release);
        free.live -= 1;
        free.vacant.push(qp);
    }

    /// The QP with this number. It may be destroyed meanwhile: look at its number again under its lock.
    #[inline]
    pub fn find(&self, qpn: u32) -> Option<&'static Qp> {
        if !self.is_local(qpn) {
            return None;
        }
        self.at(index_of(qpn))
    }

    /// Every QP there is.
    pub fn all(&self) -> impl Iterator<Item = &'static Qp> + '_ {
        (0..self.entries.len()).filter_map(|i| self.at(i))
    }

    /// The QP at this index.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&'static Qp> {
        // SAFETY: null, or a leaked box.
        unsafe { self.entries.get(index)?.load(Acquire).as_ref() }
    }
}
