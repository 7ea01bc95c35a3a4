//! A registration cache: registers a buffer on first use and keeps the registration, within a bound.

use crate::memory::Buffer;
use crate::verbs::{Access, Mr, Pd};
use anyhow::Result;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Registrations by address, least recently used ones given back when full.
///
/// Buffers are kept alive by their registrations, so an address cannot be freed and reused behind the cache's back: the trap
/// that real caches need memory hooks for.
pub struct MrCache {
    regions: BTreeMap<u64, (Mr, u64)>,
    capacity: usize,
    clock: u64,
    hits: u64,
    misses: u64,
}

impl MrCache {
    /// A cache of at most `capacity` registrations (at least one).
    pub fn new(capacity: usize) -> MrCache {
        MrCache { regions: BTreeMap::new(), capacity: capacity.max(1), clock: 0, hits: 0, misses: 0 }
    }

    /// The registration of a buffer, made if need be.
    pub fn get(&mut self, pd: &Pd, buffer: &Rc<Buffer>) -> Result<&Mr> {
        self.clock += 1;
        let key = buffer.addr();
        let known = self.regions.get(&key).is_some_and(|(region, _)| region.len() >= buffer.len());
        if known {
            self.hits += 1;
        } else {
            self.misses += 1;
            if self.regions.len() >= self.capacity
                && let Some(oldest) =
                    self.regions.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key)
            {
                self.regions.remove(&oldest);
            }
            self.regions.insert(key, (Mr::register(pd, buffer, Access::Local)?, 0));
        }
        let clock = self.clock;
        let entry = self.regions.get_mut(&key).map(|entry| {
            entry.1 = clock;
            &entry.0
        });
        entry.ok_or_else(|| anyhow::anyhow!("a registration just made is missing"))
    }

    /// Lookups that found a registration.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Lookups that had to register.
    pub fn misses(&self) -> u64 {
        self.misses
    }
}
