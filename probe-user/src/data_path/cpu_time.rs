//! CPU time that processes and threads have used, by the kernel's clocks of it.

use std::mem::MaybeUninit;

/// That of a process so far, in ns; `None` when it is gone.
pub fn of_process(pid: u32) -> Option<u64> {
    /// `PID_MAX_LIMIT`. A larger number would not fit the name of a clock, and 0 is this process.
    const LARGEST_PID: u32 = 1 << 22;
    if pid == 0 || pid > LARGEST_PID {
        return None;
    }
    let mut clock = MaybeUninit::uninit();
    // SAFETY: writes its one result where it succeeds, and only then is that read.
    let clock = unsafe {
        if libc::clock_getcpuclockid(pid.cast_signed(), clock.as_mut_ptr()) != 0 {
            return None;
        }
        clock.assume_init()
    };
    read(clock)
}

/// That of this process so far, in ns.
pub fn of_this_process() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// That of the thread that asks, in ns.
pub fn of_this_thread() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: writes its one result where it succeeds, and only then is that read.
    let time = unsafe {
        if libc::clock_gettime(clock, time.as_mut_ptr()) != 0 {
            return None;
        }
        time.assume_init()
    };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clocks_of_this_program_go_on_while_it_works() {
        let of_this_process_by_id = || of_process(std::process::id()).expect("own time");
        for clock in [of_this_process, of_this_thread, of_this_process_by_id] {
            let before = clock();
            let mut n = 0_u64;
            while clock() < before + 1_000_000 {
                n = std::hint::black_box(n + 1);
            }
        }
    }

    #[test]
    fn a_process_that_is_not_there_has_none() {
        assert_eq!([0, 1 << 22, u32::MAX / 2, u32::MAX].map(of_process), [None; 4]);
    }
}
