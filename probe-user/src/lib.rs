//! RDMA profiler and diagnostics: from probes to samples, models, traces and reports.

pub mod devices;
pub mod entry;
pub mod model;
pub mod providers;
pub mod replay;
pub mod report;
pub mod sample;
pub mod tap;
pub mod trace;
