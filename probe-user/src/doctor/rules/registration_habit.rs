//! Memory registered while work goes on.

use super::super::finding::{Confidence, Severity, many, per_second};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{REGISTRATIONS, Subject};
use super::man;
use crate::report::units::{bytes, count, duration, percent};
use crate::sample::Call;

const HABIT: Threshold = Threshold {
    key: "min_registrations",
    value: 50.0,
    unit: "registrations",
    why: "a program that sets itself up makes some dozens",
};

const RATE: Threshold = Threshold {
    key: "min_per_second",
    value: 5.0,
    unit: "registrations per second",
    why: "over a whole recording, no set-up goes on at this rate",
};

const AGAIN: Threshold = Threshold {
    key: "min_repeated_share",
    value: 0.5,
    unit: "share of registrations",
    why: "from half on, reuse is the rule and not the exception",
};

const DEAR: Threshold = Threshold {
    key: "problem_core_share",
    value: 0.01,
    unit: "share of a core",
    why: "a hundredth of a core lost for nothing is felt in latency before it is felt in throughput",
};

/// The same range again and again.
pub static REPEATED: Rule = Rule {
    id: "registration-repeated",
    title: "the same memory is registered again and again",
    looks_at: "address and length of every registration, against those of the registrations before",
    plane: Plane::Control,
    thresholds: &[&HABIT, &AGAIN, &DEAR],
    cause: "Memory is registered that was registered before, usually anew for every operation. Each time the kernel pins the pages and the device gets a new translation: on a NIC 20 to 30 µs, and about 0.3 µs more per page of 4 KiB (published figures).",
    remedy: "Register a pool of buffers once (ibv_reg_mr at the start) and use it again and again. Where buffers come from elsewhere, keep their registrations in a cache keyed by address and length, and drop an entry when its memory is freed.",
    unless: "the memory is freed and mapped anew at the same address each time: then only a pool helps, and a cache would hand out stale keys.",
    workload: Some("registration"),
    shown: Shown::By("registration-repeated"),
    links: &[man!("3", "ibv_reg_mr")],
    met: &["ai-dynamo/nixl#1074", "ray-project/ray#59101", "jcarreira/cirrus-kv#169", "openucx/ucx#10085"],
    check: Check::Process(repeated),
};

/// Another range each time.
pub static HOT: Rule = Rule {
    id: "registration-hot",
    title: "memory is registered while work goes on",
    looks_at: "registrations per second over the recording, and how many regions live",
    plane: Plane::Control,
    thresholds: &[&HABIT, &RATE, &DEAR],
    cause: "Memory is registered all the time, each time another range. Each registration pins its pages and gives the device a new translation: on a NIC 20 to 30 µs, and about 0.3 µs more per page of 4 KiB (published figures).",
    remedy: "Allocate buffers from memory that is registered once, at the start; or register larger pieces, less often.",
    unless: "the buffers come from a library that cannot be told where to allocate: then keep registrations and drop them when the memory is freed, or use on-demand paging (IBV_ACCESS_ON_DEMAND) where the NIC has it.",
    workload: Some("registration"),
    shown: Shown::By("registration-hot"),
    links: &[man!("3", "ibv_reg_mr")],
    met: &["ai-dynamo/nixl#1074", "ofiwg/libfabric#6663"],
    check: Check::Process(hot),
};

/// Registrations, and share of the time at work they take, from where on they are felt though they are fewer than the
/// threshold: large buffers take long.
const FEW: u64 = 20;
const MUCH: f64 = 0.1;

/// Whether registrations are felt though they are few: they take much of the time, or come with every other post.
fn felt(subject: &Subject<'_>) -> bool {
    let n = subject.registrations();
    let share = total_ns(subject) as f64 / 1e9 / subject.seconds();
    let with_posts =
        subject.traffic.is_some_and(|t| t.is_whole() && t.all.post_calls > 0 && n * 2 >= t.all.post_calls);
    n >= FEW && (share >= MUCH || with_posts)
}

fn repeated_share(subject: &Subject<'_>) -> f64 {
    subject.process.registrations.repeated as f64 / subject.registrations().max(1) as f64
}

/// Time in registrations and deregistrations.
fn total_ns(subject: &Subject<'_>) -> u64 {
    let process = subject.process;
    process.counts(&REGISTRATIONS).total_ns.saturating_add(process.count(Call::DeregMr).total_ns)
}

fn severity(subject: &Subject<'_>) -> Severity {
    let share = total_ns(subject) as f64 / 1e9 / subject.seconds();
    if share >= subject.limit(&DEAR) { Severity::Problem } else { Severity::Warning }
}

fn repeated(subject: &Subject<'_>) -> Verdict {
    let process = subject.process;
    let n = subject.registrations();
    let again = repeated_share(subject);
    let felt = felt(subject);
    if ((n as f64) < subject.limit(&HABIT) && !felt) || again < subject.limit(&AGAIN) {
        return Verdict::Clear;
    }
    let mut case = Case::new(severity(subject), Confidence::High, REPEATED.title).because(format!(
        "{} of {} registrations were of a range registered before ({})",
        count(process.registrations.repeated),
        count(n),
        percent(again)
    ));
    if let Some((addr, length, uses)) = process.registrations.ranges.most_used(1).first() {
        case = case.because(format!("0x{addr:x} + {} alone {} times", bytes(*length), count(*uses)));
    }
    if let Some(p50) = process.latency(&REGISTRATIONS).quantile(0.5) {
        case = case.because(format!(
            "{} each (median), {} a second",
            duration(p50),
            per_second(subject.per_second(n))
        ));
    }
    case = case.because_of(subject.called_from(&REGISTRATIONS));
    case.costs(subject.time_cost(total_ns(subject))).found()
}

fn hot(subject: &Subject<'_>) -> Verdict {
    let process = subject.process;
    let n = subject.registrations();
    let rate = subject.per_second(n);
    let felt = felt(subject);
    if ((n as f64) < subject.limit(&HABIT) && !felt)
        || rate < subject.limit(&RATE)
        || repeated_share(subject) >= AGAIN.value
        || kept(subject)
    {
        return Verdict::Clear;
    }
    Case::new(severity(subject), Confidence::Medium, HOT.title)
        .because(format!(
            "{} registrations, {} a second, {} each (median), hardly any of a range registered before",
            count(n),
            per_second(rate),
            duration(process.latency(&REGISTRATIONS).quantile(0.5).unwrap_or(0))
        ))
        .because(format!("{} alive at the end", many(process.registrations.population.live, "region")))
        .because_of(subject.called_from(&REGISTRATIONS))
        .costs(subject.time_cost(total_ns(subject)))
        .found()
}

/// Regions that nearly all lived at the same time are a set-up, or a leak, which is another rule's.
fn kept(subject: &Subject<'_>) -> bool {
    subject.process.registrations.population.peak * 10 >= subject.registrations() * 9
}
