//! A set-associative cache with least-recently-used replacement: QP contexts, keys, translations, work queue elements.
//!
//! The set is the high end of a hash of the key, scaled to the number of sets. Multiplying the sets therefore splits each
//! set into whole parts, so a cache made n times larger hits wherever the smaller one did.

use std::hint::select_unpredictable;

use super::rng::mix;

const EMPTY: u64 = u64::MAX;

/// Lookups and hits of one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheCounts {
    /// Lookups made.
    pub lookups: u64,
    /// Those that found their entry.
    pub hits: u64,
}

impl CacheCounts {
    /// Share of lookups that hit; none when there were none.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.lookups > 0).then(|| self.hits as f64 / self.lookups as f64)
    }

    /// What was counted after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self { lookups: self.lookups - earlier.lookups, hits: self.hits - earlier.hits }
    }
}

/// One cache. Its array is allocated at the first lookup.
#[derive(Clone, Debug)]
pub struct Cache {
    /// `sets` rows of `ways` keys, most recently used first.
    keys: Vec<u64>,
    ways: usize,
    sets: u64,
    /// The key touched last: already first in its row.
    last: u64,
    counts: CacheCounts,
}

impl Cache {
    /// A cache of `entries` keys in rows of `ways`. `entries` is rounded down to whole rows; 0 entries never hit.
    pub fn new(entries: u64, ways: u64) -> Self {
        let ways = ways.clamp(1, entries.max(1));
        Self {
            keys: Vec::new(),
            ways: ways as usize,
            sets: entries / ways,
            last: EMPTY,
            counts: CacheCounts::default(),
        }
    }

    /// Keys it can keep.
    pub fn capacity(&self) -> u64 {
        self.sets * self.ways as u64
    }

    /// Looks `key` up and loads it if it was not there. True for a hit.
    #[inline]
    pub fn touch(&mut self, key: u64) -> bool {
        self.counts.lookups += 1;
        let hit = self.load(key);
        self.counts.hits += u64::from(hit);
        hit
    }

    /// Puts `key` there without counting a lookup. True if it was there already.
    #[inline]
    pub fn load(&mut self, key: u64) -> bool {
        if key == self.last {
            return true;
        }
        let row = self.row(key);
        self.last = key;
        // What is first in its row is where it belongs.
        self.keys.get(row) == Some(&key) || self.find(row, key)
    }

    /// Where the row of a key begins.
    #[inline]
    fn row(&self, key: u64) -> usize {
        ((u128::from(mix(key)) * u128::from(self.sets)) >> 64) as usize * self.ways
    }

    #[inline(never)]
    fn find(&mut self, row: usize, key: u64) -> bool {
        if self.sets == 0 {
            self.last = EMPTY;
            return false;
        }
        if self.keys.is_empty() {
            self.keys = vec![EMPTY; self.sets as usize * self.ways];
        }
        let row = &mut self.keys[row..row + self.ways];
        // Where it is cannot be foreseen: a branch would be guessed wrong as often as right. Keys are there once.
        let mut found = row.len();
        for (place, &there) in row.iter().enumerate() {
            found = select_unpredictable(there == key, place, found);
        }
        // To the front, each of the others one place back, up to where it was (or out at the end).
        let hit = found < row.len();
        row.copy_within(..if hit { found } else { found - 1 }, 1);
        row[0] = key;
        hit
    }

    /// Throws out every key in the range: a region was deregistered.
    pub fn evict_range(&mut self, range: std::ops::Range<u64>) {
        if self.keys.is_empty() {
            return;
        }
        self.last = EMPTY;
        if range.end - range.start <= self.sets {
            range.for_each(|key| {
                self.evict(key);
            });
            return;
        }
        for row in self.keys.chunks_mut(self.ways) {
            let mut kept = 0;
            for i in 0..row.len() {
                if !range.contains(&row[i]) {
                    row[kept] = row[i];
                    kept += 1;
                }
            }
            row[kept..].fill(EMPTY);
        }
    }

    fn evict(&mut self, key: u64) -> bool {
        let start = self.row(key);
        let row = &mut self.keys[start..start + self.ways];
        let Some(at) = row.iter().position(|&k| k == key) else { return false };
        if self.last == key {
            self.last = EMPTY;
        }
        row.copy_within(at + 1.., at);
        row[self.ways - 1] = EMPTY;
        true
    }

    /// Lookups and hits so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::rng::Rng;

    #[test]
    fn a_working_set_within_the_capacity_hits_and_one_far_beyond_misses() {
        let mut cache = Cache::new(1024, 16);
        for _ in 0..4 {
            (0..512).for_each(|k| {
                cache.touch(k);
            });
        }
        assert!(cache.counts().hit_rate() > Some(0.74));
        let mut cache = Cache::new(1024, 16);
        for _ in 0..4 {
            (0..4096).for_each(|k| {
                cache.touch(k);
            });
        }
        assert!(cache.counts().hit_rate() < Some(0.01));
    }

    #[test]
    fn random_use_hits_as_often_as_the_share_that_fits() {
        let (mut cache, mut rng) = (Cache::new(2048, 8), Rng::new(1));
        (0..300_000).for_each(|_| {
            cache.touch(rng.below(8192));
        });
        let rate = cache.counts().hit_rate().expect("lookups were made");
        assert!((rate - 0.25).abs() < 0.01, "{rate}");
    }

    #[test]
    fn a_row_is_a_list_of_the_keys_used_last() {
        let (mut cache, mut rng, mut list) = (Cache::new(8, 8), Rng::new(5), Vec::new());
        for _ in 0..10_000 {
            let key = rng.below(12);
            let at = list.iter().position(|&k| k == key);
            assert_eq!(cache.touch(key), at.is_some());
            at.map(|at| list.remove(at));
            list.insert(0, key);
            list.truncate(8);
        }
    }

    #[test]
    fn twice_the_sets_hit_wherever_the_half_did() {
        let (mut small, mut large, mut rng) = (Cache::new(96, 8), Cache::new(192, 8), Rng::new(3));
        for _ in 0..100_000 {
            let key = rng.below(100) * rng.below(10);
            let (in_small, in_large) = (small.touch(key), large.touch(key));
            assert!(!in_small || in_large, "{key}");
        }
    }

    #[test]
    fn eviction_by_range_leaves_the_others() {
        let mut cache = Cache::new(64, 8);
        (0..32).for_each(|k| {
            cache.load(k);
        });
        cache.evict_range(0..16);
        assert!((16..32).all(|k| cache.load(k)));
        assert!(!cache.load(3));
    }

    #[test]
    fn a_cache_of_nothing_never_hits() {
        let mut cache = Cache::new(0, 8);
        assert!(!cache.touch(1) && !cache.touch(1));
    }
}
