//! Fork protection, and what it does to the address space.

use super::super::finding::{Confidence, Severity};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{REGISTRATIONS, Subject};
use super::man;
use crate::report::units::{count, duration, percent};

const REGISTERS: Threshold = Threshold {
    key: "min_registrations",
    value: 100.0,
    unit: "registrations",
    why: "at set-up the cost does not matter",
};

/// `RDMAV_HUGEPAGES_SAFE` reads `/proc/PID/smaps` at every registration.
pub static HUGEPAGES_SAFE: Rule = Rule {
    id: "hugepages-safe-slow",
    title: "RDMAV_HUGEPAGES_SAFE makes every registration read all of /proc/PID/smaps",
    looks_at: "the variable, the number of registrations, and the share of their time outside the kernel's registration",
    plane: Plane::Surroundings,
    thresholds: &[&REGISTERS],
    cause: "With fork protection in force and RDMAV_HUGEPAGES_SAFE set, libibverbs finds the page size of a range by reading /proc/PID/smaps, at every registration and deregistration: 93 µs became 5.4 ms for one user.",
    remedy: "On kernel 5.12 or newer switch fork protection off (unset RDMAV_FORK_SAFE, IBV_FORK_SAFE and RDMAV_HUGEPAGES_SAFE, do not call ibv_fork_init): the kernel copies pinned pages at fork. Else register once, at the start.",
    unless: "the kernel is older than 5.12 and the program forks while regions on huge pages live. libibverbs of rdma-core 35 or newer asks the kernel, and ignores the variable where fork protection is not needed.",
    workload: Some("registration"),
    shown: Shown::By("hugepages-safe-slow"),
    links: &[man!("3", "ibv_fork_init")],
    met: &["linux-rdma/rdma-core#767"],
    check: Check::Process(hugepages_safe),
};

/// Fork protection on a kernel that does not need it.
pub static UNNEEDED: Rule = Rule {
    id: "fork-protection-unneeded",
    title: "fork protection is asked for though this kernel does not need it",
    looks_at: "RDMAV_FORK_SAFE and IBV_FORK_SAFE in the environment, and the kernel's version",
    plane: Plane::Surroundings,
    thresholds: &[],
    cause: "Since Linux 5.12 a fork copies pages that are pinned for a device, so that parent and device go on sharing them. Fork protection then only costs: an madvise call at every registration and deregistration, and memory mappings split at its borders. libibverbs of rdma-core 35 or newer asks the kernel and leaves it off by itself; an older one, or one in a container, obeys.",
    remedy: "Unset RDMAV_FORK_SAFE and IBV_FORK_SAFE; ask ibv_is_fork_initialized(), which answers IBV_FORK_UNNEEDED where that is so.",
    unless: "the same set-up also runs on kernels before 5.12.",
    workload: Some("registration"),
    shown: Shown::By("fork-protection-unneeded"),
    links: &[man!("3", "ibv_fork_init"), man!("3", "ibv_is_fork_initialized")],
    met: &["kvcache-ai/Mooncake#3639", "openucx/ucx#11573"],
    check: Check::Process(unneeded),
};

const NEAR: Threshold = Threshold {
    key: "min_share",
    value: 0.8,
    unit: "share of vm.max_map_count",
    why: "mappings are split without warning: a fifth is used up faster than one thinks",
};

/// Nearly no mappings left.
pub static MAP_COUNT: Rule = Rule {
    id: "map-count-near",
    title: "the process is near the number of memory mappings it may have",
    looks_at: "mappings of the process against vm.max_map_count",
    plane: Plane::Surroundings,
    thresholds: &[&NEAR],
    cause: "Beyond vm.max_map_count every mmap, madvise and mprotect that would split a mapping fails with ENOMEM, and with it ibv_reg_mr under fork protection, malloc and thread creation. Fork protection, where it is in force, splits mappings at the borders of every region and never joins them again.",
    remedy: "Raise the limit now: sysctl -w vm.max_map_count=1048576 (running processes have it at once). Register few large regions instead of many small ones, and switch fork protection off on kernel 5.12 or newer.",
    unless: "",
    workload: None,
    shown: Shown::By("map-count-near"),
    links: &["https://docs.kernel.org/admin-guide/sysctl/vm.html", man!("3", "ibv_fork_init")],
    met: &["kvcache-ai/Mooncake#3639", "openucx/ucx#11573"],
    check: Check::Process(map_count),
};

fn hugepages_safe(subject: &Subject<'_>) -> Verdict {
    let on = ["RDMAV_HUGEPAGES_SAFE"].iter().any(|name| subject.variable(name).is_some());
    let n = subject.registrations();
    if !on || (n as f64) < subject.limit(&REGISTERS) {
        return Verdict::Clear;
    }
    let kernel = subject.process.registrations.split.kernel.share();
    let registered = subject.process.counts(&REGISTRATIONS);
    // What the kernel's registration does not explain is spent in the library.
    let outside = kernel.map(|share| (registered.total_ns as f64 * (1.0 - share)) as u64);
    let (severity, confidence, told) = match kernel {
        Some(share) if share < 0.5 => (
            Severity::Warning,
            Confidence::High,
            format!("{} of the time of registrations is outside the kernel's part", percent(1.0 - share)),
        ),
        Some(_) => return Verdict::Clear,
        None => (
            Severity::Note,
            Confidence::Low,
            "how much of their time is spent there is not seen without kernel probes".to_owned(),
        ),
    };
    let median = subject.process.latency(&REGISTRATIONS).quantile(0.5).unwrap_or(0);
    let case = Case::new(severity, confidence, HUGEPAGES_SAFE.title)
        .because(format!("{} registrations, {} each (median)", count(n), duration(median)))
        .because(told);
    match outside {
        Some(ns) => case.costs(subject.time_cost(ns)),
        None => case,
    }
    .found()
}

/// Whether a kernel release (`5.12.0-…`) copies pinned pages at fork.
fn copies_pinned_pages(release: &str) -> Option<bool> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((major, minor) >= (5, 12))
}

fn unneeded(subject: &Subject<'_>) -> Verdict {
    let kernel = &subject.model.header.kernel;
    if !subject.fork_safe() || copies_pinned_pages(kernel) != Some(true) {
        return Verdict::Clear;
    }
    Case::new(Severity::Note, Confidence::High, UNNEEDED.title)
        .because(format!("kernel {kernel}; RDMAV_FORK_SAFE or IBV_FORK_SAFE is set"))
        .found()
}

fn map_count(subject: &Subject<'_>) -> Verdict {
    let Some(limit) = subject.model.header.machine.max_mappings else { return Verdict::Clear };
    let Some(mappings) = subject.facts().and_then(|facts| facts.mappings) else { return Verdict::Clear };
    let share = mappings as f64 / limit.max(1) as f64;
    if share < subject.limit(&NEAR) {
        return Verdict::Clear;
    }
    Case::new(
        Severity::Warning,
        Confidence::High,
        format!("{} of {} memory mappings are in use", count(mappings), count(limit)),
    )
    .because(format!("{} of vm.max_map_count", percent(share)))
    .because_of(subject.fork_safe().then(|| super::super::finding::Evidence {
        text: "fork protection is asked for (RDMAV_FORK_SAFE or IBV_FORK_SAFE): in force, it splits mappings at every region".to_owned(),
        qpns: Vec::new(),
    }))
    .found()
}

#[cfg(test)]
mod tests {
    use super::copies_pinned_pages;

    #[test]
    fn the_kernel_that_copies_pinned_pages_is_known_by_its_release() {
        for (release, known) in [
            ("5.12.0-rc1", Some(true)),
            ("6.1.0-57-amd64", Some(true)),
            ("5.4.0", Some(false)),
            ("4.18.0-553.el8", Some(false)),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(copies_pinned_pages(release), known, "{release}");
        }
    }
}
