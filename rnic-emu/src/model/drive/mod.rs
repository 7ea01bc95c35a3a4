//! Loads run in modelled time: threads that post, wait for locks, poll and post again, as fast as this machine can compute.

mod histogram;
mod lock;
mod outcome;
mod run;
mod setup;
mod spec;

pub use histogram::Histogram;
pub use outcome::{HitRates, Latency, NicOutcome, Outcome, Utilisation};
pub use run::drive;
pub use spec::{Doorbells, LoadSpec, Memory, Pattern, Pick, Reply, Shape, SpecError, Waiting, Window};
