//! The posts and polls of running programs, counted by probes.
//!
//! Where a process runs under the tap or on the emulated device, their digested sites are probed; elsewhere the
//! functions of its provider, found in the provider's file as soon as it is mapped, and in the memory of the process:
//! what its contexts and objects point to, when they are made or when the process is found running. All end in the same
//! counters, by object ([`Counting`]); putting the probes in place is the [`Attacher`]'s, keeping what that costs within
//! what is allowed the [`Governor`]'s.

mod attacher;
mod cost;
mod counting;
pub mod cpu_time;
mod failures;
mod governor;
mod group;
mod hot;
mod own_sites;
mod own_time;
mod point;
mod recipes;
mod spending;

pub use attacher::{Asking, Attacher};
pub use cost::{Calibration, Costs, HitCost};
pub use counting::{Counting, Details, Object, Reading, ReapLatency, Source};
pub use failures::{FLUSHED, Failed, Failure};
pub use governor::{Allowed, Governor, SlicesTold, Told};
pub(crate) use own_time::{Bound, OwnTime};
pub use recipes::Recipes;
pub use spending::{Own, Spending, Targets};
