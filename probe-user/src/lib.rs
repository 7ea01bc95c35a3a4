//! RDMA profiler and diagnostics: from probes to samples, models, traces and reports.

pub mod entry;
pub mod sample;
pub mod trace;
