//! Columns of registration by call site.

use probe_user::model::Site;
use probe_user::report::frame;

use super::super::super::format::{self, Unit};
use super::super::super::value::Value;
use super::super::Row;
use super::{COMM, Column, PID, figure, words};

pub(super) static SITES: &[Column] = &[
    PID,
    COMM,
    words("site", "CALLED FROM", 34, 0, "the caller, as far as the trace names it", |world, row| match row {
        Row::Site(process, site) => match site.stack.first() {
            Some(address) => {
                let words = frame(&world.model, process.info.id, *address);
                Value::Text(format::harmless(&words).into_owned().into())
            }
            None => Value::Missing,
        },
        _ => Value::Missing,
    }),
    figure(
        "site.count",
        "REGS",
        Unit::Count,
        7,
        0,
        "registrations from there, failed ones included",
        |_, r| of(r, |site| site.count),
    ),
    figure("site.failed", "FAILED", Unit::Count, 7, 2, "those that failed", |_, r| of(r, |site| site.failed)),
    figure("site.mean", "MEAN", Unit::Nanoseconds, 9, 1, "time of one of them", |_, r| match r {
        Row::Site(_, site) if site.count > 0 => Value::count(site.total_ns / site.count),
        _ => Value::Missing,
    }),
    figure("site.total", "TIME", Unit::Nanoseconds, 9, 0, "time in all of them", |_, r| {
        of(r, |site| site.total_ns)
    }),
    figure("site.bytes", "BYTES", Unit::Bytes, 9, 4, "bytes registered from there", |_, r| {
        of(r, |site| site.bytes)
    }),
    figure("site.live", "LIVE", Unit::Count, 7, 1, "regions made there that live", |_, r| {
        of(r, |site| site.live)
    }),
    figure("site.live_bytes", "PINNED", Unit::Bytes, 9, 3, "their bytes", |_, r| {
        of(r, |site| site.live_bytes)
    }),
];

fn of<'w>(row: &Row<'w>, figure: impl FnOnce(&Site) -> u64) -> Value<'w> {
    match row {
        Row::Site(_, site) => Value::count(figure(site)),
        _ => Value::Missing,
    }
}
