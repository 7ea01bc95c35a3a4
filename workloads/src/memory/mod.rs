//! Memory of a stated kind, and what was really obtained.

mod buffer;
mod huge;
mod kind;
mod smaps;

pub use buffer::{Buffer, Obtained};
pub use huge::{Pool, Reservation, pools};
pub use kind::MemoryKind;

/// Locked-memory limit of this process in bytes; `None` when unlimited or when the process may lock without limit.
pub fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable for the call.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
