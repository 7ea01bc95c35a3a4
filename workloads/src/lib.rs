//! Reference workloads: every RDMA optimisation in a slow and a fast form, with its measured effect.

pub mod app;
pub mod bench;
pub mod cli;
pub mod compare;
pub mod cores;
pub mod device;
pub mod drive;
pub mod emulated;
pub mod endpoint;
pub mod error;
pub mod exchange;
pub mod interrupt;
pub mod load;
pub mod measure;
pub mod memory;
pub mod mr_cache;
pub mod outcome;
pub mod predict;
pub mod print;
pub mod progress;
pub mod responder;
pub mod suite;
pub mod sync;
pub mod table;
pub mod truth;
pub mod verbs;
