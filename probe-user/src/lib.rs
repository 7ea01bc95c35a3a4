//! RDMA profiler and diagnostics: from probes to samples, models, traces and reports.

pub mod attach;
pub mod collect;
pub mod contexts;
pub mod data_path;
pub mod devices;
pub mod doctor;
pub mod entry;
pub mod export;
pub mod hooks;
pub mod kernel;
pub mod library;
pub mod merge;
pub mod model;
pub mod pairing;
pub mod plan;
pub mod providers;
pub mod replay;
pub mod report;
pub mod sample;
pub mod serve;
pub mod tap;
pub mod target;
pub mod trace;
pub mod trigger;
