//! Processes that are not watched, and pay for hits all the same: they map the same provider as one that is.
//!
//! What each is hit by is counted, so that the governor can spare them, too. At sites of our own libraries there is nothing
//! to be spared: other profilers may have asked those processes for theirs.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use probe_common::wire::{Target, hits};

use crate::count;
use crate::maps::PROFILER_TGID;
use crate::meter;

/// By tgid. User space forgets those that end.
#[map]
static BYSTANDERS: HashMap<u32, Target> = HashMap::with_max_entries(1_024, BPF_F_NO_PREALLOC);

/// A process that is not watched was hit, by a kind of [`hits`]. With the table full it goes unnoticed.
#[inline(always)]
pub fn hit(tgid: u32, kind: usize) {
    if kind < hits::STREAMS || tgid == PROFILER_TGID.load() {
        return;
    }
    if let Some(found) = meter::entry(&BYSTANDERS, tgid) {
        // SAFETY: a live map value, and a place within it.
        count::add(unsafe { (&raw mut (*found).spent.hits).cast::<u64>().add(kind) }, 1);
    }
}
