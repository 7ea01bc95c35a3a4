//! The real program on the emulated device: the whole suite, two processes, bad input, interrupted runs.

mod counted;
mod kit;
mod peers;
#[path = "../probes/mod.rs"]
mod probes;
mod refusals;
mod suite;
