//! The columns of every table: name in the filter language, heading, unit, and how the figure is read from the model.
//!
//! Figures come from the accessors of `probe_user::model` that the report uses too, so both say the same.

use std::borrow::Cow;
use std::sync::LazyLock;

use probe_user::model::ProcessModel;
use probe_user::report::{Latency, latency, unavailable};
use probe_user::sample::{Call, Verdict};

use super::super::filter::Field;
use super::super::format::Unit;
use super::super::totals::{REGISTRATIONS, is_kernel};
use super::super::value::Value;
use super::super::world::World;
use super::{Row, TableId};

/// A column.
pub struct Column {
    /// Name in the filter language and in exports.
    pub key: &'static str,
    /// Heading.
    pub title: &'static str,
    /// Unit of its figures; `None` for words.
    pub unit: Option<Unit>,
    /// Width in columns of the screen; the first column of words may get more.
    pub width: u16,
    /// The higher, the sooner it gives way on a narrow screen; 0 always stays.
    pub sheds: u8,
    /// Its figures name things: sorted from the smallest first.
    pub names: bool,
    /// One line for people.
    pub explain: &'static str,
    /// Reads the cell.
    pub get: for<'w> fn(&'w World, &Row<'w>) -> Value<'w>,
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column").field("key", &self.key).finish_non_exhaustive()
    }
}

type Get = for<'w> fn(&'w World, &Row<'w>) -> Value<'w>;

const fn words(
    key: &'static str,
    title: &'static str,
    width: u16,
    sheds: u8,
    explain: &'static str,
    get: Get,
) -> Column {
    Column { key, title, unit: None, width, sheds, names: true, explain, get }
}

const fn figure(
    key: &'static str,
    title: &'static str,
    unit: Unit,
    width: u16,
    sheds: u8,
    explain: &'static str,
    get: Get,
) -> Column {
    let names = matches!(unit, Unit::Id | Unit::Address);
    Column { key, title, unit: Some(unit), width, sheds, names, explain, get }
}

/// The columns of `table`.
pub fn columns(table: TableId) -> &'static [Column] {
    match table {
        TableId::Processes => PROCESSES,
        TableId::Registrants => REGISTRANTS,
        TableId::Ranges => RANGES,
        TableId::Sizes => SIZES,
        TableId::Qps => QPS,
        TableId::Cqs => CQS,
        TableId::Srqs => SRQS,
        TableId::Findings => FINDINGS,
        TableId::Workloads => WORKLOADS,
        TableId::Counters => COUNTERS,
        TableId::Probes => PROBES,
    }
}

/// The same columns as the filter language sees them.
pub fn fields(table: TableId) -> &'static [Field] {
    static ALL: LazyLock<Vec<Vec<Field>>> = LazyLock::new(|| {
        let field = |c: &Column| Field { name: c.key, unit: c.unit };
        TableId::ALL.iter().map(|table| columns(*table).iter().map(field).collect()).collect()
    });
    &ALL[table as usize]
}

fn process<'w>(row: &Row<'w>) -> Option<&'w ProcessModel> {
    match *row {
        Row::Process(p)
        | Row::Qp(p, _)
        | Row::Cq(p, _, _)
        | Row::Srq(p, _, _)
        | Row::Range { process: p, .. } => Some(p),
        _ => None,
    }
}

fn of_process<'w>(row: &Row<'w>, f: impl FnOnce(&'w ProcessModel) -> Value<'w>) -> Value<'w> {
    process(row).map_or(Value::Missing, f)
}

/// A figure of a process that rests on calls of some kinds: missing where no probe could see them, as in the report.
fn seen<'w>(
    world: &'w World,
    row: &Row<'w>,
    calls: &[Call],
    f: impl FnOnce(&'w ProcessModel) -> u64,
) -> Value<'w> {
    match process(row) {
        Some(p) if unavailable(&world.model, p, calls).is_none() => Value::count(f(p)),
        _ => Value::Missing,
    }
}

const CREATE_QP: &[Call] = &[Call::CreateQp];
const CREATE_CQ: &[Call] = &[Call::CreateCq];

/// Calls per second of some kinds over the last interval.
fn rate(world: &World, process: &ProcessModel, wanted: impl Fn(Call) -> bool) -> f64 {
    process
        .calls
        .iter()
        .filter(|(call, _)| wanted(**call))
        .filter_map(|(_, stats)| world.model.interval_of(stats))
        .map(|interval| interval.calls_per_second())
        .sum()
}

fn quantile(row: &Row<'_>, of: impl FnOnce(&Latency) -> Option<u64>) -> Value<'static> {
    let latency = process(row).map(|p| latency(&p.latency(&REGISTRATIONS), p.longest_ns(&REGISTRATIONS)));
    Value::of_count(latency.as_ref().and_then(of))
}

const PID: Column = figure("pid", "PID", Unit::Id, 7, 0, "process id", |_, r| {
    of_process(r, |p| Value::count(p.info.id.pid.into()))
});
const COMM: Column = words("comm", "PROCESS", 16, 0, "command name, as the kernel keeps it", |_, r| {
    of_process(r, |p| Value::text(&p.info.comm))
});

static PROCESSES: &[Column] = &[
    PID,
    COMM,
    words("state", "STATE", 7, 5, "running or ended", |_, r| {
        of_process(r, |p| Value::Text(Cow::Borrowed(if p.info.exited { "ended" } else { "running" })))
    }),
    figure("calls.rate", "CALLS/S", Unit::PerSecond, 9, 0, "control-path calls per second, now", |w, r| {
        of_process(r, |p| Value::Number(rate(w, p, |c| !is_kernel(c))))
    }),
    figure("reg.rate", "REG/S", Unit::PerSecond, 9, 2, "registrations per second, now", |w, r| {
        of_process(r, |p| Value::Number(rate(w, p, |c| REGISTRATIONS.contains(&c))))
    }),
    figure("reg.count", "REGS", Unit::Count, 7, 1, "registrations so far, failed ones included", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.counts(&REGISTRATIONS).entered)
    }),
    figure(
        "reg.p99",
        "REG p99",
        Unit::Nanoseconds,
        8,
        3,
        "99 of 100 registrations took no longer",
        |_, r| quantile(r, |l| l.p99),
    ),
    figure("mr.live", "MRs", Unit::Count, 6, 1, "memory regions alive", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.registrations.population.live)
    }),
    figure("mr.bytes", "PINNED", Unit::Bytes, 9, 2, "bytes registered now", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.registrations.bytes.live)
    }),
    figure("qps", "QPs", Unit::Count, 6, 1, "queue pairs alive", |w, r| {
        seen(w, r, CREATE_QP, |p| p.queues.qp_population.live)
    }),
    figure("cqs", "CQs", Unit::Count, 6, 2, "completion queues alive", |w, r| {
        seen(w, r, CREATE_CQ, |p| p.queues.cq_population.live)
    }),
    figure("failed", "FAILED", Unit::Count, 7, 0, "calls that failed, of any kind", |_, r| {
        of_process(r, |p| {
            Value::count(p.calls.values().map(|c| c.count().failed).fold(0, u64::saturating_add))
        })
    }),
    figure("uid", "UID", Unit::Id, 6, 7, "real user id", |_, r| {
        of_process(r, |p| Value::count(p.info.uid.into()))
    }),
    words("cgroup", "CGROUP", 24, 8, "control group: the container it belongs to", |_, r| {
        of_process(r, |p| Value::text(&p.info.cgroup))
    }),
    words("exe", "EXECUTABLE", 28, 9, "executable, in its own mount namespace", |_, r| {
        of_process(r, |p| Value::text(&p.info.exe))
    }),
];

static REGISTRANTS: &[Column] = &[
    PID,
    COMM,
    figure("reg.count", "REGS", Unit::Count, 7, 0, "registrations so far, failed ones included", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.counts(&REGISTRATIONS).entered)
    }),
    figure("reg.rate", "REG/S", Unit::PerSecond, 9, 1, "registrations per second, now", |w, r| {
        of_process(r, |p| Value::Number(rate(w, p, |c| REGISTRATIONS.contains(&c))))
    }),
    figure("reg.failed", "FAILED", Unit::Count, 7, 0, "registrations that failed", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.counts(&REGISTRATIONS).failed)
    }),
    figure("reg.p50", "p50", Unit::Nanoseconds, 8, 0, "half of the registrations took no longer", |_, r| {
        quantile(r, |l| l.p50)
    }),
    figure("reg.p99", "p99", Unit::Nanoseconds, 8, 0, "99 of 100 registrations took no longer", |_, r| {
        quantile(r, |l| l.p99)
    }),
    figure("reg.max", "MAX", Unit::Nanoseconds, 8, 3, "the longest registration", |_, r| {
        Value::of_count(process(r).and_then(|p| p.longest_ns(&REGISTRATIONS)))
    }),
    figure("reg.kernel", "KERNEL", Unit::Share, 7, 2, "share of the time spent inside the kernel", |_, r| {
        Value::of(process(r).and_then(|p| p.registrations.split.kernel.share()))
    }),
    figure(
        "reg.page",
        "PER PAGE",
        Unit::Nanoseconds,
        9,
        3,
        "time per page of 4 KiB, fixed part included",
        |_, r| {
            Value::of(process(r).and_then(|p| {
                let reg = &p.registrations;
                (reg.pages > 0).then(|| reg.pages_ns as f64 / reg.pages as f64)
            }))
        },
    ),
    figure(
        "reg.repeated",
        "AGAIN",
        Unit::Share,
        6,
        1,
        "share of registrations whose very range had been registered before",
        |_, r| {
            Value::of(process(r).and_then(|p| {
                let n = p.succeeded_calls(Call::RegMr) + p.succeeded_calls(Call::RegDmabufMr);
                (n > 0).then(|| p.registrations.repeated as f64 / n as f64)
            }))
        },
    ),
    figure("mr.live", "LIVE", Unit::Count, 7, 1, "memory regions alive", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.registrations.population.live)
    }),
    figure("mr.bytes", "PINNED", Unit::Bytes, 9, 2, "bytes registered now", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.registrations.bytes.live)
    }),
    figure("mr.peak", "PEAK", Unit::Bytes, 9, 4, "most bytes registered at once", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.registrations.bytes.peak)
    }),
    figure("reg.bytes", "TOTAL", Unit::Bytes, 9, 5, "bytes registered so far", |w, r| {
        seen(w, r, &REGISTRATIONS, |p| p.counts(&REGISTRATIONS).bytes)
    }),
];

static RANGES: &[Column] = &[
    PID,
    COMM,
    figure("range.addr", "ADDRESS", Unit::Address, 16, 0, "first byte of the range", |_, r| match r {
        Row::Range { addr, .. } => Value::count(*addr),
        _ => Value::Missing,
    }),
    figure("range.bytes", "LENGTH", Unit::Bytes, 10, 0, "its length", |_, r| match r {
        Row::Range { length_bytes, .. } => Value::count(*length_bytes),
        _ => Value::Missing,
    }),
    figure("range.uses", "TIMES", Unit::Count, 7, 0, "how often it was registered", |_, r| match r {
        Row::Range { uses, .. } => Value::count(*uses),
        _ => Value::Missing,
    }),
    figure("range.total", "BYTES IN ALL", Unit::Bytes, 12, 2, "length times registrations", |_, r| match r {
        Row::Range { uses, length_bytes, .. } => Value::count(uses.saturating_mul(*length_bytes)),
        _ => Value::Missing,
    }),
];

static SIZES: &[Column] = &[
    figure("size.class", "UP TO", Unit::Bytes, 10, 0, "longest region of the class", |_, r| match r {
        Row::Size(class, _) => Value::Number(2_f64.powi((*class).into())),
        _ => Value::Missing,
    }),
    figure("size.count", "REGS", Unit::Count, 9, 0, "successful registrations", |_, r| match r {
        Row::Size(_, s) => Value::count(s.count),
        _ => Value::Missing,
    }),
    figure("size.bytes", "BYTES", Unit::Bytes, 10, 0, "bytes registered", |_, r| match r {
        Row::Size(_, s) => Value::count(s.bytes),
        _ => Value::Missing,
    }),
    figure("size.mean", "MEAN", Unit::Nanoseconds, 9, 0, "mean duration", |_, r| match r {
        Row::Size(_, s) if s.count > 0 => Value::Number(s.total_ns as f64 / s.count as f64),
        _ => Value::Missing,
    }),
    figure("size.max", "MAX", Unit::Nanoseconds, 9, 0, "longest", |_, r| match r {
        Row::Size(_, s) => Value::count(s.longest_ns),
        _ => Value::Missing,
    }),
    figure(
        "size.bandwidth",
        "SPEED",
        Unit::BytesPerSecond,
        11,
        1,
        "bytes registered per second spent registering",
        |_, r| match r {
            Row::Size(_, s) if s.total_ns > 0 => Value::Number(s.bytes as f64 * 1e9 / s.total_ns as f64),
            _ => Value::Missing,
        },
    ),
    figure("size.total", "TIME", Unit::Nanoseconds, 12, 1, "time spent in all", |_, r| match r {
        Row::Size(_, s) => Value::count(s.total_ns),
        _ => Value::Missing,
    }),
];

macro_rules! qp {
    ($qp:ident => $value:expr) => {
        |_, r| match *r {
            Row::Qp(_, $qp) => $value,
            _ => Value::Missing,
        }
    };
}

static QPS: &[Column] = &[
    PID,
    COMM,
    figure("qpn", "QPN", Unit::Id, 9, 0, "queue pair number", qp!(qp => Value::count(qp.qpn.into()))),
    words("qp.type", "TYPE", 5, 1, "RC, UC, UD, …", qp!(qp => Value::text(&qp.qp_type))),
    words(
        "qp.state",
        "STATE",
        6,
        0,
        "state after the last successful change",
        qp!(qp => Value::of_text(qp.state.as_deref())),
    ),
    words("qp.peer", "PEER", 18, 1, "the other end: GID or LID, and QPN", qp!(qp => peer(qp))),
    figure(
        "qp.depth",
        "SENDQ",
        Unit::Count,
        6,
        2,
        "send queue depth, WRs",
        qp!(qp => known(qp.max_send_wr, qp)),
    ),
    figure(
        "qp.recv_depth",
        "RECVQ",
        Unit::Count,
        6,
        3,
        "receive queue depth, WRs",
        qp!(qp => known(qp.max_recv_wr, qp)),
    ),
    words(
        "qp.signal_all",
        "SIGALL",
        6,
        3,
        "created with sq_sig_all: every send makes a completion",
        qp!(qp => {
            if qp.created_ns.is_some() { Value::Text(Cow::Borrowed(if qp.sq_sig_all { "yes" } else { "no" })) } else { Value::Missing }
        }),
    ),
    figure(
        "qp.inline",
        "INLINE",
        Unit::Bytes,
        8,
        4,
        "longest inline send",
        qp!(qp => known(qp.max_inline_bytes, qp)),
    ),
    figure(
        "qp.mtu",
        "MTU",
        Unit::Count,
        5,
        4,
        "path MTU, bytes",
        qp!(qp => Value::of_count(qp.attributes.path_mtu_bytes.map(u64::from))),
    ),
    figure(
        "qp.rd_atomic",
        "RD",
        Unit::Count,
        4,
        5,
        "READs and atomics in flight at most (max_rd_atomic)",
        qp!(qp => Value::of_count(qp.attributes.max_rd_atomic.map(u64::from))),
    ),
    figure(
        "qp.retry",
        "RETRY",
        Unit::Count,
        5,
        5,
        "transport retries (retry_cnt)",
        qp!(qp => Value::of_count(qp.attributes.retry_cnt.map(u64::from))),
    ),
    figure(
        "qp.rnr_retry",
        "RNR",
        Unit::Count,
        4,
        5,
        "receiver-not-ready retries; 7 is for ever",
        qp!(qp => Value::of_count(qp.attributes.rnr_retry.map(u64::from))),
    ),
    figure(
        "qp.cq",
        "CQ",
        Unit::Address,
        15,
        6,
        "completion queue of its sends",
        qp!(qp => if qp.send_cq == 0 { Value::Missing } else { Value::count(qp.send_cq) }),
    ),
    figure("qp.on_cq", "ON CQ", Unit::Count, 5, 3, "QPs that share that completion queue", |_, r| match *r {
        Row::Qp(p, qp) => Value::of_count(p.queues.cqs().get(&qp.send_cq).map(|cq| cq.qps.live)),
        _ => Value::Missing,
    }),
    figure(
        "qp.age",
        "AGE",
        Unit::Nanoseconds,
        12,
        4,
        "since its creation; missing where it is older than the recording",
        |w, r| match *r {
            Row::Qp(_, qp) => Value::of_count(qp.created_ns.map(|t| w.model.now_ns.saturating_sub(t))),
            _ => Value::Missing,
        },
    ),
    figure(
        "qp.failed",
        "FAILED",
        Unit::Count,
        6,
        2,
        "state changes that failed",
        qp!(qp => Value::count(qp.failed_changes)),
    ),
];

/// A capacity, where the creation was seen.
fn known(n: u32, qp: &probe_user::model::Qp) -> Value<'static> {
    if qp.created_ns.is_some() { Value::count(n.into()) } else { Value::Missing }
}

/// The other end of a QP, as `ibv_modify_qp` named it.
fn peer(qp: &probe_user::model::Qp) -> Value<'_> {
    let a = &qp.attributes;
    let host = match (&a.dgid, a.dlid) {
        (Some(gid), _) if !gid.is_empty() => Some(short_gid(gid)),
        (_, Some(lid)) if lid != 0 => Some(format!("lid {lid}")),
        _ => None,
    };
    match (host, a.dest_qpn) {
        (Some(host), Some(qpn)) => Value::Text(format!("{host} #{qpn}").into()),
        (None, Some(qpn)) => Value::Text(format!("#{qpn}").into()),
        (Some(host), None) => Value::Text(host.into()),
        (None, None) => Value::Missing,
    }
}

/// An IPv4 address in a GID as people write it; others as they are.
fn short_gid(gid: &str) -> String {
    match gid.parse::<std::net::Ipv6Addr>() {
        Ok(address) => match address.to_ipv4_mapped() {
            Some(v4) => v4.to_string(),
            None => address.to_string(),
        },
        Err(_) => super::super::format::harmless(gid).into_owned(),
    }
}

static CQS: &[Column] = &[
    PID,
    COMM,
    figure("cq", "CQ", Unit::Address, 16, 0, "the process's own pointer", |_, r| match *r {
        Row::Cq(_, cq, _) => Value::count(cq),
        _ => Value::Missing,
    }),
    figure("cq.qps", "QPs", Unit::Count, 6, 0, "queue pairs that complete into it, now", |_, r| match *r {
        Row::Cq(_, _, cq) => Value::count(cq.qps.live),
        _ => Value::Missing,
    }),
    figure("cq.peak", "PEAK", Unit::Count, 6, 2, "most queue pairs at once", |_, r| match *r {
        Row::Cq(_, _, cq) => Value::count(cq.qps.peak),
        _ => Value::Missing,
    }),
    figure("cq.depth", "ENTRIES", Unit::Count, 8, 0, "completions it holds", |_, r| match *r {
        Row::Cq(_, _, cq) if cq.created_ns.is_some() => Value::count(cq.cqe.into()),
        _ => Value::Missing,
    }),
    words("cq.mode", "WAITS BY", 9, 1, "completion channel (events) or polling only", |_, r| match *r {
        Row::Cq(_, _, cq) if cq.created_ns.is_some() => {
            Value::Text(Cow::Borrowed(if cq.channel == 0 { "polling" } else { "events" }))
        }
        _ => Value::Missing,
    }),
    words("cq.users", "QPNs", 30, 3, "who shares it", |_, r| match *r {
        Row::Cq(p, cq, _) => {
            let qpns = p.queues.sharers(cq);
            let mut text = qpns.iter().take(8).map(u32::to_string).collect::<Vec<_>>().join(" ");
            if qpns.len() > 8 {
                text.push_str(&format!(" +{}", qpns.len() - 8));
            }
            if text.is_empty() { Value::Missing } else { Value::Text(text.into()) }
        }
        _ => Value::Missing,
    }),
    figure(
        "cq.age",
        "AGE",
        Unit::Nanoseconds,
        12,
        2,
        "since its creation; missing where it is older than the recording",
        |w, r| match *r {
            Row::Cq(_, _, cq) => Value::of_count(cq.created_ns.map(|t| w.model.now_ns.saturating_sub(t))),
            _ => Value::Missing,
        },
    ),
];

static SRQS: &[Column] = &[
    PID,
    COMM,
    figure("srq", "SRQ", Unit::Address, 16, 0, "the process's own pointer", |_, r| match *r {
        Row::Srq(_, srq, _) => Value::count(srq),
        _ => Value::Missing,
    }),
    figure("srq.depth", "DEPTH", Unit::Count, 7, 0, "receives it holds", |_, r| match *r {
        Row::Srq(_, _, srq) => Value::count(srq.max_wr.into()),
        _ => Value::Missing,
    }),
    figure("srq.qps", "QPs", Unit::Count, 6, 0, "queue pairs that receive from it, now", |_, r| match *r {
        Row::Srq(_, _, srq) => Value::count(srq.qps.live),
        _ => Value::Missing,
    }),
    figure("srq.peak", "PEAK", Unit::Count, 6, 2, "most queue pairs at once", |_, r| match *r {
        Row::Srq(_, _, srq) => Value::count(srq.qps.peak),
        _ => Value::Missing,
    }),
];

macro_rules! finding {
    ($f:ident => $value:expr) => {
        |_, r| match *r {
            Row::Finding($f) => $value,
            _ => Value::Missing,
        }
    };
}

static FINDINGS: &[Column] = &[
    words(
        "finding.severity",
        "HOW BAD",
        10,
        0,
        "problem, warning or note",
        finding!(f => Value::Text(format!("{} {}", f.severity.mark(), f.severity.word()).into())),
    ),
    words("finding", "WHAT IS WRONG", 44, 0, "in one line", finding!(f => Value::text(&f.title))),
    figure("pid", "PID", Unit::Id, 7, 2, "process id", finding!(f => Value::count(f.process.pid.into()))),
    words("comm", "PROCESS", 16, 1, "command name", finding!(f => Value::text(&f.comm))),
    figure(
        "finding.core",
        "OF A CORE",
        Unit::Share,
        9,
        3,
        "share of one core it takes",
        finding!(f => if f.weight > 0.0 { Value::Number(f.weight) } else { Value::Missing }),
    ),
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

static WORKLOADS: &[Column] =
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

static COUNTERS: &[Column] = &[
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

static PROBES: &[Column] = &[
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

/// A verdict in one or two words.
pub fn verdict_word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Live => "live",
        Verdict::Sampled { .. } => "sampled",
        Verdict::NotHere { .. } => "not here",
        Verdict::Denied { .. } => "denied",
        Verdict::Broken { .. } => "broken",
        Verdict::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_starts_in_an_order_it_has_and_names_no_field_twice() {
        for table in TableId::ALL {
            let columns = columns(table);
            for (i, column) in columns.iter().enumerate() {
                assert!(columns[..i].iter().all(|c| c.key != column.key), "{} twice", column.key);
                assert!(!column.explain.is_empty());
            }
            let (first, _) = table.first_order();
            assert!(columns.is_empty() || columns.iter().any(|c| c.key == first), "{table:?}: {first}");
            assert_eq!(fields(table).len(), columns.len());
        }
    }

    #[test]
    fn a_mapped_ipv4_gid_reads_as_an_address() {
        assert_eq!(short_gid("::ffff:10.0.0.7"), "10.0.0.7");
        assert_eq!(short_gid("0000:0000:0000:0000:0000:ffff:0a00:0007"), "10.0.0.7");
        assert_eq!(short_gid("fe80::1"), "fe80::1");
        assert_eq!(short_gid("odd\x1b"), "odd?");
    }
}
