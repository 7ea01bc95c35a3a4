//! The posts and polls of running programs, counted by probes.
//!
//! Where a process runs under the tap or on the emulated device, their digested sites are probed; elsewhere the
//! functions of its provider, found in the provider's file as soon as it is mapped, and in the memory of the process:
//! what its contexts and objects point to, when they are made or when the process is found running. All end in the same
//! counters, by object ([`Counting`]); putting the probes in place is the [`Attacher`]'s.

mod attacher;
mod cost;
mod counting;
mod own_sites;
mod point;

pub use attacher::Attacher;
pub use cost::{Costs, HitCost};
pub use counting::{Counting, Details, Failed, Failure, Object, Reading, ReapLatency, Source};
