//! An emulated RNIC that any libibverbs program can use.

pub mod model;
