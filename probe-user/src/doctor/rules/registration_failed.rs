//! Registrations that fail, and limits that are near: the cause, not the errno.

use super::super::finding::{Confidence, Evidence, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{REGISTRATIONS, Subject};
use super::man;
use crate::report::errno;
use crate::report::units::{bytes, count, percent};
use crate::sample::Call;

/// ENOMEM by the limit on locked memory.
pub static MEMLOCK: Rule = Rule {
    id: "memlock-limit",
    title: "registration fails at the limit on locked memory",
    looks_at: "ENOMEM (or EAGAIN, EPERM) of registrations and queue creations, the process's RLIMIT_MEMLOCK and whether it has CAP_IPC_LOCK",
    plane: Plane::Surroundings,
    thresholds: &[],
    cause: "Pinned memory counts against the limit on locked memory (RLIMIT_MEMLOCK). In containers, services and under mpirun it is 64 KiB or 8 MiB by default. The call fails with ENOMEM although memory has not run out.",
    remedy: "Raise it: `ulimit -l unlimited` in the shell, LimitMEMLOCK=infinity in the systemd unit, --ulimit memlock=-1 for docker, `* - memlock unlimited` in /etc/security/limits.conf; with Slurm also PropagateResourceLimitsExcept=MEMLOCK. Then start the program anew; of one that must go on running: prlimit --pid PID --memlock=unlimited.",
    unless: "",
    workload: None,
    shown: Shown::Synthetic { why: "the emulated device pins nothing and so meets no limit" },
    links: &[man!("2", "getrlimit"), man!("3", "ibv_reg_mr")],
    met: &["NVIDIA/nccl-tests#206", "openucx/ucx#8229", "NVIDIA/cudf-spark#7632"],
    check: Check::Process(memlock),
};

const NEAR: Threshold = Threshold {
    key: "min_share",
    value: 0.8,
    unit: "share of the limit",
    why: "the next pool or connection of the same size no longer fits",
};

/// Pinned memory near its limit.
pub static MEMLOCK_NEAR: Rule = Rule {
    id: "memlock-near",
    title: "pinned memory is near the limit on locked memory",
    looks_at: "registered bytes at their highest against RLIMIT_MEMLOCK, where it holds (no CAP_IPC_LOCK)",
    plane: Plane::Surroundings,
    thresholds: &[&NEAR],
    cause: "Pinned memory counts against the limit on locked memory (RLIMIT_MEMLOCK). A registration that does not fit any more fails with ENOMEM.",
    remedy: "Raise the limit: `ulimit -l unlimited` in the shell, LimitMEMLOCK=infinity in the systemd unit, --ulimit memlock=-1 for docker, and start the program anew; of one that must go on running: prlimit --pid PID --memlock=unlimited.",
    unless: "the program registers all it ever will at the start.",
    workload: None,
    shown: Shown::By("memlock-near"),
    links: &[man!("2", "getrlimit")],
    met: &["NVIDIA/nccl-tests#206", "openucx/ucx#6264"],
    check: Check::Process(memlock_near),
};

/// Huge pages and fork protection.
pub static HUGE_PAGES_FORK: Rule = Rule {
    id: "hugepages-fork-unsafe",
    title: "registration of huge pages fails under fork protection",
    looks_at: "EINVAL of registrations of a process that has huge pages and RDMAV_FORK_SAFE without RDMAV_HUGEPAGES_SAFE",
    plane: Plane::Surroundings,
    thresholds: &[],
    cause: "Fork protection (ibv_fork_init, RDMAV_FORK_SAFE) marks each registered range with madvise(MADV_DONTFORK) in steps of 4 KiB, which the kernel refuses on huge pages with EINVAL.",
    remedy: "Where the kernel is 5.12 or newer, switch fork protection off (unset RDMAV_FORK_SAFE and IBV_FORK_SAFE, do not call ibv_fork_init): it is not needed there. On older kernels set RDMAV_HUGEPAGES_SAFE=1, and register once, at the start: each registration then reads /proc/PID/smaps.",
    unless: "",
    workload: Some("hugepages"),
    shown: Shown::Synthetic {
        why: "the emulated device registers in its own library, which has no fork protection",
    },
    links: &[man!("3", "ibv_fork_init")],
    met: &["ofiwg/libfabric#4969", "ofiwg/libfabric#5647"],
    check: Check::Process(huge_pages_fork),
};

/// GPU memory that is refused.
pub static GPU: Rule = Rule {
    id: "gpu-memory-refused",
    title: "GPU memory cannot be registered",
    looks_at: "EFAULT or EINVAL of registrations of a process that uses a GPU, and whether a peer-memory module is loaded",
    plane: Plane::Surroundings,
    thresholds: &[],
    cause: "Most likely the range is GPU memory, and nothing gives the NIC a way to it: neither a peer-memory module of the kernel nor dma-buf.",
    remedy: "NVIDIA: modprobe nvidia_peermem. Or, with AMD GPUs too, export the memory as dma-buf and register it by ibv_reg_dmabuf_mr (kernel 5.12 or newer; with NVIDIA the open kernel modules); for NCCL see NCCL_DMABUF_ENABLE.",
    unless: "",
    workload: None,
    shown: Shown::Synthetic { why: "it needs a GPU" },
    links: &[man!("3", "ibv_reg_mr")],
    met: &["ROCm/mori#481", "deepseek-ai/DeepEP#750", "ofiwg/libfabric#12409", "linux-rdma/perftest#126"],
    check: Check::Process(gpu),
};

/// Any other refusal.
pub static REFUSED: Rule = Rule {
    id: "registration-failed",
    title: "registrations fail",
    looks_at: "failed registrations by errno",
    plane: Plane::Control,
    thresholds: &[],
    cause: "The kernel or the device refused the range: not mapped, or freed meanwhile (EFAULT), wrong access flags, such as remote write without local write (EINVAL), not allowed, such as writing to a read-only mapping (EACCES, EPERM), not supported (EOPNOTSUPP).",
    remedy: "Look at the arguments of the failing call: address and length must be mapped and writable where LOCAL_WRITE is asked for, and IBV_ACCESS_REMOTE_WRITE and _REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE.",
    unless: "the program tries what it can do without, and handles the refusal (ODP, huge pages, dma-buf).",
    workload: None,
    shown: Shown::By("registration-failed"),
    links: &[man!("3", "ibv_reg_mr")],
    met: &["linux-rdma/perftest#126"],
    check: Check::Process(refused),
};

const NO_MEMORY: [i32; 3] = [libc::ENOMEM, libc::EAGAIN, libc::EPERM];

/// Failures by a limit show in all that pins memory.
const PINNING: [Call; 5] = [Call::RegMr, Call::RegDmabufMr, Call::CreateQp, Call::CreateCq, Call::CreateSrq];

/// The limit that holds for the process, where one does.
fn limit(subject: &Subject<'_>) -> Option<u64> {
    let facts = subject.facts()?;
    let limit = facts.memlock_limit_bytes.filter(|limit| *limit != u64::MAX)?;
    (facts.may_lock_more != Some(true)).then_some(limit)
}

fn failures(subject: &Subject<'_>, calls: &[Call], errnos: &[i32]) -> u64 {
    let all = subject.process.errnos(calls);
    errnos.iter().filter_map(|errno| all.get(errno)).sum()
}

fn by_errno(subject: &Subject<'_>, calls: &[Call]) -> Vec<Evidence> {
    let times = |n: u64| if n == 1 { "once".to_owned() } else { format!("{} times", count(n)) };
    subject
        .process
        .errnos(calls)
        .iter()
        .map(|(number, n)| Evidence { text: format!("{} {}", errno(*number), times(*n)), qpns: Vec::new() })
        .collect()
}

fn by_memlock(subject: &Subject<'_>) -> Option<(u64, u64)> {
    let failed = failures(subject, &PINNING, &NO_MEMORY);
    (failed > 0).then(|| limit(subject)).flatten().map(|limit| (failed, limit))
}

fn memlock(subject: &Subject<'_>) -> Verdict {
    let Some((failed, limit)) = by_memlock(subject) else { return Verdict::Clear };
    let registrations = &subject.process.registrations;
    let mut case = Case::new(
        Severity::Problem,
        Confidence::High,
        format!(
            "{} at the limit on locked memory, {}",
            if failed == 1 { "a call fails".to_owned() } else { format!("{} calls fail", count(failed)) },
            bytes(limit)
        ),
    )
    .because(format!(
        "limit {}, and no privilege to exceed it (CAP_IPC_LOCK); {} registered at most",
        bytes(limit),
        bytes(registrations.bytes.peak)
    ));
    for evidence in by_errno(subject, &PINNING) {
        case = case.because_of(Some(evidence));
    }
    case.found()
}

fn memlock_near(subject: &Subject<'_>) -> Verdict {
    let Some(limit) = limit(subject) else { return Verdict::Clear };
    let peak = subject.process.registrations.bytes.peak;
    let share = peak as f64 / limit.max(1) as f64;
    if share < subject.limit(&NEAR) || by_memlock(subject).is_some() || share > 1.0 {
        return Verdict::Clear;
    }
    Case::new(
        Severity::Warning,
        Confidence::High,
        format!("{} of {} that may be locked are pinned", bytes(peak), bytes(limit)),
    )
    .because(format!("{} of the limit, and no privilege to exceed it (CAP_IPC_LOCK)", percent(share)))
    .because(format!("{} are left", bytes(limit - peak.min(limit))))
    .found()
}

fn is_fork_and_huge(subject: &Subject<'_>) -> bool {
    failures(subject, &REGISTRATIONS, &[libc::EINVAL]) > 0
        && subject.fork_safe()
        && subject.variable("RDMAV_HUGEPAGES_SAFE").is_none()
        && subject.facts().and_then(|facts| facts.hugetlb_bytes).unwrap_or(0) > 0
}

fn huge_pages_fork(subject: &Subject<'_>) -> Verdict {
    if !is_fork_and_huge(subject) {
        return Verdict::Clear;
    }
    Case::new(Severity::Problem, Confidence::Medium, HUGE_PAGES_FORK.title)
        .because(
            many(failures(subject, &REGISTRATIONS, &[libc::EINVAL]), "registration") + " refused with EINVAL",
        )
        .because(format!(
            "{} in huge pages; fork protection asked for by environment, RDMAV_HUGEPAGES_SAFE is not set",
            bytes(subject.facts().and_then(|facts| facts.hugetlb_bytes).unwrap_or(0))
        ))
        .found()
}

fn is_gpu(subject: &Subject<'_>) -> bool {
    let refused = failures(subject, &REGISTRATIONS, &[libc::EFAULT, libc::EINVAL, libc::EOPNOTSUPP]);
    refused > 0 && subject.facts().is_some_and(|facts| !facts.gpus.is_empty())
}

fn gpu(subject: &Subject<'_>) -> Verdict {
    if !is_gpu(subject) || is_fork_and_huge(subject) {
        return Verdict::Clear;
    }
    let modules = &subject.model.header.machine.gpu_peer_modules;
    let gpus = subject.facts().map(|facts| facts.gpus.join(", ")).unwrap_or_default();
    let (confidence, told) = if modules.is_empty() {
        (Confidence::Medium, "no peer-memory module is loaded".to_owned())
    } else {
        (Confidence::Low, format!("loaded: {}", modules.join(", ")))
    };
    let mut case =
        Case::new(Severity::Problem, confidence, "registrations of a process that uses a GPU are refused")
            .because(format!("GPU files in use: {gpus}; {told}"));
    for evidence in by_errno(subject, &REGISTRATIONS) {
        case = case.because_of(Some(evidence));
    }
    case.found()
}

fn refused(subject: &Subject<'_>) -> Verdict {
    let failed = subject.process.counts(&REGISTRATIONS).failed;
    if failed == 0 || is_fork_and_huge(subject) || is_gpu(subject) {
        return Verdict::Clear;
    }
    let no_memory = failures(subject, &REGISTRATIONS, &NO_MEMORY);
    if by_memlock(subject).is_some() && no_memory == failed {
        return Verdict::Clear;
    }
    let mut case =
        Case::new(Severity::Problem, Confidence::High, format!("{} failed", many(failed, "registration")));
    for evidence in by_errno(subject, &REGISTRATIONS) {
        case = case.because_of(Some(evidence));
    }
    case = case.because_of(subject.failed_at(&REGISTRATIONS));
    if no_memory == failed {
        case = case.cause("ENOMEM from a registration is most often the limit on locked memory (RLIMIT_MEMLOCK), else the device's number of regions or translations is used up.").remedy("Look at `ulimit -l` of the process (/proc/PID/limits) and raise it: LimitMEMLOCK=infinity in the service, --ulimit memlock=-1 for a container. If it is unlimited, compare the regions alive with max_mr of `ibv_devinfo -v`.");
    }
    case.found()
}
