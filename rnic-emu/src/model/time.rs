//! Modelled time: picoseconds since the model was made.
//!
//! Nanoseconds are too coarse: at 118 million messages a second one message lasts 8.48 ns.
//! A `u64` of picoseconds spans 213 days.

/// A point in modelled time, or a span of it, in picoseconds.
pub type Ps = u64;

/// One nanosecond.
pub const NS: Ps = 1_000;
/// One microsecond.
pub const US: Ps = 1_000_000;
/// One millisecond.
pub const MS: Ps = 1_000_000_000;
/// One second.
pub const SEC: Ps = 1_000_000_000_000;

/// A span given in nanoseconds, fractions allowed; negative and absurd values saturate.
pub fn from_ns(ns: f64) -> Ps {
    (ns * NS as f64).round() as Ps
}

/// A span in nanoseconds, for people.
pub fn to_ns(ps: Ps) -> f64 {
    ps as f64 / NS as f64
}

/// A span in seconds, for rates.
pub fn to_s(ps: Ps) -> f64 {
    ps as f64 / SEC as f64
}
