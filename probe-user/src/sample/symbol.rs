//! What an address of a stack is.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ProcessId;

/// An address that occurs in the `stack` of events of one process; told once, before or after the first such event.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Symbol {
    /// In which process.
    #[serde(flatten)]
    pub id: ProcessId,
    /// The address.
    pub addr: u64,
    /// File whose code it lies in, by its path in the process's own mount namespace; empty where it lies in none.
    pub module: String,
    /// Offset in that file.
    pub module_offset_bytes: u64,
    /// Function, demangled; empty where the file has no name for it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Distance from the beginning of the function.
    #[serde(skip_serializing_if = "is_none")]
    pub offset_bytes: u64,
    /// Source file, where there is debug information.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Line in it, from 1; 0 where unknown.
    #[serde(skip_serializing_if = "is_none_32")]
    pub line: u32,
}

impl Symbol {
    /// The symbol in a few words: `function (source:line)`, or `module+0xoffset` for a function without a name.
    pub fn words(&self) -> String {
        let file = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        match (self.name.is_empty(), self.line) {
            (true, _) if self.module.is_empty() => format!("{:#x}", self.addr),
            (true, _) => format!("{}+{:#x}", file(&self.module), self.module_offset_bytes),
            (false, 0) => self.name.clone(),
            (false, line) => format!("{} ({}:{line})", self.name, file(&self.source)),
        }
    }

    /// Whether it is a function of libibverbs' or librdmacm's headers around the call that is told of: every program has
    /// the same.
    pub fn is_wrapper(&self) -> bool {
        is_verbs_header(Path::new(&self.source))
    }
}

/// Whether the file is a header of libibverbs or librdmacm that holds functions around its calls.
pub fn is_verbs_header(path: &Path) -> bool {
    ["infiniband/verbs.h", "rdma/rdma_verbs.h"].iter().any(|header| path.ends_with(header))
}

const fn is_none(n: &u64) -> bool {
    *n == 0
}

const fn is_none_32(n: &u32) -> bool {
    *n == 0
}
