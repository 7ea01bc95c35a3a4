//! Giving memory back.

use super::super::finding::{Confidence, Severity};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::man;
use crate::report::units::{count, duration};
use crate::sample::Call;

const LONG: Threshold = Threshold {
    key: "min_ms",
    value: 1000.0,
    unit: "ms",
    why: "an exit that hangs for a second is noticed, and a watchdog may call it a hang",
};

/// A deregistration that takes seconds.
pub static SLOW: Rule = Rule {
    id: "deregistration-slow",
    title: "giving memory back takes seconds",
    looks_at: "the longest ibv_dereg_mr, ib_umem_release and ibv_close_device",
    plane: Plane::Control,
    thresholds: &[&LONG],
    cause: "The kernel unpins page by page when a large region goes, about 0.09 µs each (published): 24 s for a tebibyte of 4 KiB pages. At exit the process cannot be killed meanwhile, which looks like a hang.",
    remedy: "Put large regions on huge pages (mmap with MAP_HUGETLB | MAP_HUGE_2MB: 512 times fewer pages to unpin). Where that cannot be, register them in pieces and deregister these from several threads before exiting.",
    unless: "",
    workload: Some("hugepages"),
    shown: Shown::Synthetic { why: "regions of hundreds of gibibytes are needed" },
    links: &[man!("3", "ibv_reg_mr"), man!("2", "mmap")],
    met: &["kvcache-ai/Mooncake#1620"],
    check: Check::Process(slow),
};

fn slow(subject: &Subject<'_>) -> Verdict {
    let process = subject.process;
    let calls = [Call::DeregMr, Call::KernelUnpin, Call::KernelDeregMr, Call::CloseDevice];
    let Some(longest) = process.longest_ns(&calls) else { return Verdict::Clear };
    if (longest as f64) < subject.limit(&LONG) * 1e6 {
        return Verdict::Clear;
    }
    let total = process.count(Call::DeregMr).total_ns.max(process.count(Call::KernelUnpin).total_ns);
    Case::new(
        Severity::Warning,
        Confidence::High,
        format!("giving memory back took up to {}", duration(longest)),
    )
    .because(format!(
        "{} deregistrations in {} together, the longest {}",
        count(process.count(Call::DeregMr).returned),
        duration(process.count(Call::DeregMr).total_ns),
        duration(longest)
    ))
    .costs(subject.time_cost(total))
    .found()
}
