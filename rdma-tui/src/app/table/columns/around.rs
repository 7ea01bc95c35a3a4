//! Columns of what stands around the programs: findings, workloads, device counters, probes.

use std::borrow::Cow;

use probe_user::sample::Verdict;

use super::super::super::format::Unit;
use super::super::super::value::Value;
use super::super::Row;
use super::{Column, figure, verdict_word, words};

macro_rules! finding {
    ($f:ident => $value:expr) => {
        |_, r| match *r {
            Row::Finding($f) => $value,
            _ => Value::Missing,
        }
    };
}

pub(super) static FINDINGS: &[Column] = &[
    words(
        "finding.severity",
        "HOW BAD",
        10,
        0,
        "problem, warning or note",
        finding!(f => Value::Text(format!("{} {}", f.severity.mark(), f.severity.word()).into())),
    ),
    words("finding", "WHAT IS WRONG", 44, 0, "in one line", finding!(f => Value::text(&f.title))),
    figure(
        "pid",
        "PID",
        Unit::Id,
        7,
        2,
        "process id",
        finding!(f => f.process.as_ref().map_or(Value::Missing, |owner| Value::count(owner.id.pid.into()))),
    ),
    words("comm", "PROCESS", 16, 1, "command name", finding!(f => Value::text(f.comm()))),
    figure(
        "finding.core",
        "OF A CORE",
        Unit::Share,
        9,
        3,
        "share of one core it takes",
        finding!(f => f.cost.cpu_share.map_or(Value::Missing, Value::Number)),
    ),
    words("finding.sure", "SURE", 7, 4, "how sure that is", finding!(f => Value::text(f.confidence.word()))),
    words(
        "finding.workload",
        "SHOWN BY",
        20,
        4,
        "the reference workload that shows the effect",
        finding!(f => Value::of_text(f.workload)),
    ),
    words("finding.id", "RULE", 24, 5, "stable name of the rule", finding!(f => Value::text(f.id))),
];

pub(super) static WORKLOADS: &[Column] =
    &[
        words("workload", "WORKLOAD", 20, 0, "name", |_, r| match *r {
            Row::Workload(w) => Value::text(&w.name),
            _ => Value::Missing,
        }),
        figure("workload.effect", "EFFECT", Unit::Ratio, 7, 0, "optimised over baseline, median", |w, r| {
            match *r {
                Row::Workload(workload) => match w.workloads.results.get(&workload.name) {
                    Some(Ok(result)) => Value::Number(result.ratio.median),
                    _ => Value::Missing,
                },
                _ => Value::Missing,
            }
        }),
        words("workload.status", "STATUS", 34, 1, "verdict, or what it is doing", |w, r| match *r {
            Row::Workload(workload) => {
                match (&w.workloads.running, w.workloads.results.get(&workload.name)) {
                    (Some(running), _) if running.name == workload.name => {
                        Value::Text(Cow::Borrowed("running"))
                    }
                    (_, Some(Ok(result))) => Value::text(&result.verdict),
                    (_, Some(Err(why))) => Value::text(why),
                    _ => Value::Missing,
                }
            }
            _ => Value::Missing,
        }),
        words("workload.claim", "CLAIM", 40, 2, "what is claimed", |_, r| match *r {
            Row::Workload(w) => Value::text(if w.claim.is_empty() { &w.question } else { &w.claim }),
            _ => Value::Missing,
        }),
    ];

pub(super) static COUNTERS: &[Column] = &[
    words("device", "DEVICE", 10, 0, "device name", |_, r| match *r {
        Row::Counter { device, .. } => Value::text(&device.name),
        _ => Value::Missing,
    }),
    figure("port", "PORT", Unit::Id, 4, 1, "port number", |_, r| match *r {
        Row::Counter { port, .. } => Value::count(port.number.into()),
        _ => Value::Missing,
    }),
    words("counter", "COUNTER", 30, 0, "name, as the kernel or the device gives it", |_, r| match *r {
        Row::Counter { name, .. } => Value::text(name),
        _ => Value::Missing,
    }),
    figure("counter.value", "VALUE", Unit::Count, 12, 0, "since the device started", |_, r| match *r {
        Row::Counter { value, .. } => Value::count(value),
        _ => Value::Missing,
    }),
    figure("counter.rate", "PER SECOND", Unit::PerSecond, 11, 0, "over the last interval", |w, r| match *r {
        Row::Counter { device, port, name, .. } => {
            Value::of(w.counters.rate(&device.name, port.number, name))
        }
        _ => Value::Missing,
    }),
    figure(
        "counter.gained",
        "SINCE START",
        Unit::Count,
        12,
        1,
        "since the recording began",
        |w, r| match *r {
            Row::Counter { device, port, name, value } => {
                Value::of_count(w.counters.gained(&device.name, port.number, name, value))
            }
            _ => Value::Missing,
        },
    ),
];

pub(super) static PROBES: &[Column] = &[
    words("probe", "PROBE", 26, 0, "name", |_, r| match *r {
        Row::Probe(p) => Value::text(&p.name),
        _ => Value::Missing,
    }),
    words("probe.verdict", "VERDICT", 13, 0, "live, sampled, not here, denied, broken", |_, r| match *r {
        Row::Probe(p) => Value::Text(Cow::Borrowed(verdict_word(&p.verdict))),
        _ => Value::Missing,
    }),
    figure("probe.share", "SHARE", Unit::Share, 6, 3, "share of the hits looked at", |_, r| match *r {
        Row::Probe(p) => match p.verdict {
            Verdict::Live => Value::Number(1.0),
            Verdict::Sampled { share } => Value::Number(share),
            _ => Value::Missing,
        },
        _ => Value::Missing,
    }),
    figure("probe.calls", "CALLS", Unit::Count, 9, 1, "calls of its kind counted, all processes", |w, r| {
        match *r {
            Row::Probe(p) => Value::of_count(p.call.map(|call| {
                w.model
                    .processes
                    .values()
                    .map(|process| process.count(call).entered)
                    .fold(0, u64::saturating_add)
            })),
            _ => Value::Missing,
        }
    }),
    words("probe.why", "WHY, AND WHAT TO DO", 30, 1, "the reason of the verdict", |_, r| match *r {
        Row::Probe(p) => match &p.verdict {
            Verdict::NotHere { why } => Value::text(why),
            Verdict::Denied { missing } => Value::text(missing),
            Verdict::Broken { report } => Value::text(report),
            _ => Value::Missing,
        },
        _ => Value::Missing,
    }),
    words("probe.place", "PLACE", 34, 2, "file and offset, or kernel symbol", |_, r| match *r {
        Row::Probe(p) => Value::text(p.place.rsplit('/').next().unwrap_or_default()),
        _ => Value::Missing,
    }),
    words("probe.path", "PATH", 60, 9, "the same with its folder", |_, r| match *r {
        Row::Probe(p) => Value::text(&p.place),
        _ => Value::Missing,
    }),
];
