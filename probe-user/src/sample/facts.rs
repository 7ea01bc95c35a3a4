//! What was read of a process's surroundings, of the machine and of a device's place in it: nothing counted, all of it
//! as the system told it at that moment.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ProcessId;

/// The limits, environment, memory and placement of a process; written when it is first seen to use RDMA, and again
/// when they have changed by more than a little.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Facts {
    /// Which process.
    #[serde(flatten)]
    pub id: ProcessId,
    /// When this was read.
    pub t_ns: u64,
    /// Soft limit on locked memory (`RLIMIT_MEMLOCK`); 2⁶⁴ − 1 when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memlock_limit_bytes: Option<u64>,
    /// It may lock memory beyond that limit (`CAP_IPC_LOCK`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_lock_more: Option<bool>,
    /// Memory pinned for devices (`VmPin`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_bytes: Option<u64>,
    /// Memory resident (`VmRSS`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// Memory in reserved huge pages (`HugetlbPages`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugetlb_bytes: Option<u64>,
    /// Memory in transparent huge pages, anonymous and shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thp_bytes: Option<u64>,
    /// Mappings of its address space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mappings: Option<u64>,
    /// Variables that libibverbs and its providers read (`RDMAV_*`, `IBV_*`, `MLX4_*`, `MLX5_*`, …).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// NUMA nodes of the processors it may run on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_nodes: Vec<u32>,
    /// Device files of GPUs it has open or mapped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Machine {
    /// NUMA nodes that have processors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<u32>,
    /// `vm.max_map_count`: mappings a process may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_mappings: Option<u64>,
    /// Transparent huge pages: `always`, `madvise` or `never`; empty where unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thp: String,
    /// Loaded modules through which a NIC reaches GPU memory (`nvidia_peermem`, …).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_peer_modules: Vec<String>,
}

/// A device's place in the machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Placement {
    /// NUMA node it is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// PCIe lanes in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_lanes: Option<u32>,
    /// PCIe lanes the device has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_max_lanes: Option<u32>,
    /// Speed of a lane, in megatransfers per second: 8000 is generation 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_mtps: Option<u32>,
    /// Speed the device is made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_max_mtps: Option<u32>,
    /// How the IOMMU treats it, by the kernel's word: `identity` (passed through), `DMA`, `DMA-FQ`, …; empty where
    /// there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub iommu: String,
}

/// What a device can hold, as `ibv_query_device` tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// Queue pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_qp: Option<u64>,
    /// Memory regions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_mr: Option<u64>,
}
