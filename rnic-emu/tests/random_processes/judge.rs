//! What may be left after a fault: completions and bytes, held against everything that was posted.

use crate::life::{check_received, check_sent};
use crate::side::{Incoming, Posted, apply};
use rnic_emu::abi::{consts::*, ibv_wc};
use std::ops::RangeInclusive;

/// The send queue of a QP that ends in error: some requests succeed, in order, one fails, all others are flushed.
pub struct Sends<'a> {
    pub posted: &'a [Posted],
    pub seed: u64,
    /// The statuses the first failure may have.
    pub first_error: &'a dyn Fn(&Posted) -> &'static [u32],
    next: usize,
    failed: Option<(usize, u32)>,
}

impl<'a> Sends<'a> {
    pub fn new(posted: &'a [Posted], seed: u64, first_error: &'a dyn Fn(&Posted) -> &'static [u32]) -> Self {
        Self { posted, seed, first_error, next: 0, failed: None }
    }

    /// Takes a completion. Panics if it cannot be.
    pub fn take(&mut self, wc: &ibv_wc) {
        let (seed, rest) = (self.seed, &self.posted[self.next..]);
        if wc.status == IBV_WC_SUCCESS {
            assert!(self.failed.is_none(), "seed {seed}: a success after a failure: {wc:?}");
            let n = rest.iter().position(|p| p.signalled).expect("a request asked for a completion");
            check_sent(wc, &rest[n], seed);
            self.next += n + 1;
            return;
        }
        let n = rest.iter().position(|p| p.wr_id == wc.wr_id);
        let n = n.unwrap_or_else(|| panic!("seed {seed}: nothing left has that wr_id: {wc:?}"));
        let at = self.next + n;
        if self.failed.is_none() {
            assert!(rest[..n].iter().all(|p| !p.signalled), "seed {seed}: a completion is missing: {wc:?}");
            let allowed = (self.first_error)(&rest[n]);
            assert!(allowed.contains(&wc.status), "seed {seed}: {wc:?}, not one of {allowed:?}");
            self.failed = Some((at, wc.status));
        } else {
            assert_eq!((n, wc.status), (0, IBV_WC_WR_FLUSH_ERR), "seed {seed}: all in order: {wc:?}");
        }
        self.next = at + 1;
    }

    /// Every request is accounted for.
    pub fn complete(&self) -> bool {
        self.next == self.posted.len()
    }

    /// How many of the requests were carried out, at least and at most. One more may be half done.
    pub fn carried_out(&self) -> RangeInclusive<usize> {
        let n = self.posted.len();
        match self.failed {
            // The responder refused it: nothing behind it was looked at.
            Some((at, IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_OP_ERR)) => at..=at,
            Some((at, _)) => at..=n,
            None => self.next..=n,
        }
    }
}

/// The receive queue of a QP that ends in error.
pub struct Receives<'a> {
    pub wr_ids: &'a [u64],
    pub wants: &'a [Incoming],
    pub seed: u64,
    /// What the receive under way may fail with, besides being flushed.
    pub first_error: &'a [u32],
    next: usize,
    good: usize,
}

impl<'a> Receives<'a> {
    pub fn new(wr_ids: &'a [u64], wants: &'a [Incoming], seed: u64, first_error: &'a [u32]) -> Self {
        Self { wr_ids, wants, seed, first_error, next: 0, good: 0 }
    }

    /// Takes a completion. Panics if it cannot be.
    pub fn take(&mut self, wc: &ibv_wc) {
        let seed = self.seed;
        assert!(self.next < self.wr_ids.len(), "seed {seed}: more completions than receives: {wc:?}");
        if wc.status == IBV_WC_SUCCESS {
            assert_eq!(self.good, self.next, "seed {seed}: a success after a failure: {wc:?}");
            let want = self.wants.get(self.good).unwrap_or_else(|| panic!("seed {seed}: nobody sent {wc:?}"));
            check_received(wc, want, seed);
            self.good += 1;
        } else {
            let first = self.good == self.next;
            let known = wc.status == IBV_WC_WR_FLUSH_ERR || first && self.first_error.contains(&wc.status);
            assert!(known, "seed {seed}: {wc:?}");
            assert_eq!(wc.wr_id, self.wr_ids[self.next], "seed {seed}: in order: {wc:?}");
        }
        self.next += 1;
    }

    /// Every receive is accounted for.
    pub fn complete(&self) -> bool {
        self.next == self.wr_ids.len()
    }

    /// How many of the sender's requests, of which `first` is the number of the first, must have been carried out.
    pub fn at_least(&self, first: u64) -> usize {
        self.good.checked_sub(1).map_or(0, |last| (self.wants[last].request + 1 - first) as usize)
    }
}

/// A half that one stream of requests changes holds what some number of them left, `carried_out` saying how many, with
/// at most the next one half done.
pub fn check_half(
    what: &str,
    mut expected: Vec<u8>,
    actual: &[u8],
    effects: &[&[(usize, Vec<u8>)]],
    carried_out: RangeInclusive<usize>,
) {
    for effect in &effects[..*carried_out.start()] {
        apply(&mut expected, effect);
    }
    for n in carried_out.clone() {
        let next = effects.get(n).copied().unwrap_or_default();
        if expected == actual {
            return;
        }
        let mut after = expected.clone();
        apply(&mut after, next);
        if (0..actual.len()).all(|i| actual[i] == expected[i] || actual[i] == after[i]) {
            return;
        }
        expected = after;
    }
    let wrong: Vec<usize> = (0..actual.len()).filter(|&i| actual[i] != expected[i]).take(5).collect();
    panic!(
        "{what}: no number of requests in {carried_out:?} leaves it like this; after all, bytes {wrong:?}… differ"
    );
}
