//! Memory registered more often than needed at the same time, and regions nobody gives back.

use super::super::finding::{Confidence, Cost, Severity, many};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{REGISTRATIONS, Subject};
use super::man;
use crate::report::units::{bytes, count, percent};
use crate::sample::Call;

const ALIKE: Threshold = Threshold {
    key: "min_alike",
    value: 4.0,
    unit: "regions of one range",
    why: "two or three differ in access flags often enough",
};

/// Once per connection.
pub static PER_CONNECTION: Rule = Rule {
    id: "registration-per-connection",
    title: "one range is registered several times in the same protection domain",
    looks_at: "regions of equal address and length that live at the same time in one protection domain",
    plane: Plane::Control,
    thresholds: &[&ALIKE],
    cause: "The same buffer is registered several times over, usually once per connection, although one region serves every queue pair of its protection domain. When connections come back after a failure, each pays again.",
    remedy: "Register the buffer once per protection domain and hand its lkey and rkey to every connection.",
    unless: "each peer must get an rkey of its own that can be withdrawn alone: use memory windows (ibv_alloc_mw) for that.",
    workload: Some("registration"),
    shown: Shown::By("registration-per-connection"),
    links: &[man!("3", "ibv_reg_mr"), man!("3", "ibv_alloc_mw")],
    met: &["dingodb/DingoCache#88"],
    check: Check::Process(per_connection),
};

const DOMAINS: Threshold = Threshold {
    key: "min_domains",
    value: 2.0,
    unit: "protection domains",
    why: "one registration per device is the least there can be; a second is a choice",
};

const LARGE: Threshold = Threshold {
    key: "min_bytes",
    value: 1_073_741_824.0,
    unit: "bytes",
    why: "below a gibibyte, registering once more takes less than a tenth of a second",
};

/// Once per device.
pub static PER_DOMAIN: Rule = Rule {
    id: "registration-per-domain",
    title: "large memory is registered in several protection domains",
    looks_at: "regions of equal address and length that live at the same time in different protection domains",
    plane: Plane::Control,
    thresholds: &[&DOMAINS, &LARGE],
    cause: "The same large memory is registered for every device or protection domain, wanted or not: start-up pays for each.",
    remedy: "Register only on the devices that serve this memory (those of its NUMA node), or put all queue pairs of a device into one protection domain, or register on first use.",
    unless: "every device really moves data to and from all of the memory.",
    workload: None,
    shown: Shown::By("registration-per-domain"),
    links: &[man!("3", "ibv_alloc_pd")],
    met: &["spdk/spdk#2302"],
    check: Check::Process(per_domain),
};

const GROWN: Threshold = Threshold {
    key: "min_live",
    value: 40.0,
    unit: "live regions",
    why: "made in every quarter of the recording; fewer are a set-up that took its time",
};

const GIVEN_BACK: Threshold = Threshold {
    key: "max_given_back_share",
    value: 0.2,
    unit: "share of regions deregistered",
    why: "a program that gives back a fifth knows how to; a cache that fills up does too",
};

/// Regions that are never given back.
pub static LEAK: Rule = Rule {
    id: "mr-leak",
    title: "memory regions are made all the time and hardly any is given back",
    looks_at: "how many live regions were made in each quarter of the recording, how many were deregistered, and which places in the program made those that live",
    plane: Plane::Control,
    thresholds: &[&GROWN, &GIVEN_BACK],
    cause: "Regions are registered and not deregistered: on reconnect, on an error path, or by a registration cache without a limit. Their pages stay pinned, and sooner or later a limit is met (locked memory, the device's number of regions).",
    remedy: "Call ibv_dereg_mr where the buffer or the connection goes, error paths included; give a registration cache a limit (UCX_RCACHE_MAX_REGIONS, FI_MR_CACHE_MAX_COUNT).",
    unless: "the program is still setting itself up: record for longer.",
    workload: Some("registration"),
    shown: Shown::By("mr-leak"),
    links: &[man!("3", "ibv_reg_mr")],
    met: &["ofiwg/libfabric#7837", "openucx/ucx#9259", "openucx/ucx#6264", "ofiwg/libfabric#6663"],
    check: Check::Process(leak),
};

fn per_connection(subject: &Subject<'_>) -> Verdict {
    let alike = &subject.process.registrations.most_alike_in_a_domain;
    if (alike.count as f64) < subject.limit(&ALIKE) {
        return Verdict::Clear;
    }
    let extra = alike.count - 1;
    let each_ns = subject.process.counts(&REGISTRATIONS).total_ns / subject.registrations().max(1);
    Case::new(
        Severity::Warning,
        Confidence::High,
        format!("one range is registered {} times in the same protection domain", count(alike.count)),
    )
    .because(format!(
        "0x{:x} + {}: {} at the same time",
        alike.addr,
        bytes(alike.length_bytes),
        many(alike.count, "region")
    ))
    .because_of(subject.called_from(&REGISTRATIONS))
    .costs(subject.time_cost(each_ns.saturating_mul(extra)))
    .found()
}

fn per_domain(subject: &Subject<'_>) -> Verdict {
    let registrations = &subject.process.registrations;
    let alike = &registrations.most_alike;
    let within = registrations.most_alike_in_a_domain.count;
    // Those alike within one domain are another rule's.
    let domains = if alike.count > within { alike.count / within.max(1) } else { 1 };
    if (domains as f64) < subject.limit(&DOMAINS) || (alike.length_bytes as f64) < subject.limit(&LARGE) {
        return Verdict::Clear;
    }
    let registered = subject.process.counts(&REGISTRATIONS);
    let saved = registered.total_ns - registered.total_ns / domains;
    Case::new(
        Severity::Note,
        Confidence::Medium,
        format!("{} are registered in {domains} protection domains", bytes(alike.length_bytes)),
    )
    .because(format!("0x{:x}: {} at the same time", alike.addr, many(alike.count, "region")))
    .costs(subject.time_cost(saved))
    .found()
}

fn leak(subject: &Subject<'_>) -> Verdict {
    let registrations = &subject.process.registrations;
    let live = registrations.population.live;
    let made = subject.registrations();
    let back = subject.process.succeeded_calls(Call::DeregMr) as f64 / made.max(1) as f64;
    if (live as f64) < subject.limit(&GROWN) || back > subject.limit(&GIVEN_BACK) {
        return Verdict::Clear;
    }
    if !subject.sees(Call::DeregMr) {
        return Verdict::NotObservable("deregistrations are not seen");
    }
    let Some(quarters) = subject.quarters(registrations.regions().values().map(|region| region.since_ns))
    else {
        return Verdict::NotEnoughData("the recording is too short to tell growth from set-up");
    };
    // Growth goes on to the end; set-up is over by then.
    let least = (live / 12).max(1);
    if quarters[1..].iter().any(|made| *made < least) {
        return Verdict::Clear;
    }
    Case::new(
        Severity::Warning,
        Confidence::Medium,
        format!("{} live, and their number only grows", many(live, "memory region")),
    )
    .because(format!(
        "alive at the end, by the quarter of the recording they were made in: {}",
        quarters.map(count).join(", ")
    ))
    .because(format!("{} registered, {} of them deregistered", count(made), percent(back)))
    .because_of(subject.made_at(&REGISTRATIONS))
    .costs(Cost {
        memory_bytes: Some(registrations.bytes.live),
        text: format!(
            "{} pinned, {} more every second",
            bytes(registrations.bytes.live),
            bytes((registrations.bytes.live as f64 / subject.seconds()) as u64)
        ),
        ..Cost::default()
    })
    .found()
}
