//! Reading the surroundings of processes, of the machine and of devices from `/proc` and `/sys`.
//!
//! Counting a process's mappings and its huge pages takes the kernel time, and the process's own lock: it is done at
//! most so often that it takes a hundredth of one core.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::time::{Duration, Instant};

use super::clock::now_ns;
use crate::sample::{Facts, Machine, Placement, ProcessId, Record};
use crate::target;

/// Largest environment that is read.
const MOST_ENVIRONMENT: u64 = 1 << 20;
/// Longest value of a variable that is kept.
const LONGEST_VALUE: usize = 256;
/// Variables kept.
const MOST_VARIABLES: usize = 64;
/// Variables that decide how libibverbs, librdmacm and the providers behave, by their beginning. No others are kept:
/// an environment holds secrets.
const VARIABLES: [&str; 11] = [
    "RDMAV_",
    "IBV_",
    "MLX4_",
    "MLX5_",
    "HNS_ROCE_",
    "IRDMA_",
    "NCCL_IB_",
    "UCX_IB_",
    "UCX_RCACHE_",
    "RNIC_EMU_",
    "LD_PRELOAD",
];
/// Resident memory from which on huge pages are looked for, and beyond which looking would take too long.
const LOOK_INTO: std::ops::Range<u64> = (32 << 20)..(64 << 30);
/// A reading may be repeated after so many times its own duration.
const PATIENCE: u32 = 100;
/// Readings of one process are at least so far apart.
const AT_LEAST: Duration = Duration::from_millis(900);
/// `CAP_IPC_LOCK`.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// The surroundings told so far.
#[derive(Debug, Default)]
pub struct Surroundings {
    told: HashMap<ProcessId, (Facts, Instant)>,
}

impl Surroundings {
    /// Reads the surroundings of a process, when it is time; the answer is a record where the trace does not say so
    /// already.
    pub fn look(&mut self, id: ProcessId) -> Option<Record> {
        let now = Instant::now();
        if self.told.get(&id).is_some_and(|(_, next)| now < *next) {
            return None;
        }
        let facts = facts(id)?;
        let next = now + (now.elapsed() * PATIENCE).max(AT_LEAST);
        let news = self.told.get(&id).is_none_or(|(told, _)| differs(told, &facts));
        let kept = if news { facts.clone() } else { self.told.remove(&id)?.0 };
        self.told.insert(id, (kept, next));
        news.then_some(Record::Facts(facts))
    }

    /// Whether anything was told of a process.
    pub fn knows(&self, id: ProcessId) -> bool {
        self.told.contains_key(&id)
    }

    /// Forgets a process that is no more.
    pub fn forget(&mut self, id: ProcessId) {
        self.told.remove(&id);
    }
}

/// Whether a reading says something new: sizes count from a twentieth on.
fn differs(a: &Facts, b: &Facts) -> bool {
    let sizes = |f: &Facts| [f.pinned_bytes, f.hugetlb_bytes, f.thp_bytes, f.resident_bytes, f.mappings];
    let moved = |(a, b): (Option<u64>, Option<u64>)| match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) > a.max(b) / 20,
        (a, b) => a != b,
    };
    let rest = |f: &Facts| Facts {
        t_ns: 0,
        pinned_bytes: None,
        hugetlb_bytes: None,
        thp_bytes: None,
        resident_bytes: None,
        mappings: None,
        ..f.clone()
    };
    rest(a) != rest(b) || sizes(a).into_iter().zip(sizes(b)).any(moved)
}

/// What `/proc` tells of a living process.
fn facts(id: ProcessId) -> Option<Facts> {
    let proc = Path::new("/proc").join(id.pid.to_string());
    let status = fs::read_to_string(proc.join("status")).ok()?;
    let kib = |key: &str| value(&status, key)?.split(' ').next()?.parse::<u64>().ok().map(|n| n << 10);
    let resident_bytes = kib("VmRSS:");
    let capabilities = value(&status, "CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let (mappings, gpus) = mappings(&proc);
    let facts = Facts {
        id,
        t_ns: now_ns(),
        memlock_limit_bytes: fs::read_to_string(proc.join("limits")).ok().as_deref().and_then(memlock),
        may_lock_more: capabilities.map(|bits| bits & CAP_IPC_LOCK != 0),
        pinned_bytes: kib("VmPin:"),
        resident_bytes,
        hugetlb_bytes: kib("HugetlbPages:"),
        thp_bytes: resident_bytes.filter(|rss| LOOK_INTO.contains(rss)).and_then(|_| thp(&proc)),
        mappings,
        environment: environment(&proc),
        cpu_nodes: value(&status, "Cpus_allowed_list:")
            .map(|list| nodes_of(&cpu_list(list)))
            .unwrap_or_default(),
        gpus,
    };
    // All of it may be of another process by now.
    (target::start_ns_of(id.pid) == Some(id.start_ns)).then_some(facts)
}

fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// The soft limit on locked memory from `/proc/PID/limits`.
fn memlock(limits: &str) -> Option<u64> {
    let word = value(limits, "Max locked memory")?.split_ascii_whitespace().next()?;
    if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() }
}

fn thp(proc: &Path) -> Option<u64> {
    let rollup = fs::read_to_string(proc.join("smaps_rollup")).ok()?;
    let kib = |key: &str| {
        value(&rollup, key).and_then(|v| v.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    Some(kib("AnonHugePages:") + kib("ShmemPmdMapped:"))
}

/// The number of mappings, and the GPUs among them.
fn mappings(proc: &Path) -> (Option<u64>, Vec<String>) {
    let Ok(file) = File::open(proc.join("maps")) else { return (None, Vec::new()) };
    let (mut lines, mut gpus) = (0, BTreeSet::new());
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        lines += 1;
        if let Some(at) = memchr::memmem::find(&line, b" /dev/") {
            let path = String::from_utf8_lossy(&line[at + 1..]).trim_end().to_owned();
            if is_gpu(&path) && gpus.len() < MOST_VARIABLES {
                gpus.insert(path);
            }
        }
        line.clear();
    }
    (Some(lines), gpus.into_iter().collect())
}

fn is_gpu(path: &str) -> bool {
    ["/dev/nvidia", "/dev/kfd", "/dev/dri/renderD"].iter().any(|prefix| path.starts_with(prefix))
}

fn environment(proc: &Path) -> BTreeMap<String, String> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(proc.join("environ")) {
        // What could be read of it counts.
        let _ = file.take(MOST_ENVIRONMENT).read_to_end(&mut bytes);
    }
    chosen(&bytes)
}

/// The variables that matter, of an environment as the kernel shows it.
fn chosen(environ: &[u8]) -> BTreeMap<String, String> {
    environ
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='))
        .filter(|(name, _)| VARIABLES.iter().any(|prefix| name.starts_with(prefix)))
        .map(|(name, value)| (name.to_owned(), value.chars().take(LONGEST_VALUE).collect()))
        .take(MOST_VARIABLES)
        .collect()
}

/// `0-3,8` as ranges.
fn cpu_list(text: &str) -> Vec<(u32, u32)> {
    text.split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        })
        .collect()
}

/// Nodes with processors, and their lists.
fn nodes() -> Vec<(u32, Vec<(u32, u32)>)> {
    let mut nodes = Vec::new();
    for entry in fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(number) = name.strip_prefix("node").and_then(|n| n.parse().ok()) else { continue };
        let list = fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default();
        let list = cpu_list(list.trim());
        if !list.is_empty() {
            nodes.push((number, list));
        }
    }
    nodes.sort_unstable();
    nodes
}

fn nodes_of(cpus: &[(u32, u32)]) -> Vec<u32> {
    let meets = |list: &[(u32, u32)]| {
        list.iter().any(|(from, to)| cpus.iter().any(|(first, last)| from <= last && first <= to))
    };
    nodes().into_iter().filter(|(_, list)| meets(list)).map(|(node, _)| node).collect()
}

/// What the machine tells of itself.
pub fn machine() -> Machine {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let modules = text("/proc/modules");
    let peers = ["nvidia_peermem", "nv_peer_mem", "amdgpu", "ib_peer_mem"];
    Machine {
        nodes: nodes().into_iter().map(|(node, _)| node).collect(),
        max_mappings: text("/proc/sys/vm/max_map_count").trim().parse().ok(),
        thp: bracketed(&text("/sys/kernel/mm/transparent_hugepage/enabled")).to_owned(),
        gpu_peer_modules: modules
            .lines()
            .filter_map(|line| line.split(' ').next())
            .filter(|module| peers.contains(module))
            .map(str::to_owned)
            .collect(),
    }
}

/// The chosen word of `always [madvise] never`.
fn bracketed(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word)
}

/// Where a device sits; `folder` is its `/sys/class/infiniband/NAME`.
pub fn placement(folder: &Path) -> Placement {
    let text = |file: &str| fs::read_to_string(folder.join("device").join(file)).ok();
    let number = |file: &str| text(file).and_then(|t| t.trim().parse::<i64>().ok());
    let small = |n: i64| u32::try_from(n).ok();
    let lanes = |file: &str| number(file).and_then(small).filter(|n| *n > 0 && *n < 64);
    Placement {
        node: number("numa_node").and_then(small),
        pcie_lanes: lanes("current_link_width"),
        pcie_max_lanes: lanes("max_link_width"),
        pcie_mtps: text("current_link_speed").as_deref().and_then(megatransfers),
        pcie_max_mtps: text("max_link_speed").as_deref().and_then(megatransfers),
        iommu: text("iommu_group/type").unwrap_or_default().trim().to_owned(),
    }
}

/// `8.0 GT/s PCIe`
fn megatransfers(text: &str) -> Option<u32> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (number > 0.0 && number < 1e6).then_some((number * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_told_once_and_again_only_when_it_changed() {
        let id =
            ProcessId { pid: std::process::id(), start_ns: target::start_ns_of(std::process::id()).unwrap() };
        let mut surroundings = Surroundings::default();
        let Some(Record::Facts(facts)) = surroundings.look(id) else { panic!("nothing was told") };
        assert!(facts.mappings.is_some_and(|n| n > 10) && facts.resident_bytes.is_some_and(|n| n > 1 << 20));
        assert!(facts.memlock_limit_bytes.is_some() && facts.may_lock_more.is_some());
        assert!(surroundings.look(id).is_none() && surroundings.knows(id));
        surroundings.forget(id);
        assert!(surroundings.look(ProcessId { pid: id.pid, start_ns: 1 }).is_none());
    }

    #[test]
    fn small_changes_are_no_news() {
        let old = Facts { mappings: Some(1000), ..Facts::default() };
        assert!(!differs(&old, &Facts { mappings: Some(1040), t_ns: 9, ..Facts::default() }));
        assert!(differs(&old, &Facts { mappings: Some(1100), ..Facts::default() }));
        assert!(differs(&old, &Facts::default()));
    }

    #[test]
    fn limits_lists_and_speeds_are_read_as_the_kernel_writes_them() {
        let line = |soft: &str| {
            format!("Limit   Soft Limit  Hard\nMax locked memory         {soft}   unlimited   bytes\n")
        };
        assert_eq!(memlock(&line("65536")), Some(65536));
        assert_eq!(memlock(&line("unlimited")), Some(u64::MAX));
        assert_eq!(memlock("nothing"), None);
        assert_eq!(cpu_list("0-3,8,x,10-"), [(0, 3), (8, 8)]);
        assert_eq!(megatransfers("16.0 GT/s PCIe\n"), Some(16_000));
        assert_eq!(megatransfers("Unknown"), None);
        assert_eq!((bracketed("always [madvise] never\n"), bracketed("")), ("madvise", ""));
    }

    #[test]
    fn only_variables_of_the_verbs_are_kept() {
        let kept = chosen(b"SECRET=1\0RDMAV_HUGEPAGES_SAFE=1\0broken\0IBV_FORK_SAFE=\0\xff\xfe=2\0");
        let names: Vec<_> = kept.keys().map(String::as_str).collect();
        assert_eq!(names, ["IBV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"]);
    }

    #[test]
    fn a_device_without_a_folder_has_no_place() {
        assert_eq!(placement(Path::new("/nonexistent")), Placement::default());
        assert!(machine().max_mappings.is_some());
    }
}
