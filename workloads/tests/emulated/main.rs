//! The real program on the emulated device: the whole suite, two processes, bad input, interrupted runs.

mod kit;
mod peers;
mod refusals;
mod suite;
