//! Everything after the recording, tested from made-up and from real traces.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod common;
mod data_path;
mod doctor;
mod elsewhere;
mod export;
mod fuzz;
mod keep;
mod manual;
mod merge;
mod real;
mod report;
mod schemas;
mod trace;
