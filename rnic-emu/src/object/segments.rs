//! Pinned pieces of memory, in message order: what a list of scatter/gather entries comes down to.

use super::key::{KeyTable, Pin};
use crate::abi::ibv_sge;
use crate::device::attr::MAX_SGE;
use crate::sys::copy::deliver;
use std::mem::MaybeUninit;

const MAX: usize = MAX_SGE as usize;

/// A run of bytes.
#[derive(Clone, Copy)]
struct Run {
    at: *mut u8,
    len: usize,
}

/// Up to [`MAX_SGE`] runs and the pins that keep them valid.
pub struct Segments<'a> {
    n: usize,
    total: usize,
    runs: [MaybeUninit<Run>; MAX],
    pins: [MaybeUninit<Option<Pin<'a>>>; MAX],
}

impl<'a> Segments<'a> {
    /// Nothing yet.
    #[inline]
    pub fn new() -> Self {
        Self {
            n: 0,
            total: 0,
            runs: [const { MaybeUninit::uninit() }; MAX],
            pins: [const { MaybeUninit::uninit() }; MAX],
        }
    }

    /// One run that is valid by other means (inline data, a record of the ring).
    ///
    /// # Safety
    /// `len` bytes at `at` stay valid, for the direction of the copies made, as long as this list lives.
    #[inline]
    pub unsafe fn of_bytes(at: *mut u8, len: usize) -> Self {
        let mut s = Self::new();
        s.push(Run { at, len }, None);
        s
    }

    /// Pins every entry of a local queue.
    ///
    /// # Errors
    /// `None` is a local protection error.
    #[inline]
    pub fn pin_local(keys: &'a KeyTable, pd: u32, sges: &[ibv_sge], write: bool) -> Option<Self> {
        let mut s = Self::new();
        for sge in sges.iter().take(MAX) {
            if sge.length == 0 {
                continue;
            }
            let (pin, at) = keys.pin_local(sge.lkey, pd, sge.addr, sge.length, write)?;
            s.push(Run { at, len: sge.length as usize }, Some(pin));
        }
        Some(s)
    }

    /// Pins what a remote request names, as one run.
    ///
    /// # Errors
    /// `None` is a remote access error.
    #[inline]
    pub fn pin_remote(
        keys: &'a KeyTable,
        rkey: u32,
        pd: u32,
        qpn: u32,
        addr: u64,
        len: u32,
        need: u32,
    ) -> Option<Self> {
        let (pin, parent, at) = keys.pin_remote(rkey, pd, qpn, addr, u64::from(len), need)?;
        let mut s = Self::new();
        s.push(Run { at, len: len as usize }, Some(pin));
        // The region under a window is held by an empty run of its own.
        if let Some(parent) = parent {
            s.push(Run { at, len: 0 }, Some(parent));
        }
        Some(s)
    }

    #[inline]
    fn push(&mut self, run: Run, pin: Option<Pin<'a>>) {
        if self.n < MAX {
            self.runs[self.n].write(run);
            self.pins[self.n].write(pin);
            self.n += 1;
            self.total += run.len;
        }
    }

    /// Bytes in all runs.
    pub fn total(&self) -> usize {
        self.total
    }

    fn run(&self, i: usize) -> Run {
        debug_assert!(i < self.n);
        // SAFETY: runs below `n` have been written.
        unsafe { self.runs[i].assume_init() }
    }

    /// Copies up to `n` bytes out to `dst`, from byte `offset` of the message on.
    ///
    /// # Safety
    /// `dst` is writable for `n` bytes.
    #[inline]
    pub unsafe fn copy_out(&self, offset: usize, dst: *mut u8, n: usize) {
        // SAFETY: `each` stays within the runs and within `n`.
        self.each(offset, n, |run, done, len| unsafe { deliver(dst.add(done), run, len) });
    }

    /// Copies up to `n` bytes in from `src`, to byte `offset` of the message on.
    ///
    /// # Safety
    /// `src` is readable for `n` bytes.
    #[inline]
    pub unsafe fn copy_in(&self, offset: usize, src: *const u8, n: usize) {
        // SAFETY: as above.
        self.each(offset, n, |run, done, len| unsafe { deliver(run, src.add(done), len) });
    }

    /// Copies the whole of `from` in, from byte `offset` of this list on.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &Segments<'_>) {
        let mut at = offset;
        for i in 0..from.n {
            let r = from.run(i);
            // SAFETY: the source run is pinned, so readable for its length.
            unsafe { self.copy_in(at, r.at, r.len) };
            at += r.len;
        }
    }

    #[inline]
    fn each(&self, offset: usize, n: usize, mut f: impl FnMut(*mut u8, usize, usize)) {
        let (mut skip, mut done) = (offset, 0);
        for i in 0..self.n {
            if done == n {
                return;
            }
            let r = self.run(i);
            if skip >= r.len {
                skip -= r.len;
                continue;
            }
            let len = (r.len - skip).min(n - done);
            // SAFETY: `skip` lies inside the run.
            f(unsafe { r.at.add(skip) }, done, len);
            (skip, done) = (0, done + len);
        }
    }
}

impl Drop for Segments<'_> {
    #[inline]
    fn drop(&mut self) {
        for pin in &mut self.pins[..self.n] {
            // SAFETY: pins below `n` have been written, and are dropped once, here.
            unsafe { pin.assume_init_drop() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::consts::IBV_ACCESS_LOCAL_WRITE;
    use crate::object::key::Grant;

    #[test]
    fn messages_split_differently_on_both_sides_arrive_whole() {
        let keys = KeyTable::new();
        let src: Vec<u8> = (0..100).collect();
        let dst = vec![0u8; 100];
        let (k1, k2) = (keys.reserve().expect("room") << 8, keys.reserve().expect("room") << 8);
        for (k, v) in [(k1, &src), (k2, &dst)] {
            let base = v.as_ptr() as u64;
            keys.open(
                k,
                Grant {
                    base,
                    iova: base,
                    len: 100,
                    access: IBV_ACCESS_LOCAL_WRITE,
                    pd: 1,
                    qpn: 0,
                    parent: 0,
                },
            );
        }
        let split = |key, base: &[u8], cuts: &[u32]| {
            let mut at = base.as_ptr() as u64;
            cuts.iter()
                .map(|&length| {
                    let sge = ibv_sge { addr: at, length, lkey: key };
                    at += u64::from(length);
                    sge
                })
                .collect::<Vec<_>>()
        };
        let from = Segments::pin_local(&keys, 1, &split(k1, &src, &[1, 0, 49, 50]), false).expect("pinned");
        let to = Segments::pin_local(&keys, 1, &split(k2, &dst, &[33, 7, 60]), true).expect("pinned");
        assert_eq!((from.total(), to.total()), (100, 100));
        to.copy_from(0, &from);
        assert_eq!(src, dst);
        drop((from, to));
        assert!(keys.close(k1) && keys.close(k2), "dropping the lists lets go of the pins");
    }

    #[test]
    fn one_bad_entry_spoils_the_list() {
        let keys = KeyTable::new();
        assert!(Segments::pin_local(&keys, 1, &[ibv_sge { addr: 0, length: 1, lkey: 5 }], false).is_none());
        assert!(Segments::pin_local(&keys, 1, &[ibv_sge { addr: 0, length: 0, lkey: 5 }], false).is_some());
    }
}
