//! Memory of a stated kind, and what was really obtained.

mod buffer;
mod huge;
mod kind;
mod smaps;

pub use buffer::{Buffer, Obtained};
pub use huge::{Pool, Reservation, allow_reserving, pools};
pub use kind::MemoryKind;

/// Locked-memory limit of this process in bytes; `None` when unlimited or when the process may lock without limit.
pub fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable for the call.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Memory of this machine in bytes; `None` when the kernel does not tell.
pub fn total_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
