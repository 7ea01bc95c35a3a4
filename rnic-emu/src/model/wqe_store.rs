//! The WQEs of outstanding requests that a NIC keeps: the newest, up to so many.
//!
//! A WQE is needed again when its request is answered. Requests are answered nearly in the order they came, so keeping the
//! newest means: as long as no more are outstanding than fit, all are there; beyond that, none is when its turn comes.
//! Counting arrivals tells which, without a table.

use super::cache::CacheCounts;

/// WQEs kept by one NIC.
#[derive(Clone, Debug)]
pub struct WqeStore {
    entries: u64,
    arrived: u64,
    outstanding: u64,
    counts: CacheCounts,
}

impl WqeStore {
    /// Room for `entries` WQEs.
    pub fn new(entries: u64) -> Self {
        Self { entries, arrived: 0, outstanding: 0, counts: CacheCounts::default() }
    }

    /// Takes `count` WQEs in and returns the number of the first.
    pub fn arrive(&mut self, count: u64) -> u64 {
        let first = self.arrived;
        self.arrived += count;
        self.outstanding += count;
        first
    }

    /// Looks for the WQE of that number. True for a hit.
    pub fn find(&mut self, number: u64) -> bool {
        // Those that came later and are still outstanding are what pushes it out.
        let later = (self.arrived - 1).saturating_sub(number).min(self.outstanding.saturating_sub(1));
        let hit = later < self.entries;
        self.counts.lookups += 1;
        self.counts.hits += u64::from(hit);
        hit
    }

    /// So many requests are done with: their WQEs' places are free.
    pub fn leave(&mut self, count: u64) {
        self.outstanding = self.outstanding.saturating_sub(count);
    }

    /// Lookups and hits so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hit rate with so many outstanding all the time, answered in order.
    fn hit_rate(outstanding: u64) -> Option<f64> {
        let mut store = WqeStore::new(100);
        for number in 0..10_000 {
            store.arrive(1);
            if number >= outstanding - 1 {
                store.find(number + 1 - outstanding);
                store.leave(1);
            }
        }
        store.counts().hit_rate()
    }

    #[test]
    fn all_are_there_until_more_are_outstanding_than_fit_then_none() {
        assert_eq!(hit_rate(100), Some(1.0));
        assert_eq!(hit_rate(101), Some(0.0));
    }
}
