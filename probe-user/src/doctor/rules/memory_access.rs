//! Where the data lies, and in which order it is touched.

use super::super::finding::{Confidence, Cost, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::super::traffic::{ATOMICS, READS, WRITES, detail, mean_bytes, of_opcodes, share};
use super::man;
use crate::report::units::{bytes, count, duration, percent};
use crate::sample::{QueueCounts, Strides};

const MANY: Threshold = Threshold {
    key: "min_wrs",
    value: 10_000.0,
    unit: "work requests",
    why: "a thousand messages of set-up need no thought",
};

const CROSSING: Threshold = Threshold {
    key: "min_unaligned_share",
    value: 0.5,
    unit: "share of work requests",
    why: "when most are aligned, the rest has a reason",
};

const CARED: Threshold = Threshold {
    key: "max_mean_bytes",
    value: 4096.0,
    unit: "bytes",
    why: "in longer payloads the two broken lines at the ends are lost among whole ones",
};

/// Bytes of a payload up to which a line more is at least an eighth more.
const FEW_LINES: f64 = 512.0;

/// Payloads that begin inside a line.
pub static UNALIGNED: Rule = Rule {
    id: "unaligned-payload",
    title: "payloads do not begin at a cache line",
    looks_at: "local and remote addresses of work requests modulo 64",
    plane: Plane::Data,
    thresholds: &[&MANY, &CROSSING, &CARED],
    cause: "A payload that begins inside a cache line (64 B) touches one line more than it needs. A line that the device writes in part must be read before it is written, and where two writers' records share a line, each write takes it away from the other.",
    remedy: "Align buffers and records to 64 bytes: aligned_alloc(64, …), #[repr(align(64))], alignas(64); round a record's size up to a multiple of 64.",
    unless: "memory is scarcer than time, or the layout is given by a format.",
    workload: Some("alignment"),
    shown: Shown::By("unaligned-payload"),
    links: &[man!("3", "aligned_alloc")],
    met: &["chapel-lang/chapel#15196", "linux-rdma/perftest#367"],
    check: Check::Process(unaligned),
};

const RANDOM: Threshold = Threshold {
    key: "min_random_share",
    value: 0.5,
    unit: "share of steps from one request to the next",
    why: "from half on the translation cache sees a new page as often as not",
};

const REACH: Threshold = Threshold {
    key: "translations",
    value: 8192.0,
    unit: "translations a NIC caches",
    why: "fits to published curves give 2,048 to 16,384; times the page size this is what can be reached without a miss",
};

/// Random access beyond the reach of the translation cache.
pub static BEYOND_REACH: Rule = Rule {
    id: "random-beyond-reach",
    title: "random access over more memory than the device's translations cover",
    looks_at: "steps of the remote address from one work request to the next, the size of the registered memory and its page size",
    plane: Plane::Data,
    thresholds: &[&MANY, &RANDOM, &REACH],
    cause: "Each access to a page whose translation the device does not hold costs a read over PCIe first. With 4 KiB pages some thousand translations reach 8 to 64 MiB.",
    remedy: "Put the memory on 2 MiB or 1 GiB pages (mmap with MAP_HUGETLB | MAP_HUGE_2MB), which reach 512 times farther; keep hot data together; access in order where the program may choose.",
    unless: "the device's cache is known to hold more, or the working set is small though the region is large.",
    workload: Some("access-pattern"),
    shown: Shown::By("random-beyond-reach"),
    links: &[man!("2", "mmap"), "https://docs.kernel.org/admin-guide/mm/hugetlbpage.html"],
    met: &["kvcache-ai/Mooncake#848"],
    check: Check::Process(beyond_reach),
};

const ATOMIC_SHARE: Threshold = Threshold {
    key: "min_atomic_share",
    value: 0.2,
    unit: "share of work requests",
    why: "a lock now and then does not decide the rate",
};

const SAME: Threshold = Threshold {
    key: "min_same_share",
    value: 0.5,
    unit: "share of steps to the same address",
    why: "half of all atomics in a row on one word is a hot word",
};

/// Share of steps to the same address from where on there is one address for all.
const ONE_FOR_ALL: f64 = 0.9;

/// A hot word.
pub static ATOMICS_HOT: Rule = Rule {
    id: "atomics-hot",
    title: "atomics meet on one address",
    looks_at: "share of atomics, and how often one goes to the address of the one before",
    plane: Plane::Data,
    thresholds: &[&MANY, &ATOMIC_SHARE, &SAME],
    cause: "The device does atomics on one address one after the other (some 2 to 3 million a second at best), and a failed compare-and-swap is a round trip for nothing.",
    remedy: "Spread the words (one counter per client, 64 bytes apart, added up by the reader); claim many at once with a fetch-and-add of N; replace a CAS lock by a WRITE into a slot of one's own and a READ, or by a message to the owner.",
    unless: "the lock must hold whoever fails: WRITE and READ cannot give mutual exclusion by themselves.",
    workload: Some("atomics"),
    shown: Shown::By("atomics-hot"),
    links: &[man!("3", "ibv_post_send")],
    met: &["meta-pytorch/torchcomms#2637"],
    check: Check::Process(atomics_hot),
};

const BOTH: Threshold = Threshold {
    key: "min_share_of_each",
    value: 0.2,
    unit: "share of work requests",
    why: "with less, one of the two hardly delays the other",
};

/// Reads and writes on one queue pair.
pub static MIXED: Rule = Rule {
    id: "reads-and-writes-mixed",
    title: "READs and WRITEs share queue pairs under load",
    looks_at: "opcodes per queue pair, requests under way",
    plane: Plane::Data,
    thresholds: &[&MANY, &BOTH],
    cause: "Requests of a queue pair complete in order: what is behind a READ is done only when the READ's data has come back, a round trip later, and a READ beyond max_rd_atomic holds up all that is behind it.",
    remedy: "Give READs a queue pair of their own to the same peer, and post WRITEs on the other.",
    unless: "the order of READs and WRITEs matters (only on the same queue pair does a READ see the WRITE before it), or few are under way.",
    workload: Some("multi-qp"),
    shown: Shown::By("reads-and-writes-mixed"),
    links: &[man!("3", "ibv_post_send")],
    met: &["spdk/spdk#2261"],
    check: Check::Process(mixed),
};

fn unaligned(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let (least, limit, cared) = (subject.limit(&MANY), subject.limit(&CROSSING), subject.limit(&CARED));
    let known = |counts: &QueueCounts| {
        let d = detail(counts)?;
        Some((d.unaligned_64?, d.examined_wrs.unwrap_or(counts.wrs)))
    };
    if traffic.all.wrs as f64 >= least && !traffic.senders().any(|(_, counts)| known(counts).is_some()) {
        return Verdict::NotObservable("where payloads lie is not seen");
    }
    let off = |counts: &QueueCounts| {
        // Inline payloads are copied by the processor, and what is shorter than a line can hardly cross one.
        traffic.enough(counts, least)
            && counts.inline * 2 < counts.wrs
            && (16.0..=cared).contains(&mean_bytes(counts))
            && known(counts).is_some_and(|(n, of)| share(n, of) >= limit)
    };
    let Some(those) = traffic.those(|_, counts| off(counts)) else { return Verdict::Clear };
    let (n, of) = known(&those.sum).unwrap_or_default();
    let lines = mean_bytes(&those.sum) / 64.0;
    let nearly_all = share(n, of) >= 0.9 && mean_bytes(&those.sum) <= FEW_LINES;
    Case::new(
        if nearly_all && !subject.is_software() { Severity::Warning } else { Severity::Note },
        Confidence::Medium,
        format!("{} of the payloads do not begin at a cache line", percent(share(n, of))),
    )
    .because(format!(
        "{} of {} work requests looked at; {} on average, {:.1} lines when aligned, up to {:.0} so",
        count(n),
        count(of),
        bytes(mean_bytes(&those.sum) as u64),
        lines.max(1.0),
        lines.ceil() + 1.0
    ))
    .because_of(Some(those.which))
    .found()
}

fn beyond_reach(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let (least, limit) = (subject.limit(&MANY), subject.limit(&RANDOM));
    if subject.is_software() {
        return Verdict::NotObservable("software moves the data: there is no PCIe and no cache of a NIC");
    }
    // The peer's region is known only where the peer is on this host; the largest of them is the best guess.
    let largest = subject.host.largest_region();
    let huge =
        subject.facts().map_or(0, |f| f.hugetlb_bytes.unwrap_or(0).saturating_add(f.thp_bytes.unwrap_or(0)));
    let page: u64 = if huge * 2 >= largest { 2 << 20 } else { 4096 };
    let reach = (subject.limit(&REACH) as u64).saturating_mul(page);
    if largest <= reach {
        return Verdict::Clear;
    }
    let known = |counts: &QueueCounts| detail(counts).and_then(|d| d.remote_strides);
    if traffic.all.wrs as f64 >= least && !traffic.senders().any(|(_, counts)| known(counts).is_some()) {
        return Verdict::NotObservable("where payloads lie is not seen");
    }
    let jumps = |counts: &QueueCounts| {
        traffic.enough(counts, least)
            && mean_bytes(counts) <= 4096.0
            && known(counts).is_some_and(|s| share(s.random, s.total()) >= limit)
    };
    let Some(those) = traffic.those(|_, counts| jumps(counts)) else { return Verdict::Clear };
    let strides = known(&those.sum).unwrap_or_default();
    Case::new(Severity::Note, Confidence::Low, BEYOND_REACH.title)
        .because(format!(
            "{} of the requests jump ({} go on where the one before ended)",
            percent(share(strides.random, strides.total())),
            percent(share(strides.sequential, strides.total()))
        ))
        .because(format!(
            "region of {} on pages of {}: some {} of it can be reached without a miss",
            bytes(largest),
            bytes(page),
            bytes(reach)
        ))
        .because_of(Some(those.which))
        .costs(Cost {
            text: "a miss takes some 0.3 µs of the device's time on older NICs, 40 ns on newer ones, which work at several \
                   at once (fitted to published curves)"
                .to_owned(),
            ..Cost::default()
        })
        .found()
}

fn atomics_hot(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let (least, limit, same) = (subject.limit(&MANY), subject.limit(&ATOMIC_SHARE), subject.limit(&SAME));
    let atomics = |counts: &QueueCounts| of_opcodes(counts, &ATOMICS);
    if traffic.lacks(&ATOMICS) {
        return Verdict::Clear;
    }
    let many_atomics = |counts: &QueueCounts| {
        atomics(counts) as f64 * 10.0 >= least && share(atomics(counts), counts.wrs) >= limit
    };
    let strides = |counts: &QueueCounts| detail(counts).and_then(|d| d.remote_strides);
    // A READ of the record that was locked goes to the same address and meets no other atomic: each request that is no
    // atomic takes part in two steps. Where nearly all steps stay, there is one address for all.
    let meets = |counts: &QueueCounts, s: Strides| {
        let others = counts.wrs.saturating_sub(atomics(counts));
        let surely = s.same.saturating_sub(others.saturating_mul(2));
        share(s.same, s.total()) >= ONE_FOR_ALL || share(surely, atomics(counts)) >= same
    };
    let hot = |counts: &QueueCounts| many_atomics(counts) && strides(counts).is_none_or(|s| meets(counts, s));
    let Some(those) = traffic.those(|_, counts| hot(counts)) else { return Verdict::Clear };
    let known = strides(&those.sum);
    if known.is_none() {
        return Verdict::NotObservable("which addresses atomics go to is not seen");
    }
    let n = atomics(&those.sum);
    let latency = detail(&those.sum).and_then(|d| {
        let mut all = crate::sample::Histogram::default();
        d.post_to_reap_ns
            .iter()
            .filter(|l| ATOMICS.contains(&l.opcode))
            .for_each(|l| all.merge(&l.latency_ns));
        all.quantile(0.5)
    });
    let mut case = Case::new(
        Severity::Warning,
        Confidence::Medium,
        format!("{} meet on one address, or few", many(n, "atomic")),
    )
    .because(format!(
        "{} of the work requests are atomics; {} of all go to the address of the one before",
        percent(share(n, those.sum.wrs)),
        percent(known.map_or(0.0, |s| share(s.same, s.total())))
    ));
    if let Some(median) = latency {
        case = case.because(format!("{} from post to reap in the median", duration(median)));
    }
    case.because_of(Some(those.which)).found()
}

fn mixed(subject: &Subject<'_>) -> Verdict {
    let Some(traffic) = subject.traffic else { return Verdict::Clear };
    let (least, limit) = (subject.limit(&MANY), subject.limit(&BOTH));
    if traffic.lacks(&READS) || traffic.lacks(&WRITES) {
        return Verdict::Clear;
    }
    let each = |counts: &QueueCounts| (of_opcodes(counts, &READS), of_opcodes(counts, &WRITES));
    let mixes = |counts: &QueueCounts| {
        let (reads, writes) = each(counts);
        traffic.enough(counts, least)
            && share(reads, counts.wrs) >= limit
            && share(writes, counts.wrs) >= limit
    };
    let Some(those) = traffic.those(|_, counts| mixes(counts)) else { return Verdict::Clear };
    if !super::super::traffic::is_pipelined(&those.sum, &traffic.all) {
        return Verdict::Clear;
    }
    let (reads, writes) = each(&those.sum);
    Case::new(
        Severity::Note,
        Confidence::Low,
        format!("READs and WRITEs share {}", many(those.n, "queue pair")),
    )
    .because(format!("{} READs, {} WRITEs", count(reads), count(writes)))
    .because_of(Some(those.which))
    .found()
}
