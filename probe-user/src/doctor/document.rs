//! The diagnosis as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use super::Diagnosis;
use super::finding::{Finding, Open};

/// The schema named by every document this version prints.
pub const SCHEMA: &str = "rdma-doctor/1";

/// What `rdma-probe doctor --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Document {
    /// Always `rdma-doctor/1`.
    pub schema: &'static str,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// What could not be decided, and why.
    pub open: Vec<Open>,
    /// Rules asked.
    pub rules: usize,
    /// Processes looked at.
    pub processes: usize,
    /// Length of the recording, ns.
    pub duration_ns: u64,
}

impl Document {
    /// The document of a diagnosis of so long a recording.
    pub fn new(diagnosis: Diagnosis, duration_ns: u64) -> Self {
        let Diagnosis { findings, open, rules, processes } = diagnosis;
        Self { schema: SCHEMA, findings, open, rules, processes, duration_ns }
    }
}
