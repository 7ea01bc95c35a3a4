//! Reference workloads.
