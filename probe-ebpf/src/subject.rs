//! Whose call this is, and whether it is watched.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_task};
use probe_common::wire::START_UNIT_NS;

use crate::maps::{PROFILER_TGID, TARGETS, WHOLE_HOST, offset};
use crate::user::kernel;

/// The thread at the probe.
#[derive(Clone, Copy)]
pub struct Subject {
    /// Thread-group and thread id, as the kernel packs them.
    pub pid_tgid: u64,
    /// Start of the process, cut to the unit of `/proc`; 0 where the offset is unknown.
    pub start_ns: u64,
}

impl Subject {
    /// Thread-group id.
    #[inline(always)]
    pub fn tgid(self) -> u32 {
        (self.pid_tgid >> 32) as u32
    }

    /// Thread id.
    #[inline(always)]
    pub fn tid(self) -> u32 {
        self.pid_tgid as u32
    }
}

/// The current thread, if its process is watched.
#[inline(always)]
pub fn watched() -> Option<Subject> {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    if tgid == 0 || tgid == PROFILER_TGID.load() {
        return None;
    }
    if WHOLE_HOST.load() != 0 {
        return Some(Subject { pid_tgid, start_ns: start_of_current() });
    }
    // SAFETY: the value is one word, read once; an entry removed meanwhile reads as another target's start time and
    // then does not match.
    let target = unsafe { TARGETS.get(&tgid) }?.start_ns;
    let start_ns = start_of_current();
    if target != 0 && start_ns != 0 && target != start_ns {
        return None;
    }
    Some(Subject { pid_tgid, start_ns: if start_ns != 0 { start_ns } else { target } })
}

/// `current`, as a number.
#[inline(always)]
pub fn current_task() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_current_task() }
}

/// When the process of `current` began.
#[inline(always)]
pub fn start_of_current() -> u64 {
    start_of(current_task())
}

/// When the process of a task began, cut to the unit of `/proc`; 0 where the offsets are unknown.
#[inline(always)]
pub fn start_of(task: u64) -> u64 {
    if offset!(task_group_leader) == 0 || offset!(task_start_boottime) == 0 {
        return 0;
    }
    let Some(leader) = kernel::<u64>(task.wrapping_add(offset!(task_group_leader))) else { return 0 };
    let Some(start) = kernel::<u64>(leader.wrapping_add(offset!(task_start_boottime))) else { return 0 };
    start - start % START_UNIT_NS
}

/// Page faults `current` has taken so far.
#[inline(always)]
pub fn page_faults() -> Option<u64> {
    if offset!(task_min_flt) == 0 || offset!(task_maj_flt) == 0 {
        return None;
    }
    let task = current_task();
    let minor = kernel::<u64>(task.wrapping_add(offset!(task_min_flt)))?;
    let major = kernel::<u64>(task.wrapping_add(offset!(task_maj_flt)))?;
    Some(minor.wrapping_add(major))
}
