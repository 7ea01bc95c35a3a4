//! Memory registered more often than needed at the same time, and regions nobody gives back.

use std::collections::BTreeMap;

use super::super::finding::{Confidence, Cost, Evidence, Severity, many};
use super::super::growth::{self, Grows, Limits, Objects};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::{REGISTRATIONS, Subject};
use super::man;
use crate::model::Alike;
use crate::report::caller;
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
    unit: "share of regions deregistered, of all or of those made at one place",
    why: "a program that gives back a fifth knows how to; a cache that fills up does too",
};

/// Regions that are never given back.
pub static LEAK: Rule = Rule {
    id: "mr-leak",
    title: "memory regions are made all the time and hardly any is given back",
    looks_at: "how many live regions were made in each quarter of the recording, how many were deregistered, of all and of those made at each place in the program",
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
    .because_of(registered_by(subject, alike).or_else(|| subject.called_from(&REGISTRATIONS)))
    .costs(subject.time_cost(each_ns.saturating_mul(extra)))
    .found()
}

/// The places that registered this range, as far as its regions live.
fn registered_by(subject: &Subject<'_>, range: &Alike) -> Option<Evidence> {
    let regions = subject.process.registrations.regions().values();
    let those = regions.filter(|r| (r.addr, r.length_bytes) == (range.addr, range.length_bytes));
    let mut places: BTreeMap<String, u64> = BTreeMap::new();
    for region in those {
        let site = subject.process.sites.get(region.site?)?;
        *places.entry(caller(subject.model, subject.process.info.id, &site.stack)?).or_default() += 1;
    }
    let named: Vec<String> =
        places.iter().take(3).map(|(place, n)| format!("{place} ({})", count(*n))).collect();
    (!named.is_empty())
        .then(|| Evidence { text: format!("registered by {}", named.join(", ")), qpns: Vec::new() })
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
    let regions = Objects {
        made: subject.registrations(),
        given_back: subject.process.succeeded_calls(Call::DeregMr),
        live: registrations.population.live,
        alive: registrations.regions().values().map(|r| (r.site, Some(r.since_ns), r.length_bytes)),
    };
    let limits = Limits { min_live: subject.limit(&GROWN), max_given_back: subject.limit(&GIVEN_BACK) };
    let growth = match growth::of(subject, regions, limits) {
        Grows::No => return Verdict::Clear,
        _ if !subject.sees(Call::DeregMr) => return Verdict::NotObservable("deregistrations are not seen"),
        Grows::TooShort => {
            return Verdict::NotEnoughData("the recording is too short to tell growth from set-up");
        }
        Grows::Yes(growth) => growth,
    };
    let back = growth.given_back as f64 / growth.made.max(1) as f64;
    Case::new(Severity::Warning, Confidence::Medium, growth.title("memory region"))
        .because(growth.over_time())
        .because(format!("{} registered, {} of them deregistered", count(growth.made), percent(back)))
        .because_of(growth.made_at(subject).or_else(|| subject.made_at(&REGISTRATIONS)))
        .costs(Cost {
            memory_bytes: Some(growth.bytes),
            text: format!(
                "{} pinned, {} more every second",
                bytes(growth.bytes),
                bytes((growth.bytes as f64 / subject.seconds()) as u64)
            ),
            ..Cost::default()
        })
        .found()
}
