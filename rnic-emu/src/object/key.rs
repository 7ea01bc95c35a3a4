//! Memory keys: the table that says which addresses an lkey or rkey opens, and to whom.
//!
//! A key is `index << 8 | tag`. Entries never move and are never freed, so a lookup is two steps without a lock: pin
//! the entry, then see whether it still carries that key. Invalidating clears the key first and then waits for the
//! pins to go, so that no copy runs into memory after `ibv_dereg_mr` returned.

use crate::abi::consts::*;
use crate::device::attr::MAX_KEYS;
use crate::sys::lock::Lock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

const CHUNK: usize = 1024;
const CHUNKS: usize = MAX_KEYS as usize / CHUNK;

/// What a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Host address of the first byte.
    pub base: u64,
    /// The address requests use for it.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// `ibv_access_flags`.
    pub access: u32,
    /// Protection domain.
    pub pd: u32,
    /// Only requests arriving at this QP may use it (memory windows of type 2); 0 for any.
    pub qpn: u32,
    /// The region under a memory window; 0 for a region.
    pub parent: u32,
}

/// One entry, a cache line of its own.
#[repr(align(64))]
pub struct Entry {
    pins: AtomicU32,
    /// The key that opens it now; 0 while closed.
    key: AtomicU32,
    base: AtomicU64,
    iova: AtomicU64,
    len: AtomicU64,
    access: AtomicU32,
    pd: AtomicU32,
    qpn: AtomicU32,
    parent: AtomicU32,
    /// Memory windows bound to this region.
    windows: AtomicU32,
}

type Chunk = [Entry; CHUNK];

/// All keys of the process.
pub struct KeyTable {
    chunks: Box<[AtomicPtr<Chunk>]>,
    free: Lock<Free>,
}

struct Free {
    recycled: std::collections::VecDeque<u32>,
    /// Lowest index never used; index 0 stays unused so that key 0 never opens anything.
    next: u32,
}

/// An open entry, kept from being closed until dropped.
pub struct Pin<'a> {
    entry: &'a Entry,
}

impl KeyTable {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            free: Lock::new(Free { recycled: std::collections::VecDeque::new(), next: 1 }),
        }
    }

    /// Reserves an index, or ENOMEM. The entry is closed.
    pub fn reserve(&self) -> Result<u32, i32> {
        let mut free = self.free.lock();
        // Recycle late: a stale key should stay recognisably stale for as long as possible.
        if free.recycled.len() > 64
            && let Some(index) = free.recycled.pop_front()
        {
            return Ok(index);
        }
        if free.next < MAX_KEYS {
            let index = free.next;
            free.next += 1;
            let slot = &self.chunks[index as usize / CHUNK];
            if slot.load(Relaxed).is_null() {
                let chunk: Box<Chunk> = Box::new(std::array::from_fn(|_| Entry::new()));
                slot.store(Box::into_raw(chunk), Release);
            }
            return Ok(index);
        }
        free.recycled.pop_front().ok_or(libc::ENOMEM)
    }

    /// Gives a closed index back.
    pub fn unreserve(&self, index: u32) {
        self.free.lock().recycled.push_back(index);
    }

    /// The entry behind a key's index.
    #[inline]
    pub fn entry(&self, key: u32) -> Option<&Entry> {
        let index = (key >> 8) as usize;
        let chunk = self.chunks.get(index / CHUNK)?.load(Acquire);
        // SAFETY: null, or a leaked chunk.
        unsafe { chunk.as_ref() }.map(|c| &c[index % CHUNK])
    }

    /// The key that opens the entry at `index` now; 0 while it is closed.
    pub fn opening(&self, index: u32) -> u32 {
        self.entry(index << 8).map_or(0, |e| e.key.load(SeqCst))
    }

    /// Opens the entry of `key` with `grant`.
    pub fn open(&self, key: u32, grant: Grant) {
        if let Some(e) = self.entry(key) {
            e.store(&grant);
            e.key.store(key, SeqCst);
        }
    }

    /// Closes the entry of `key` if that key opens it now, and waits for the copies under way.
    pub fn close(&self, key: u32) -> bool {
        let Some(e) = self.entry(key) else { return false };
        if key == 0 || e.key.compare_exchange(key, 0, SeqCst, SeqCst).is_err() {
            return false;
        }
        while e.pins.load(SeqCst) != 0 {
            std::thread::yield_now();
        }
        true
    }

    /// Pins the entry `key` opens.
    #[inline]
    pub fn pin(&self, key: u32) -> Option<Pin<'_>> {
        let entry = self.entry(key)?;
        entry.pins.fetch_add(1, SeqCst);
        let pin = Pin { entry };
        (key != 0 && entry.key.load(SeqCst) == key).then_some(pin)
    }

    /// Pins what a scatter/gather entry of a local queue names, and says where it lies.
    ///
    /// # Errors
    /// `None` is a local protection error.
    #[inline]
    pub fn pin_local(
        &self,
        lkey: u32,
        pd: u32,
        addr: u64,
        len: u32,
        write: bool,
    ) -> Option<(Pin<'_>, *mut u8)> {
        let pin = self.pin(lkey)?;
        let e = pin.entry;
        let allowed = e.pd.load(Relaxed) == pd
            && e.parent.load(Relaxed) == 0
            && (!write || e.access.load(Relaxed) & IBV_ACCESS_LOCAL_WRITE != 0);
        let at = e.locate(addr, u64::from(len))?;
        allowed.then_some((pin, at))
    }

    /// Pins what a remote request names. `need` are the access flags it takes; `qpn` the QP it arrived at.
    ///
    /// # Errors
    /// `None` is a remote access error.
    #[inline]
    pub fn pin_remote(
        &self,
        rkey: u32,
        pd: u32,
        qpn: u32,
        addr: u64,
        len: u64,
        need: u32,
    ) -> Option<(Pin<'_>, Option<Pin<'_>>, *mut u8)> {
        let pin = self.pin(rkey)?;
        let e = pin.entry;
        let bound_to = e.qpn.load(Relaxed);
        let allowed = e.pd.load(Relaxed) == pd
            && (bound_to == 0 || bound_to == qpn)
            && e.access.load(Relaxed) & need == need;
        let at = e.locate(addr, len)?;
        // The region under a window must stay, too.
        let parent = match e.parent.load(Relaxed) {
            0 => None,
            key => Some(self.pin(key)?),
        };
        allowed.then_some((pin, parent, at))
    }
}

impl Entry {
    fn new() -> Self {
        Self {
            pins: AtomicU32::new(0),
            key: AtomicU32::new(0),
            base: AtomicU64::new(0),
            iova: AtomicU64::new(0),
            len: AtomicU64::new(0),
            access: AtomicU32::new(0),
            pd: AtomicU32::new(0),
            qpn: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            windows: AtomicU32::new(0),
        }
    }

    fn store(&self, g: &Grant) {
        self.base.store(g.base, Relaxed);
        self.iova.store(g.iova, Relaxed);
        self.len.store(g.len, Relaxed);
        self.access.store(g.access, Relaxed);
        self.pd.store(g.pd, Relaxed);
        self.qpn.store(g.qpn, Relaxed);
        self.parent.store(g.parent, Relaxed);
    }

    /// Host address of `len` bytes at `addr`, if they all lie inside.
    #[inline]
    fn locate(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let offset = addr.checked_sub(self.iova.load(Relaxed))?;
        let end = offset.checked_add(len)?;
        (end <= self.len.load(Relaxed)).then(|| (self.base.load(Relaxed) + offset) as *mut u8)
    }

    /// Windows bound to this region.
    pub fn windows(&self) -> &AtomicU32 {
        &self.windows
    }
}

impl Pin<'_> {
    /// What the entry grants.
    pub fn grant(&self) -> Grant {
        let e = self.entry;
        Grant {
            base: e.base.load(Relaxed),
            iova: e.iova.load(Relaxed),
            len: e.len.load(Relaxed),
            access: e.access.load(Relaxed),
            pd: e.pd.load(Relaxed),
            qpn: e.qpn.load(Relaxed),
            parent: e.parent.load(Relaxed),
        }
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.entry.pins.fetch_sub(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(pd: u32, access: u32) -> Grant {
        Grant { base: 0x1000, iova: 0x8000, len: 0x100, access, pd, qpn: 0, parent: 0 }
    }

    #[test]
    fn bounds_pd_and_access_are_all_checked() {
        let t = KeyTable::new();
        let key = t.reserve().expect("room") << 8 | 7;
        t.open(key, region(3, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
        let at = |addr, len| t.pin_local(key, 3, addr, len, true).map(|(_, p)| p as u64);
        assert_eq!(at(0x8000, 0x100), Some(0x1000));
        assert_eq!(at(0x80ff, 1), Some(0x10ff));
        assert_eq!(at(0x8100, 0), Some(0x1100));
        assert_eq!(at(0x80ff, 2), None);
        assert_eq!(at(0x7fff, 1), None);
        assert_eq!(at(u64::MAX, 1), None);
        assert!(t.pin_local(key, 4, 0x8000, 1, false).is_none(), "another PD");
        assert!(t.pin_local(key ^ 1, 3, 0x8000, 1, false).is_none(), "another tag");
        assert!(t.pin_remote(key, 3, 9, 0x8000, 8, IBV_ACCESS_REMOTE_READ).is_some());
        assert!(t.pin_remote(key, 3, 9, 0x8000, 8, IBV_ACCESS_REMOTE_WRITE).is_none());
        assert!(t.pin_remote(key, 3, 9, 0x8000, u64::MAX, IBV_ACCESS_REMOTE_READ).is_none());
    }

    #[test]
    fn a_closed_key_opens_nothing_and_key_zero_never_does() {
        let t = KeyTable::new();
        let key = t.reserve().expect("room") << 8;
        t.open(key, region(1, 0));
        assert!(t.pin(key).is_some());
        assert!(t.close(key));
        assert!(!t.close(key));
        assert!(t.pin(key).is_none());
        assert!(t.pin(0).is_none());
        assert!(t.pin(u32::MAX).is_none());
    }

    #[test]
    fn closing_waits_for_a_pin() {
        let t = KeyTable::new();
        let key = t.reserve().expect("room") << 8;
        t.open(key, region(1, 0));
        let pin = t.pin(key).expect("open");
        std::thread::scope(|s| {
            let closing = s.spawn(|| t.close(key));
            while t.pin(key).is_some() {}
            assert!(!closing.is_finished());
            drop(pin);
            assert!(closing.join().expect("no panic"));
        });
    }
}
