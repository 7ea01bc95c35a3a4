//! Faults of memory registration.

use probe_user::model::{Model, ProcessModel};
use probe_user::report::errno;
use probe_user::sample::Call;

use super::super::format::{Unit, count, duration, number, share};
use super::super::totals::REGISTRATIONS;
use super::{Finding, Severity, Subject, cost, finding};

/// Registrations below which nothing is said of their habit: a program that sets itself up makes dozens.
const HABIT: u64 = 100;

/// Registrations per second, over the recording, that are no longer set-up.
const PER_SECOND: f64 = 5.0;

/// Share of a core from which a cost is a problem.
const DEAR: f64 = 0.01;

fn succeeded(process: &ProcessModel) -> u64 {
    REGISTRATIONS.iter().map(|call| process.succeeded_calls(*call)).sum()
}

fn per_second(model: &Model, n: u64) -> f64 {
    n as f64 * 1e9 / model.duration_ns().max(1) as f64
}

fn repeated_share(process: &ProcessModel) -> f64 {
    process.registrations.repeated as f64 / succeeded(process).max(1) as f64
}

/// Time in registrations and deregistrations.
fn total_ns(process: &ProcessModel) -> u64 {
    process.counts(&REGISTRATIONS).total_ns.saturating_add(process.count(Call::DeregMr).total_ns)
}

fn severity(weight: f64) -> Severity {
    if weight >= DEAR { Severity::Problem } else { Severity::Warning }
}

pub fn registered_again(subject: &Subject<'_>) -> Option<Finding> {
    let Subject { model, process, .. } = subject;
    let n = succeeded(process);
    let again = repeated_share(process);
    if n < HABIT || again < 0.5 {
        return None;
    }
    let (weight, cost) = cost(model, total_ns(process));
    let mut evidence = vec![format!(
        "{} of {} registrations were of a range registered before ({})",
        count(process.registrations.repeated as f64),
        count(n as f64),
        share(again)
    )];
    if let Some((addr, length, uses)) = process.registrations.ranges.most_used(1).first() {
        let length = number(*length as f64, Unit::Bytes);
        evidence.push(format!("0x{addr:x} + {length} alone {} times", count(*uses as f64)));
    }
    if let Some(p50) = process.latency(&REGISTRATIONS).quantile(0.5) {
        evidence.push(format!(
            "{} each (median), {}",
            duration(p50 as f64),
            number(per_second(model, n), Unit::PerSecond)
        ));
    }
    Some(Finding {
        evidence,
        cost,
        weight,
        cause: "Memory is registered for every operation and deregistered after it. Each time the kernel pins the pages and the device gets a new translation.",
        remedy: "Register a pool of buffers once and reuse it, or keep registrations in a cache keyed by address and length.",
        unless: "the memory really is another each time (freed and mapped anew at the same address): then a pool is the remedy, a cache is not.",
        workload: Some("registration"),
        ..finding(
            "registration-repeated",
            severity(weight),
            process,
            "the same memory is registered again and again",
        )
    })
}

pub fn registered_all_the_time(subject: &Subject<'_>) -> Option<Finding> {
    let Subject { model, process, .. } = subject;
    let n = succeeded(process);
    let rate = per_second(model, n);
    if n < HABIT || rate < PER_SECOND || repeated_share(process) >= 0.5 {
        return None;
    }
    let (weight, cost) = cost(model, total_ns(process));
    Some(Finding {
        evidence: vec![
            format!("{} registrations, {}", count(n as f64), number(rate, Unit::PerSecond)),
            format!("{} live at the end", count(process.registrations.population.live as f64)),
        ],
        cost,
        weight,
        cause: "Memory is registered while work goes on, each time another range.",
        remedy: "Allocate buffers from memory that is registered once, at the start.",
        unless: "the buffers come from a library that cannot be told where to allocate: then register larger pieces, less often.",
        workload: Some("registration"),
        ..finding("registration-hot", severity(weight), process, "memory is registered while work goes on")
    })
}

pub fn registration_failed(subject: &Subject<'_>) -> Option<Finding> {
    let process = subject.process;
    let failed = process.counts(&REGISTRATIONS).failed;
    if failed == 0 {
        return None;
    }
    let errnos = process.errnos(&REGISTRATIONS);
    let no_memory = errnos.contains_key(&libc::ENOMEM);
    let (cause, remedy) = if no_memory {
        (
            "ENOMEM from a registration is most often the limit on locked memory (RLIMIT_MEMLOCK), not a want of memory.",
            "Raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in the service, --ulimit memlock=-1 for a container.",
        )
    } else {
        (
            "The kernel or the device refused the range: not mapped (EFAULT), wrong access flags (EINVAL), not allowed (EPERM, EACCES).",
            "Look at the arguments of the failing call: open the process, its latest calls are listed with their errno.",
        )
    };
    Some(Finding {
        evidence: errnos.iter().map(|(e, n)| format!("{} {} times", errno(*e), count(*n as f64))).collect(),
        cause,
        remedy,
        ..finding(
            "registration-failed",
            Severity::Problem,
            process,
            format!("{} registrations failed", count(failed as f64)),
        )
    })
}

pub fn first_touch(subject: &Subject<'_>) -> Option<Finding> {
    let Subject { model, process, .. } = subject;
    let split = &process.registrations.split;
    let pages = process.registrations.pages;
    if split.page_faults_known == 0 || pages < 10_000 || split.page_faults < pages / 4 {
        return None;
    }
    let (weight, cost) = cost(model, process.counts(&REGISTRATIONS).total_ns);
    Some(Finding {
        evidence: vec![format!(
            "{} page faults inside registrations of {} pages",
            count(split.page_faults as f64),
            count(pages as f64)
        )],
        cost,
        weight,
        cause: "The memory was never touched before, so registering it also allocates and clears every page.",
        remedy: "Touch the memory beforehand, from several threads, or allocate it with MAP_POPULATE or as huge pages.",
        unless: "start-up time does not matter: the pages must be cleared once in any case.",
        workload: Some("registration"),
        ..finding(
            "registration-first-touch",
            severity(weight),
            process,
            "registration touches its memory for the first time",
        )
    })
}
