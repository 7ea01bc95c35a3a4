//! Reference workloads: every RDMA optimisation in a slow and a fast form, with its measured effect.

pub mod error;
pub mod interrupt;
pub mod measure;
pub mod memory;
pub mod truth;
pub mod verbs;
