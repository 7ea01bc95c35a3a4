//! What makes the registration of large memory slow.

use super::super::finding::{Confidence, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{REGISTRATIONS, Subject};
use super::man;
use crate::model::PAGE_BYTES;
use crate::report::units::{bytes, count, duration, percent};

const BIG_CLASS: Threshold = Threshold {
    key: "min_region_bytes",
    value: 67_108_864.0,
    unit: "bytes",
    why: "64 MiB are 16,384 pages of 4 KiB: about what the translation caches of current NICs hold, and some 5 ms to pin",
};

const HUGE_SHARE: Threshold = Threshold {
    key: "max_huge_share",
    value: 0.5,
    unit: "share of the registered bytes",
    why: "with half of it in huge pages most of the cost is gone",
};

/// 4 KiB pages under big regions.
pub static SMALL_PAGES: Rule = Rule {
    id: "registration-small-pages",
    title: "large regions lie on 4 KiB pages",
    looks_at: "regions of more than 64 MiB, and how much of the process's memory is in huge pages",
    plane: Plane::Surroundings,
    thresholds: &[&BIG_CLASS, &HUGE_SHARE],
    cause: "The kernel pins page by page and the device gets a translation for each. Pages of 2 MiB mean 512 times fewer of both: registration is faster, and random access less often waits for a translation that the NIC does not hold.",
    remedy: "Allocate the memory with mmap(MAP_HUGETLB | MAP_HUGE_2MB) after reserving pages (sysctl vm.nr_hugepages), or ask for transparent huge pages with madvise(MADV_HUGEPAGE) on 2 MiB-aligned memory before touching it.",
    unless: "the memory is a file mapping that has no huge pages, or fork protection is in force (ibv_fork_init on kernels before 5.12): it fails on huge pages, and with RDMAV_HUGEPAGES_SAFE each registration reads all of /proc/PID/smaps.",
    workload: Some("hugepages"),
    shown: Shown::By("registration-small-pages"),
    links: &[
        man!("3", "ibv_reg_mr"),
        man!("2", "mmap"),
        "https://docs.kernel.org/admin-guide/mm/hugetlbpage.html",
    ],
    met: &[
        "ofiwg/libfabric#4738",
        "kvcache-ai/Mooncake#848",
        "kvcache-ai/Mooncake#1304",
        "openucx/ucx#10719",
    ],
    check: Check::Process(small_pages),
};

const TOUCHED: Threshold = Threshold {
    key: "min_pages",
    value: 10_000.0,
    unit: "pages registered",
    why: "below 40 MiB first touch takes some ten milliseconds, once",
};

const FAULTS: Threshold = Threshold {
    key: "min_fault_share",
    value: 0.25,
    unit: "page faults per page",
    why: "huge pages fault once for many pages; from a quarter on most of the memory was new",
};

/// First touch inside registration.
pub static FIRST_TOUCH: Rule = Rule {
    id: "registration-first-touch",
    title: "registration touches its memory for the first time",
    looks_at: "page faults taken inside registrations, against their pages",
    plane: Plane::Control,
    thresholds: &[&TOUCHED, &FAULTS],
    cause: "The memory was never touched before, so registering it also allocates and clears every page, in the one thread that registers.",
    remedy: "Touch the memory beforehand, from several threads, or allocate it with MAP_POPULATE or as huge pages.",
    unless: "start-up time does not matter: the pages must be cleared once in any case, and touching them in one thread moves the cost without lowering it.",
    workload: Some("registration"),
    shown: Shown::Synthetic {
        why: "page faults inside registrations are seen by kernel probes alone, which need a kernel with RDMA",
    },
    links: &[man!("2", "mmap")],
    met: &["kvcache-ai/Mooncake#1304"],
    check: Check::Process(first_touch),
};

const HUGE: Threshold = Threshold {
    key: "min_bytes",
    value: 8_589_934_592.0,
    unit: "bytes",
    why: "8 GiB of 4 KiB pages take about a second to pin; with less nobody waits",
};

const ONE_AFTER_THE_OTHER: Threshold = Threshold {
    key: "max_parallel",
    value: 1.3,
    unit: "registrations at the same time",
    why: "1 is strictly one after the other; a little above is chance",
};

/// One thread registers everything.
pub static SERIAL: Rule = Rule {
    id: "registration-serial",
    title: "huge memory is registered by one thread, one piece after the other",
    looks_at: "bytes registered at once, the time it took, and how many registrations ran at the same time",
    plane: Plane::Control,
    thresholds: &[&HUGE, &ONE_AFTER_THE_OTHER],
    cause: "Each registration pins its pages with one processor. Published: 500 GB took 49 s in one thread and 12 s in several.",
    remedy: "Split the memory into pieces of some gibibytes and register them from 4 to 8 threads at the same time. Put it on huge pages (mmap with MAP_HUGETLB | MAP_HUGE_2MB) first: there is then far less to pin.",
    unless: "start-up time does not matter, or one region must cover all of it with a single key.",
    workload: Some("registration"),
    shown: Shown::Synthetic { why: "it takes more memory than the machines this is tested on have" },
    links: &[man!("3", "ibv_reg_mr")],
    met: &["kvcache-ai/Mooncake#855"],
    check: Check::Process(serial),
};

const TOGETHER: Threshold = Threshold {
    key: "min_parallel",
    value: 3.0,
    unit: "registrations at the same time",
    why: "with two, waiting for each other is hard to tell from noise",
};

const STRETCHED: Threshold = Threshold {
    key: "min_stretch",
    value: 4.0,
    unit: "median over fastest tenth",
    why: "registrations of one size differ by less when nothing is in their way",
};

/// Registering threads wait for each other.
pub static CONTENDED: Rule = Rule {
    id: "registration-contended",
    title: "registering from several threads does not scale: they wait for each other",
    looks_at: "registrations at the same time, and the median against the fastest tenth of their durations",
    plane: Plane::Control,
    thresholds: &[&TOGETHER, &STRETCHED],
    cause: "The threads meet at a lock: the process's memory map (mmap_lock, also taken by malloc, mmap and page faults), a registration cache's lock, or the driver's.",
    remedy: "Register less often: larger pieces, or a pool per thread that is registered once. Keep malloc, mmap and first touch out of the threads that register.",
    unless: "there are more threads than processors: then they wait for a processor, not for a lock.",
    workload: Some("registration"),
    shown: Shown::Synthetic { why: "which lock is met depends on kernel, driver and number of processors" },
    links: &[man!("3", "ibv_reg_mr")],
    met: &["openucx/ucx#11034"],
    check: Check::Process(contended),
};

const FAULTING: Threshold = Threshold {
    key: "min_page_faults",
    value: 1000.0,
    unit: "device page faults",
    why: "each takes some hundred microseconds; fewer are the first touch of the working set",
};

/// On-demand paging that faults all the time.
pub static ON_DEMAND: Rule = Rule {
    id: "odp-faults",
    title: "on-demand paging takes page faults while data moves",
    looks_at: "regions with IBV_ACCESS_ON_DEMAND and the device's page-fault counters over the recording",
    plane: Plane::Device,
    thresholds: &[&FAULTING],
    cause: "Memory under on-demand paging is not pinned: the NIC stops at a page it does not know, asks the kernel, and the peer is told to come again later (RNR). Each fault takes some hundred µs, and a large message may take one per page.",
    remedy: "Pin what is used all the time: ibv_reg_mr without IBV_ACCESS_ON_DEMAND. What cannot be pinned, bring in before it is used with ibv_advise_mr(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE), and put it on huge pages.",
    unless: "the memory is far larger than what is touched, and cannot be pinned.",
    workload: Some("access-pattern"),
    shown: Shown::Synthetic { why: "page faults of a device need one that has them" },
    links: &[man!("3", "ibv_advise_mr"), man!("3", "ibv_reg_mr")],
    met: &["meta-pytorch/monarch#4923", "zrlio/disni#39", "openucx/ucx#7021", "ofiwg/libfabric#3634"],
    check: Check::Process(on_demand),
};

fn small_pages(subject: &Subject<'_>) -> Verdict {
    let registrations = &subject.process.registrations;
    // Class n holds lengths up to 2^n: the first that is larger throughout.
    let from = (subject.limit(&BIG_CLASS).max(1.0) as u64).ilog2() as u8 + 1;
    let mut big = crate::model::SizeClass::default();
    for (_, class) in registrations.sizes.range(from..) {
        big.count += class.count;
        big.bytes = big.bytes.saturating_add(class.bytes);
        big.total_ns = big.total_ns.saturating_add(class.total_ns);
    }
    if big.count == 0 || registrations.on_demand >= subject.registrations() {
        return Verdict::Clear;
    }
    let Some(facts) = subject.facts() else {
        return Verdict::NotEnoughData("the process's memory was not looked at");
    };
    let thp_off = subject.model.header.machine.thp == "never";
    let (Some(hugetlb), thp) = (facts.hugetlb_bytes, facts.thp_bytes.or(thp_off.then_some(0))) else {
        return Verdict::NotObservable("the kernel does not tell huge pages");
    };
    let Some(thp) = thp else {
        return Verdict::NotEnoughData("how much memory is in transparent huge pages was not looked at");
    };
    // A range registered twice is there once.
    let registered = registrations.bytes.peak.min(facts.resident_bytes.unwrap_or(u64::MAX)).max(1);
    let share = hugetlb.saturating_add(thp) as f64 / registered as f64;
    if share > subject.limit(&HUGE_SHARE) {
        return Verdict::Clear;
    }
    let pages = big.bytes / PAGE_BYTES;
    Case::new(
        Severity::Warning,
        if thp == 0 && hugetlb == 0 { Confidence::High } else { Confidence::Medium },
        format!("large regions lie on 4 KiB pages, {} of them", bytes(big.bytes.min(registrations.bytes.peak))),
    )
    .because(format!(
        "{} of more than {}, {} in all: {} pages of 4 KiB where {} of 2 MiB would do",
        many(big.count, "registration"),
        bytes(1 << (from - 1)),
        bytes(big.bytes),
        count(pages),
        count((big.bytes >> 21).max(1))
    ))
    .because(format!(
        "{} of the process in huge pages ({} of the {} registered and resident)",
        bytes(hugetlb.saturating_add(thp)),
        percent(share),
        bytes(registered)
    ))
    .because(format!("registering took {} per page of 4 KiB", duration(big.total_ns / pages.max(1))))
    .remedy(format!(
        "Reserve {0} huge pages (sysctl -w vm.nr_hugepages={0}) and allocate the memory with mmap(MAP_HUGETLB | \
         MAP_HUGE_2MB); or ask for transparent ones with madvise(MADV_HUGEPAGE) on 2 MiB-aligned memory before touching it.",
        registered.div_ceil(2 << 20)
    ))
    .costs(subject.time_cost(big.total_ns))
    .found()
}

fn first_touch(subject: &Subject<'_>) -> Verdict {
    let split = &subject.process.registrations.split;
    let pages = subject.process.registrations.pages;
    if (pages as f64) < subject.limit(&TOUCHED) {
        return Verdict::Clear;
    }
    if split.page_faults_known == 0 {
        return Verdict::NotObservable("page faults inside registrations are not seen without kernel probes");
    }
    if (split.page_faults as f64) < pages as f64 * subject.limit(&FAULTS) {
        return Verdict::Clear;
    }
    Case::new(Severity::Warning, Confidence::High, FIRST_TOUCH.title)
        .because(format!(
            "{} page faults inside registrations of {} pages",
            count(split.page_faults),
            count(pages)
        ))
        .costs(subject.time_cost(subject.process.counts(&REGISTRATIONS).total_ns))
        .found()
}

fn serial(subject: &Subject<'_>) -> Verdict {
    let registered = subject.process.counts(&REGISTRATIONS);
    let registrations = &subject.process.registrations;
    let overlap = &registrations.overlap;
    // What is registered and given back again and again adds up to much, and yet no start-up waits for it.
    let at_once = registrations.bytes.peak.min(registered.bytes);
    if (at_once as f64) < subject.limit(&HUGE)
        || registered.total_ns < 1_000_000_000
        || subject.registrations() < 2
        || overlap.parallel() > subject.limit(&ONE_AFTER_THE_OTHER)
    {
        return Verdict::Clear;
    }
    Case::new(
        Severity::Warning,
        Confidence::High,
        format!("{} are registered one piece after the other", bytes(at_once)),
    )
    .because(format!(
        "{} in {}, {:.1} at the same time on average, by {}",
        many(subject.registrations(), "registration"),
        duration(registered.total_ns),
        overlap.parallel(),
        many(overlap.threads.len() as u64, "thread")
    ))
    .costs(subject.time_cost(registered.total_ns))
    .found()
}

fn contended(subject: &Subject<'_>) -> Verdict {
    let overlap = &subject.process.registrations.overlap;
    if overlap.parallel() < subject.limit(&TOGETHER) || subject.registrations() < 100 {
        return Verdict::Clear;
    }
    // Sizes that differ take different times: only a process that registers one size can be judged.
    let classes = subject.process.registrations.sizes.values();
    let most = classes.map(|class| class.count).max().unwrap_or(0);
    if most * 10 < subject.registrations() * 9 {
        return Verdict::NotEnoughData("registrations of different sizes cannot be compared");
    }
    let latency = subject.process.latency(&REGISTRATIONS);
    let (Some(fast), Some(median)) = (latency.quantile(0.1), latency.quantile(0.5)) else {
        return Verdict::Clear;
    };
    if (median as f64) < fast.max(1) as f64 * subject.limit(&STRETCHED) {
        return Verdict::Clear;
    }
    let lost = (median - fast).saturating_mul(subject.registrations());
    Case::new(Severity::Warning, Confidence::Low, CONTENDED.title)
        .because(format!(
            "{:.1} registrations at the same time on average, by {}",
            overlap.parallel(),
            many(overlap.threads.len() as u64, "thread")
        ))
        .because(format!(
            "a registration takes {} in the median, and {} or less in the fastest tenth",
            duration(median),
            duration(fast)
        ))
        .costs(subject.time_cost(lost))
        .found()
}

fn on_demand(subject: &Subject<'_>) -> Verdict {
    if subject.process.registrations.on_demand == 0 {
        return Verdict::Clear;
    }
    let faults: u64 = ["num_page_faults", "page_faults", "num_page_fault"]
        .iter()
        .map(|name| subject.host.grown(name).iter().map(|(_, n)| n).sum::<u64>())
        .sum();
    if faults == 0 {
        return Verdict::NotObservable("the device tells no page-fault counters");
    }
    if (faults as f64) < subject.limit(&FAULTING) {
        return Verdict::Clear;
    }
    Case::new(Severity::Warning, Confidence::Medium, ON_DEMAND.title)
        .because(format!("{} device page faults during the recording", count(faults)))
        .because(format!("{} with on-demand paging", many(subject.process.registrations.on_demand, "region")))
        .found()
}
