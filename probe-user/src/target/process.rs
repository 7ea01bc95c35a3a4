//! What `/proc` tells of a process. Every read may find the process gone: then there is nothing to tell.

use std::collections::{BTreeSet, HashMap};
use std::fs;

use probe_common::wire::START_UNIT_NS;

use crate::collect::clock::now_ns;
use crate::sample::{Process, ProcessId};

/// The fields of `/proc/PID/stat` used here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stat {
    comm: String,
    state: char,
    parent: u32,
    start_ns: u64,
}

/// Start time of a living process since boot, in ns, a multiple of [`START_UNIT_NS`].
pub fn start_ns_of(pid: u32) -> Option<u64> {
    Some(stat(pid)?.start_ns)
}

/// Parent of a living process.
pub fn parent_of(pid: u32) -> Option<u32> {
    Some(stat(pid)?.parent)
}

/// True when the process is gone, a zombie, or another one under the same pid: it will do nothing any more.
pub fn has_ended(id: ProcessId) -> bool {
    match stat(id.pid) {
        None => true,
        Some(found) => {
            matches!(found.state, 'Z' | 'X') || (id.start_ns != 0 && found.start_ns != id.start_ns)
        }
    }
}

/// What is known of a living process.
pub fn process(pid: u32) -> Option<Process> {
    let found = stat(pid)?;
    let exe = fs::read_link(format!("/proc/{pid}/exe"))
        .map(|path| path.to_string_lossy().into_owned())
        .unwrap_or_default();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    Some(Process {
        id: ProcessId { pid, start_ns: found.start_ns },
        t_ns: now_ns(),
        comm: found.comm,
        exe,
        uid: real_uid(&status).unwrap_or(0),
        parent_pid: found.parent,
        cgroup: unified_cgroup(&cgroup).to_owned(),
        exited: false,
        host: String::new(),
    })
}

/// Every descendant of the given processes that lives now.
pub fn children_of(pids: &[u32]) -> Vec<u32> {
    let mut by_parent: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok())
            && let Some(found) = stat(pid)
        {
            by_parent.entry(found.parent).or_default().push(pid);
        }
    }
    descendants(&by_parent, pids)
}

/// Children of a living process, without theirs; empty where the kernel does not list them (it was built without
/// `CONFIG_PROC_CHILDREN`).
pub fn direct_children_of(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn descendants(by_parent: &HashMap<u32, Vec<u32>>, roots: &[u32]) -> Vec<u32> {
    let mut seen: BTreeSet<u32> = roots.iter().copied().collect();
    let mut queue: Vec<u32> = roots.to_vec();
    let mut found = Vec::new();
    while let Some(pid) = queue.pop() {
        for child in by_parent.get(&pid).into_iter().flatten() {
            if seen.insert(*child) {
                found.push(*child);
                queue.push(*child);
            }
        }
    }
    found
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

/// `pid (comm) state ppid … starttime …`; the name may itself hold blanks and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (before, after) = text.rsplit_once(')')?;
    let comm = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    Some(Stat {
        comm,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start_ns: fields.get(19)?.parse::<u64>().ok()?.checked_mul(START_UNIT_NS)?,
    })
}

fn real_uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().next()?.parse().ok()
}

/// The path of the unified hierarchy, else of the first one that names any.
fn unified_cgroup(text: &str) -> &str {
    let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .or_else(|| paths().find(|path| *path != "/"))
        .unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) R (b) S 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n";
        let found = parse_stat(text).unwrap();
        assert_eq!(found.comm, "a) R (b");
        assert_eq!((found.state, found.parent), ('S', 7));
        assert_eq!(found.start_ns, 123_450_000_000);
    }

    #[test]
    fn a_damaged_stat_is_nothing() {
        for text in ["", "42", "42 (x", "42 (x) S", "42 (x) S 1 2", ")("] {
            assert_eq!(parse_stat(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_process_lives_and_an_impossible_one_has_ended() {
        let pid = std::process::id();
        let found = process(pid).unwrap();
        assert!(!has_ended(found.id));
        assert!(!found.exe.is_empty());
        let other_life = ProcessId { pid, start_ns: found.id.start_ns + START_UNIT_NS };
        assert!(has_ended(other_life));
        assert!(has_ended(ProcessId { pid: u32::MAX, start_ns: 0 }));
    }

    #[test]
    fn descendants_are_found_once_even_in_a_circle() {
        let by_parent = HashMap::from([(1, vec![2, 3]), (2, vec![4]), (4, vec![1, 5])]);
        let mut found = descendants(&by_parent, &[1]);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 5]);
    }

    #[test]
    fn a_child_of_any_thread_is_found() {
        let mut child = std::thread::spawn(|| std::process::Command::new("sleep").arg("10").spawn().unwrap())
            .join()
            .unwrap();
        assert!(direct_children_of(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_unified_control_group_is_preferred() {
        assert_eq!(unified_cgroup("12:cpu:/a\n0::/user.slice/x\n"), "/user.slice/x");
        assert_eq!(unified_cgroup("12:cpu:/\n3:memory:/docker/1\n"), "/docker/1");
        assert_eq!(unified_cgroup(""), "");
    }
}
