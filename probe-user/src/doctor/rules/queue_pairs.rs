//! How many queue pairs there are, and why there can be no more.

use super::super::finding::{Confidence, Cost, Evidence, Severity, many, per_second, times};
use super::super::growth::{self, Grows, Limits, Objects};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Threshold, Verdict};
use super::super::subject::Subject;
use super::man;
use crate::report::errno;
use crate::report::units::{bytes, count, percent};
use crate::sample::Call;

const CACHED: Threshold = Threshold {
    key: "min_qps",
    value: 1000.0,
    unit: "queue pairs of the host",
    why: "published measurements see throughput fall from some hundred (older NICs) to about a thousand connections on",
};

/// Bytes of a queue pair's context on the device: 232 bytes of fields, kept in 256.
const CONTEXT_BYTES: u64 = 256;

/// More than a NIC caches.
pub static MANY: Rule = Rule {
    id: "many-qps",
    title: "more queue pairs than a device may cache",
    looks_at: "queue pairs alive at the same time on the whole host",
    plane: Plane::Control,
    thresholds: &[&CACHED],
    cause: "A device keeps the context of some hundred to some thousand queue pairs in its cache. Beyond, a message on a queue pair that it does not hold waits for a read over PCIe first, 0.5 to 0.9 µs on NICs that do one at a time.",
    remedy: "Use fewer connections: one per peer host instead of one per pair of threads, or one process per host that speaks for the others; XRC or DC transport where device and library have them.",
    unless: "only a few of them are busy at any time. How many fit differs by device.",
    workload: Some("multi-qp"),
    shown: Shown::By("many-qps"),
    links: &[man!("3", "ibv_create_qp")],
    met: &["valkey-io/valkey#477", "linux-rdma/perftest#128"],
    check: Check::Process(too_many),
};

const GROWN: Threshold = Threshold {
    key: "min_live",
    value: 40.0,
    unit: "live queue pairs",
    why: "made in every quarter of the recording; fewer are a set-up that took its time",
};

const DESTROYED: Threshold = Threshold {
    key: "max_destroyed_share",
    value: 0.2,
    unit: "share of queue pairs destroyed, of all or of those made at one place",
    why: "a place whose queue pairs are destroyed now and then is known to some path that ends them",
};

/// Queue pairs that are never destroyed.
pub static LEAK: Rule = Rule {
    id: "qp-leak",
    title: "queue pairs are created all the time and hardly any is destroyed",
    looks_at: "how many live queue pairs were created in each quarter of the recording, and how many were destroyed: of all, and of those made at each place in the program",
    plane: Plane::Control,
    thresholds: &[&GROWN, &DESTROYED],
    cause: "Queue pairs are created, for each connection or after each failure, and not destroyed. Each keeps its memory and number, until the device has no more (some ten or hundred thousand).",
    remedy: "Call ibv_destroy_qp (or rdma_destroy_qp and rdma_destroy_id) where a connection ends, error paths and failed connects included.",
    unless: "the program is still setting itself up: record for longer.",
    workload: None,
    shown: Shown::By("qp-leak"),
    links: &[man!("3", "ibv_create_qp")],
    met: &["kvcache-ai/Mooncake#1845", "spdk/spdk#1697", "ceph/ceph#13435"],
    check: Check::Process(leak),
};

const COME_AND_GO: Threshold = Threshold {
    key: "min_destroyed",
    value: 50.0,
    unit: "queue pairs destroyed",
    why: "fewer are the end of a program, or of a test of the connection",
};

const OF_TIME: Threshold = Threshold {
    key: "min_core_share",
    value: 0.1,
    unit: "share of a core spent on creating, connecting and destroying",
    why: "a tenth of the time for nothing but connections",
};

const EACH_SENDS: Threshold = Threshold {
    key: "max_wrs_each",
    value: 16.0,
    unit: "work requests per queue pair created",
    why: "a connection costs tens of microseconds on the host alone, as much as some dozen messages",
};

const OFTEN: Threshold = Threshold {
    key: "min_per_second",
    value: 200.0,
    unit: "queue pairs created per second",
    why: "on a NIC a queue pair costs some 0.1 to 1 ms of commands to its firmware: at this rate a good part of what it can do",
};

/// Made anew all the time.
pub static CHURN: Rule = Rule {
    id: "qp-churn",
    title: "queue pairs are created and destroyed all the time",
    looks_at: "queue pairs created and destroyed, the time that creating, connecting (ibv_modify_qp) and destroying took, and work requests per queue pair where posts are observed",
    plane: Plane::Control,
    thresholds: &[&COME_AND_GO, &OF_TIME, &EACH_SENDS, &OFTEN],
    cause: "A queue pair is made for little work and destroyed again. Each costs system calls, commands to the device's firmware (0.1 to 1 ms on a NIC) and three changes of state, on both sides, before the first message can go: far more than the message.",
    remedy: "Keep connections and use them again: a pool of connected queue pairs per peer, closed after some idle time. Where peers change often, datagrams (UD) or a queue pair reset and connected anew (ibv_modify_qp to RESET) save the creation.",
    unless: "peers come and go by themselves, and each stays as long as it likes.",
    workload: None,
    shown: Shown::By("qp-churn"),
    links: &[man!("3", "ibv_create_qp"), man!("3", "ibv_modify_qp")],
    met: &[],
    check: Check::Process(churn),
};

/// Creation fails.
pub static CREATION_FAILED: Rule = Rule {
    id: "queue-creation-failed",
    title: "queue pairs or completion queues cannot be created",
    looks_at: "failed ibv_create_qp, ibv_create_cq and ibv_create_srq by errno, and how many of each live",
    plane: Plane::Control,
    thresholds: &[],
    cause: "EINVAL: more was asked for than the device allows (requests, SGEs, inline bytes, entries of a completion queue), or objects of different devices were mixed. ENOMEM, ENOSPC: the device has no more, or the limit on locked memory is met.",
    remedy: "EINVAL: compare what is asked for with `ibv_devinfo -v` (max_qp_wr, max_sge, max_cqe) and ask for less. ENOMEM, ENOSPC: destroy queue pairs that are no longer used (at most max_qp live), and look at `ulimit -l`.",
    unless: "the program finds the largest size by trying.",
    workload: None,
    shown: Shown::By("queue-creation-failed"),
    links: &[man!("3", "ibv_create_qp"), man!("3", "ibv_query_device")],
    met: &["uccl-project/uccl#922", "uccl-project/uccl#250", "NVIDIA/nccl#2134"],
    check: Check::Process(creation_failed),
};

const NEAR: Threshold = Threshold {
    key: "min_share",
    value: 0.8,
    unit: "share of the device's limit",
    why: "the next job or reconnect storm no longer fits",
};

/// Near what the device can hold.
pub static DEVICE_LIMIT: Rule = Rule {
    id: "device-limit-near",
    title: "the device is near the number of queue pairs or regions it can hold",
    looks_at: "queue pairs and regions of the host against max_qp and max_mr of the device with the smallest",
    plane: Plane::Device,
    thresholds: &[&NEAR],
    cause: "Each device holds so many queue pairs and memory regions and no more: creation and registration then fail with ENOMEM for everybody on the host.",
    remedy: "Regions: register few large ones instead of many small ones. Queue pairs: destroy those no longer used, and use one per peer host instead of one per pair of threads. Who holds them: rdma-probe devices.",
    unless: "",
    workload: None,
    shown: Shown::Synthetic { why: "devices at hand hold more than their hosts can make" },
    links: &[man!("3", "ibv_query_device")],
    met: &["spdk/spdk#902", "kvcache-ai/Mooncake#1123", "kvcache-ai/Mooncake#1845"],
    check: Check::Process(device_limit),
};

fn too_many(subject: &Subject<'_>) -> Verdict {
    let own = subject.process.queues.qp_population.peak;
    let all = subject.host.qps.max(own);
    // Said once, of the process that has most of them.
    let has_most = own == all || subject.host.most_qps == Some(subject.process.info.id);
    if (all as f64) < subject.limit(&CACHED) || !has_most {
        return Verdict::Clear;
    }
    Case::new(Severity::Note, Confidence::Low, format!("{} on this host", many(all, "queue pair")))
        .because(format!("{} of them, {}, are this process's", count(own), percent(own as f64 / all as f64)))
        .costs(Cost {
            memory_bytes: Some(all * CONTEXT_BYTES),
            text: format!(
                "about {} of contexts on the device ({CONTEXT_BYTES} B each)",
                bytes(all * CONTEXT_BYTES)
            ),
            ..Cost::default()
        })
        .found()
}

fn leak(subject: &Subject<'_>) -> Verdict {
    let alive = subject.qps.iter().filter(|qp| qp.destroyed_ns.is_none());
    let queues = Objects {
        made: subject.process.succeeded_calls(Call::CreateQp),
        given_back: subject.process.succeeded_calls(Call::DestroyQp),
        live: subject.process.queues.qp_population.live,
        alive: alive.map(|qp| (qp.site, qp.created_ns, 0)),
    };
    let limits = Limits { min_live: subject.limit(&GROWN), max_given_back: subject.limit(&DESTROYED) };
    let growth = match growth::of(subject, queues, limits) {
        Grows::No => return Verdict::Clear,
        _ if !subject.sees(Call::DestroyQp) => {
            return Verdict::NotObservable("destructions of queue pairs are not seen");
        }
        Grows::TooShort => {
            return Verdict::NotEnoughData("the recording is too short to tell growth from set-up");
        }
        Grows::Yes(growth) => growth,
    };
    let states = subject.those(|qp| qp.destroyed_ns.is_none() && qp.state.as_deref() == Some("ERR"));
    Case::new(Severity::Warning, Confidence::Medium, growth.title("queue pair"))
        .because(growth.over_time())
        .because(format!("{} created, {} destroyed", count(growth.made), count(growth.given_back)))
        .because_of(growth.made_at(subject).or_else(|| subject.made_at(&[Call::CreateQp])))
        .because_of(states.map(|(n, which)| Evidence {
            text: format!("{} in the error state: {}", count(n), which.text),
            ..which
        }))
        .costs(Cost {
            memory_bytes: Some(growth.live * CONTEXT_BYTES),
            text: format!(
                "{} of contexts on the device, and {} more queue pairs every second",
                bytes(growth.live * CONTEXT_BYTES),
                per_second(growth.live as f64 / subject.seconds())
            ),
            ..Cost::default()
        })
        .found()
}

fn churn(subject: &Subject<'_>) -> Verdict {
    let made = subject.process.succeeded_calls(Call::CreateQp);
    let destroyed = subject.process.succeeded_calls(Call::DestroyQp);
    // Those that were destroyed while others were made: the end of a program destroys all it had.
    let most = subject.process.queues.qp_population.peak;
    let gone_while_running = destroyed.min(made.saturating_sub(most));
    if (gone_while_running as f64) < subject.limit(&COME_AND_GO) || gone_while_running * 2 < made {
        return Verdict::Clear;
    }
    let calls = [Call::CreateQp, Call::ModifyQp, Call::DestroyQp];
    let cost = subject.time_cost(subject.process.counts(&calls).total_ns);
    let each = subject.traffic.filter(|t| t.has_rates()).map(|t| t.all.wrs as f64 / made.max(1) as f64);
    let little = each.is_some_and(|n| n <= subject.limit(&EACH_SENDS));
    let dear = cost.cpu_share.is_some_and(|share| share >= subject.limit(&OF_TIME));
    let often = subject.per_second(made) >= subject.limit(&OFTEN);
    if !little && !dear && !often {
        return Verdict::Clear;
    }
    let mut case = Case::new(
        if little || dear { Severity::Warning } else { Severity::Note },
        if each.is_some() { Confidence::High } else { Confidence::Medium },
        format!(
            "{} queue pairs a second are created, and destroyed again",
            per_second(subject.per_second(made))
        ),
    )
    .because(format!(
        "{} created, {} destroyed, {} alive at most",
        count(made),
        count(destroyed),
        count(most)
    ));
    if let Some(each) = each {
        case = case.because(format!("{each:.1} work requests for each"));
    }
    case.costs(cost).found()
}

fn creation_failed(subject: &Subject<'_>) -> Verdict {
    let calls = [Call::CreateQp, Call::CreateCq, Call::CreateSrq];
    let failed = subject.process.counts(&calls).failed;
    // ENOMEM by the limit on locked memory is another rule's.
    let errnos = subject.process.errnos(&calls);
    let limited = subject.facts().is_some_and(|facts| {
        facts.may_lock_more == Some(false) && facts.memlock_limit_bytes.is_some_and(|limit| limit != u64::MAX)
    });
    let by_limit = errnos.get(&libc::ENOMEM).copied().unwrap_or(0);
    if failed == 0 || (limited && by_limit == failed) {
        return Verdict::Clear;
    }
    let what = [
        (Call::CreateQp, "queue pair"),
        (Call::CreateCq, "completion queue"),
        (Call::CreateSrq, "shared receive queue"),
    ];
    let mut case = Case::new(
        Severity::Problem,
        Confidence::High,
        if failed == 1 {
            "a queue could not be created".to_owned()
        } else {
            format!("{} times a queue could not be created", count(failed))
        },
    );
    for (call, name) in what {
        let errnos = subject.process.errnos(&[call]);
        for (number, n) in errnos {
            case = case.because(format!("{name}: {}, {}", errno(number), times(n)));
        }
    }
    case.because_of(subject.failed_at(&calls))
        .because(format!(
            "{} and {} alive at most",
            many(subject.process.queues.qp_population.peak, "queue pair"),
            many(subject.process.queues.cq_population.peak, "completion queue")
        ))
        .found()
}

fn device_limit(subject: &Subject<'_>) -> Verdict {
    if subject.host.most_qps != Some(subject.process.info.id) {
        return Verdict::Clear;
    }
    let limits = subject.model.devices.values().map(|device| &device.limits);
    let (mut max_qp, mut max_mr) = (None, None);
    for limit in limits {
        max_qp = [max_qp, limit.max_qp].into_iter().flatten().min();
        max_mr = [max_mr, limit.max_mr].into_iter().flatten().min();
    }
    if max_qp.is_none() && max_mr.is_none() {
        return Verdict::NotObservable("the devices' limits are not known");
    }
    let qps = subject.host.qps;
    let mrs: u64 = subject.model.processes.values().map(|p| p.registrations.population.live).sum();
    let mut case = Case::new(Severity::Warning, Confidence::Medium, DEVICE_LIMIT.title);
    let mut near = false;
    for (have, most, thing) in [(qps, max_qp, "queue pair"), (mrs, max_mr, "memory region")] {
        let Some(most) = most.filter(|most| *most > 0) else { continue };
        if have as f64 >= most as f64 * subject.limit(&NEAR) {
            near = true;
            case =
                case.because(format!("{} of the {} that the device holds", many(have, thing), count(most)));
        }
    }
    if near { case.found() } else { Verdict::Clear }
}
