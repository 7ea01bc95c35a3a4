//! Columns of processes, by all they do.

use std::borrow::Cow;

use probe_user::sample::{Call, QueueCounts};

use super::super::super::format::Unit;
use super::super::super::totals::{REGISTRATIONS, is_kernel};
use super::super::super::value::Value;
use super::super::super::world::World;
use super::super::Row;
use super::{COMM, Column, PID, figure, observed, of_process, quantile, rate, words};

/// A rate of posts or polls; missing where nothing watches them.
fn data_path_rate<'w>(world: &World, row: &Row<'w>, of: fn(&QueueCounts) -> u64) -> Value<'w> {
    of_process(row, |p| {
        let interval = p.data_path.totals.interval(world.model.interval.1);
        let rate = interval.map_or(0.0, |interval| interval.per_second(of));
        Value::of(p.data_path.is_observed().then_some(rate))
    })
}

/// The rate of completions, where all of them are looked at.
fn all_completions_rate<'w>(world: &World, row: &Row<'w>) -> Value<'w> {
    of_process(row, |p| match p.data_path.totals.count(|c| c.cut_polls) {
        0 => data_path_rate(world, row, |c| c.cqes),
        _ => Value::Missing,
    })
}

const CREATE_QP: &[Call] = &[Call::CreateQp];
const CREATE_CQ: &[Call] = &[Call::CreateCq];

pub(super) static PROCESSES: &[Column] = &[
    PID,
    COMM,
    words("state", "STATE", 7, 5, "running or ended", |_, r| {
        of_process(r, |p| Value::Text(Cow::Borrowed(if p.info.exited { "ended" } else { "running" })))
    }),
    figure("calls.rate", "CALLS/S", Unit::PerSecond, 9, 0, "control-path calls per second, now", |w, r| {
        of_process(r, |p| Value::Number(rate(w, p, |c| !is_kernel(c))))
    }),
    figure("wr.rate", "WR/S", Unit::PerSecond, 8, 1, "send work requests per second, now", |w, r| {
        data_path_rate(w, r, |c| c.wrs)
    }),
    figure("cqe.rate", "CQE/S", Unit::PerSecond, 8, 4, "completions per second, now", |w, r| {
        all_completions_rate(w, r)
    }),
    figure("reg.rate", "REG/S", Unit::PerSecond, 9, 2, "registrations per second, now", |w, r| {
        of_process(r, |p| Value::Number(rate(w, p, |c| REGISTRATIONS.contains(&c))))
    }),
    figure("reg.count", "REGS", Unit::Count, 7, 1, "registrations so far, failed ones included", |w, r| {
        observed(w, r, &REGISTRATIONS, |p| p.counts(&REGISTRATIONS).entered)
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
        observed(w, r, &REGISTRATIONS, |p| p.registrations.population.live)
    }),
    figure("mr.bytes", "PINNED", Unit::Bytes, 9, 2, "bytes registered now", |w, r| {
        observed(w, r, &REGISTRATIONS, |p| p.registrations.bytes.live)
    }),
    figure("qps", "QPs", Unit::Count, 6, 1, "queue pairs alive", |w, r| {
        observed(w, r, CREATE_QP, |p| p.queues.qp_population.live)
    }),
    figure("cqs", "CQs", Unit::Count, 6, 2, "completion queues alive", |w, r| {
        observed(w, r, CREATE_CQ, |p| p.queues.cq_population.live)
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
