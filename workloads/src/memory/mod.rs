//! Memory of a stated kind, and what was really obtained.

mod buffer;
mod huge;
mod kind;
mod leftover;
mod smaps;

pub use buffer::{Buffer, Obtained};
pub use huge::{Pool, Reservation, allow_reserving, clean_up, pools};
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
    meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

/// Memory that can be used without swapping, in bytes, hugetlb pools apart.
pub fn available_memory() -> Option<u64> {
    meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

fn meminfo(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_of_meminfo_is_found_by_its_whole_name() {
        let text = "MemTotalled: 1 kB\nMemTotal:    2048 kB\nMemAvailable: many kB\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(2 << 20));
        assert_eq!(meminfo(text, "MemAvailable"), None);
        assert_eq!(meminfo(text, "Nothing"), None);
    }
}
