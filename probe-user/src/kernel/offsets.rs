//! The kernel fields the BPF programs read, and what is missed without them.

use probe_common::wire::KernelOffsets;

use super::Btf;

/// Offsets found, and what could not be.
#[derive(Debug, Clone, Default)]
pub struct Offsets {
    /// For the BPF programs; 0 where unknown.
    pub known: KernelOffsets,
    /// Fields not found, as `structure.field`.
    pub missing: Vec<String>,
}

/// The structures with those fields.
pub const STRUCTURES: [&str; 3] = ["task_struct", "signal_struct", "ib_umem"];

/// Reads the offsets; `modules` are the BTFs of the RDMA modules, or vmlinux's own where they are built in.
pub fn offsets(vmlinux: &Btf<'_>, modules: &[Btf<'_>]) -> Offsets {
    let mut missing = Vec::new();
    let mut find = |structure: &str, path: &str| {
        let found = modules
            .iter()
            .find_map(|module| module.offset(structure, path))
            .or_else(|| vmlinux.offset(structure, path));
        found.unwrap_or_else(|| {
            missing.push(format!("{structure}.{path}"));
            0
        })
    };
    let known = KernelOffsets {
        task_group_leader: find("task_struct", "group_leader"),
        task_start_boottime: find("task_struct", "start_boottime"),
        task_tgid: find("task_struct", "tgid"),
        task_pid: find("task_struct", "pid"),
        task_signal: find("task_struct", "signal"),
        signal_live: find("signal_struct", "live"),
        task_min_flt: find("task_struct", "min_flt"),
        task_maj_flt: find("task_struct", "maj_flt"),
        task_fsbase: if cfg!(target_arch = "x86_64") { find("task_struct", "thread.fsbase") } else { 0 },
        umem_address: find("ib_umem", "address"),
        umem_length: find("ib_umem", "length"),
        task_comm: find("task_struct", "comm"),
    };
    Offsets { known, missing }
}
