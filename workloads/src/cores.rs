//! Which CPUs to put two threads on so that they are really two.

use std::fs;

/// CPUs this process may run on.
fn allowed() -> Vec<usize> {
    // SAFETY: an all-zero CPU set is a valid empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable for its whole size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: the index is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Hyper-threads of one core share its caches: two of them never pass a line back and forth.
fn siblings(cpu: usize) -> Option<String> {
    fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list")).ok()
}

/// Two CPUs of different cores if there are any, else two CPUs, else none.
pub fn distinct_pair() -> (Option<usize>, Option<usize>) {
    let cpus = allowed();
    choose(&cpus, siblings)
}

fn choose(cpus: &[usize], core: impl Fn(usize) -> Option<String>) -> (Option<usize>, Option<usize>) {
    let [first, rest @ ..] = cpus else { return (None, None) };
    let home = core(*first);
    let second = rest.iter().find(|&&cpu| home.is_some() && core(cpu) != home).or(rest.first());
    match second {
        Some(second) => (Some(*first), Some(*second)),
        None => (None, None),
    }
}

/// Keeps the calling thread on one CPU; without effect where that is not allowed.
pub fn pin(cpu: usize) {
    // SAFETY: an all-zero CPU set is a valid empty one, and CPUs come from `allowed`, below the set's size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyper_threads_of_one_core_are_avoided_when_there_is_another_core() {
        let core = |cpu: usize| Some(format!("{}", cpu / 2));
        assert_eq!(choose(&[0, 1, 2, 3], core), (Some(0), Some(2)));
        assert_eq!(choose(&[0, 1], core), (Some(0), Some(1)));
    }

    #[test]
    fn one_cpu_is_no_pair() {
        assert_eq!(choose(&[3], |_| None), (None, None));
        assert_eq!(choose(&[], |_| None), (None, None));
        assert_eq!(choose(&[1, 2], |_| None), (Some(1), Some(2)));
    }
}
