//! The clocks of a trace.

/// `CLOCK_MONOTONIC` in ns: the clock of all `t_ns`, and of the BPF programs.
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Wall clock in ns since the Unix epoch.
pub fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// Identity of this boot, which is that of the monotonic clock; empty where the kernel does not tell it.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}
