//! Columns of memory registration: by process, by range, by size.

use probe_user::sample::Call;

use super::super::super::format::Unit;
use super::super::super::totals::REGISTRATIONS;
use super::super::super::value::Value;
use super::super::Row;
use super::{COMM, Column, PID, figure, observed, of_process, process, quantile, rate};

pub(super) static REGISTRANTS: &[Column] = &[
    PID,
    COMM,
    figure("reg.count", "REGS", Unit::Count, 7, 0, "registrations so far, failed ones included", |w, r| {
        observed(w, r, &REGISTRATIONS, |p| p.counts(&REGISTRATIONS).entered)
    }),
    figure("reg.rate", "REG/S", Unit::PerSecond, 9, 1, "registrations per second, now", |w, r| {
        of_process(r, |p| Value::Number(rate(w, p, |c| REGISTRATIONS.contains(&c))))
    }),
    figure("reg.failed", "FAILED", Unit::Count, 7, 0, "registrations that failed", |w, r| {
        observed(w, r, &REGISTRATIONS, |p| p.counts(&REGISTRATIONS).failed)
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
        observed(w, r, &REGISTRATIONS, |p| p.registrations.population.live)
    }),
    figure("mr.bytes", "PINNED", Unit::Bytes, 9, 2, "bytes registered now", |w, r| {
        observed(w, r, &REGISTRATIONS, |p| p.registrations.bytes.live)
    }),
    figure("mr.peak", "PEAK", Unit::Bytes, 9, 4, "most bytes registered at once", |w, r| {
        observed(w, r, &REGISTRATIONS, |p| p.registrations.bytes.peak)
    }),
    figure("reg.bytes", "TOTAL", Unit::Bytes, 9, 5, "bytes registered so far", |w, r| {
        observed(w, r, &REGISTRATIONS, |p| p.counts(&REGISTRATIONS).bytes)
    }),
];

pub(super) static RANGES: &[Column] = &[
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

pub(super) static SIZES: &[Column] = &[
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
