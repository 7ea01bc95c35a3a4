//! A ring of posted receives, of a QP or of an SRQ.

use crate::abi::ibv_sge;

/// Fixed-size ring of receive work requests, oldest first.
pub struct RecvRing {
    ids: Box<[(u64, u32)]>,
    sges: Box<[ibv_sge]>,
    max_sge: u32,
    max_wr: u32,
    posted: u64,
    taken: u64,
}

/// A receive taken for an arriving message.
#[derive(Clone, Copy)]
pub struct Taken {
    /// The program's identifier.
    pub wr_id: u64,
    /// Its WQE counter.
    pub counter: u64,
    /// Entries copied out.
    pub n_sge: u32,
}

impl RecvRing {
    /// An empty ring for `max_wr` requests of up to `max_sge` entries.
    pub fn new(max_wr: u32, max_sge: u32) -> Self {
        let slots = if max_wr == 0 { 0 } else { max_wr.next_power_of_two() as usize };
        Self {
            ids: vec![(0, 0); slots].into_boxed_slice(),
            sges: vec![ibv_sge::default(); slots * max_sge as usize].into_boxed_slice(),
            max_sge,
            max_wr,
            posted: 0,
            taken: 0,
        }
    }

    /// Requests it has room for.
    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Entries a request may have.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Requests waiting for a message.
    pub fn waiting(&self) -> u64 {
        self.posted - self.taken
    }

    /// WQE counter of the next request posted.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Adds a request. `freed` is how many of all requests ever posted have been polled.
    ///
    /// # Errors
    /// ENOMEM when full, EINVAL with too many entries.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[ibv_sge], freed: u64) -> Result<(), i32> {
        if self.posted.saturating_sub(freed) >= u64::from(self.max_wr) {
            return Err(libc::ENOMEM);
        }
        if sges.len() > self.max_sge as usize {
            return Err(libc::EINVAL);
        }
        let slot = self.posted as usize & (self.ids.len() - 1);
        let at = slot * self.max_sge as usize;
        self.ids[slot] = (wr_id, sges.len() as u32);
        self.sges[at..at + sges.len()].copy_from_slice(sges);
        self.posted += 1;
        Ok(())
    }

    /// Takes the oldest request, copying its entries to `out` (which has room for `max_sge`).
    #[inline]
    pub fn take(&mut self, out: &mut [ibv_sge]) -> Option<Taken> {
        if self.taken == self.posted {
            return None;
        }
        let counter = self.taken;
        let slot = counter as usize & (self.ids.len() - 1);
        let (wr_id, n_sge) = self.ids[slot];
        let at = slot * self.max_sge as usize;
        let n = (n_sge as usize).min(out.len());
        out[..n].copy_from_slice(&self.sges[at..at + n]);
        self.taken += 1;
        Some(Taken { wr_id, counter, n_sge: n as u32 })
    }

    /// Changes how many requests it has room for, keeping those that wait. The caller has seen that they fit.
    pub fn resize(&mut self, max_wr: u32) {
        let mut bigger = Self::new(max_wr, self.max_sge);
        let max_sge = self.max_sge as usize;
        for counter in self.taken..self.posted {
            let (from, to) =
                (counter as usize & (self.ids.len() - 1), counter as usize & (bigger.ids.len() - 1));
            bigger.ids[to] = self.ids[from];
            bigger.sges[to * max_sge..(to + 1) * max_sge]
                .copy_from_slice(&self.sges[from * max_sge..(from + 1) * max_sge]);
        }
        (bigger.posted, bigger.taken) = (self.posted, self.taken);
        *self = bigger;
    }

    /// Throws everything away.
    pub fn clear(&mut self) {
        self.posted = 0;
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_only_once_polled() {
        let mut r = RecvRing::new(2, 1);
        let sge = [ibv_sge { addr: 1, length: 2, lkey: 3 }];
        let mut out = [ibv_sge::default(); 1];
        assert_eq!(r.post(10, &sge, 0), Ok(()));
        assert_eq!(r.post(11, &sge, 0), Ok(()));
        assert_eq!(r.post(12, &sge, 0), Err(libc::ENOMEM));
        assert_eq!(r.take(&mut out).map(|t| (t.wr_id, t.counter)), Some((10, 0)));
        assert_eq!(r.post(12, &sge, 0), Err(libc::ENOMEM), "taken but not polled");
        assert_eq!(r.post(12, &sge, 1), Ok(()));
        assert_eq!(r.post(13, &[sge[0]; 2], 2), Err(libc::EINVAL));
    }

    #[test]
    fn a_ring_without_room_takes_nothing() {
        let mut r = RecvRing::new(0, 0);
        assert_eq!(r.post(1, &[], 0), Err(libc::ENOMEM));
        assert!(r.take(&mut []).is_none());
    }
}
