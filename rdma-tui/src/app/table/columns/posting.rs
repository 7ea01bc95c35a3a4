//! Columns of what was posted on a queue pair and polled from a completion queue.

use probe_user::model::Queue;
use probe_user::sample::{Counting, Observed, ObservedBy, QueueCounts, QueueKind};

use super::super::super::format::{Unit, share};
use super::super::super::value::Value;
use super::super::super::world::World;
use super::super::Row;
use super::queue::QPN;
use super::{COMM, Column, PID, figure, words};

/// Queue pairs by the work posted on them.
pub(super) static POSTING: &[Column] = &[
    PID,
    COMM,
    QPN,
    WR_RATE,
    WR_COUNT,
    SIGNALLED,
    BATCH,
    INLINED,
    SIZE,
    BYTES,
    REFUSED,
    RECVS,
    OUTSTANDING,
    SEEN,
];

pub(super) const WR_RATE: Column =
    figure("wr.rate", "WR/S", Unit::PerSecond, 8, 1, "send work requests per second, now", |w, r| {
        per_second(w, posting(r), |c| c.wrs)
    });
pub(super) const WR_COUNT: Column =
    figure("wr.count", "WRs", Unit::Count, 7, 3, "send work requests posted", |_, r| {
        counted(posting(r), |c| c.wrs)
    });
pub(super) const SIGNALLED: Column = figure(
    "qp.signalled",
    "SIGNAL",
    Unit::Share,
    6,
    1,
    "share of the WRs that ask for a completion",
    |_, r| part(posting(r), |c| c.signalled, |c| c.wrs),
);
pub(super) const BATCH: Column =
    figure("qp.batch", "WR/POST", Unit::Ratio, 7, 2, "work requests per call that posts", |_, r| {
        part(posting(r), |c| c.wrs, |c| c.post_calls.saturating_sub(c.post_failed))
    });
const INLINED: Column =
    figure("qp.inlined", "INLINED", Unit::Share, 7, 3, "share of the WRs with inline data", |_, r| {
        part(posting(r), |c| c.inline, |c| c.wrs)
    });
const SIZE: Column = figure("wr.size", "AVG SIZE", Unit::Bytes, 9, 2, "bytes per WR, on average", |_, r| {
    part(posting(r), |c| c.bytes, |c| c.wrs)
});
const BYTES: Column = figure("wr.bytes", "BYTES", Unit::Bytes, 9, 4, "payload of the WRs posted", |_, r| {
    counted(posting(r), |c| c.bytes)
});
pub(super) const REFUSED: Column =
    figure("qp.refused", "REFUSED", Unit::Count, 7, 2, "calls that post and failed", |_, r| {
        counted(posting(r), |c| c.post_failed)
    });
const RECVS: Column = figure("recv.count", "RECVS", Unit::Count, 7, 4, "receives posted", |_, r| {
    counted(posting(r), |c| c.recv_wrs)
});
pub(super) const OUTSTANDING: Column = figure(
    "qp.outstanding",
    "OUT MAX",
    Unit::Count,
    7,
    5,
    "most WRs posted and not known complete at once, where the source knows",
    |_, r| {
        Value::of_count(posting(r).and_then(|queue| queue.tally.whole().detail.as_ref()?.most_outstanding))
    },
);
const SEEN: Column =
    words("qp.seen", "SEEN", 12, 5, "by whom its posts are seen, and which share of them", |_, r| match *r {
        Row::Qp(p, _) => posting(r)
            .map_or(Value::Missing, |queue| Value::Text(seen(p.data_path.observed_of(queue)).into())),
        _ => Value::Missing,
    });

pub(super) const CQE_RATE: Column =
    figure("cqe.rate", "CQE/S", Unit::PerSecond, 8, 1, "completions per second, now", |w, r| {
        per_second(w, all_seen(polling(r)), |c| c.cqes)
    });
pub(super) const CQE_COUNT: Column =
    figure("cqe.count", "CQEs", Unit::Count, 7, 3, "completions taken", |_, r| {
        counted(all_seen(polling(r)), |c| c.cqes)
    });
pub(super) const POLL_RATE: Column =
    figure("poll.rate", "POLL/S", Unit::PerSecond, 8, 2, "polls per second, now", |w, r| {
        per_second(w, polling(r), |c| c.polls)
    });
pub(super) const EMPTY: Column =
    figure("cq.empty", "EMPTY", Unit::Share, 6, 1, "share of the polls that found nothing", |_, r| {
        part(polling(r), |c| c.empty_polls, |c| c.polls)
    });
pub(super) const CQE_BATCH: Column =
    figure("cq.batch", "CQE/POLL", Unit::Ratio, 8, 3, "completions per poll that found any", |_, r| {
        let found = |c: &QueueCounts| c.polls.saturating_sub(c.empty_polls).saturating_sub(c.failed_polls);
        part(all_seen(polling(r)), |c| c.cqes, found)
    });
pub(super) const CQE_ERRORS: Column =
    figure("cq.errors", "ERRORS", Unit::Count, 7, 2, "completions with an error", |_, r| {
        counted(polling(r), |c| c.cqe_errors)
    });

/// The queue pair of a row, as its posts tell of it.
fn posting<'w>(row: &Row<'w>) -> Option<&'w Queue> {
    let Row::Qp(p, qp) = *row else { return None };
    p.data_path.at(QueueKind::Qp, qp.qp).filter(|queue| queue.number == qp.qpn || queue.number == 0)
}

fn polling<'w>(row: &Row<'w>) -> Option<&'w Queue> {
    let Row::Cq(p, cq, _) = *row else { return None };
    p.data_path.at(QueueKind::Cq, cq)
}

/// A completion queue of which every completion was looked at: of others, their number is not known.
fn all_seen(queue: Option<&Queue>) -> Option<&Queue> {
    queue.filter(|queue| queue.tally.count(|c| c.cut_polls) == 0)
}

/// A count, where it is known.
fn counted(queue: Option<&Queue>, of: fn(&QueueCounts) -> u64) -> Value<'static> {
    Value::of_count(queue.map(|queue| queue.tally.count(of)))
}

/// A part of a whole; missing where there is no whole.
fn part(
    queue: Option<&Queue>,
    part: fn(&QueueCounts) -> u64,
    whole: fn(&QueueCounts) -> u64,
) -> Value<'static> {
    let counts = queue.map(|queue| (queue.tally.count(part), queue.tally.count(whole)));
    Value::of(counts.filter(|(_, whole)| *whole > 0).map(|(part, whole)| part as f64 / whole as f64))
}

/// How many a second over the last interval; 0 where nothing changed in it.
fn per_second(world: &World, queue: Option<&Queue>, of: impl Fn(&QueueCounts) -> u64) -> Value<'static> {
    let interval = |queue: &Queue| {
        queue.tally.interval(world.model.interval.1).map_or(0.0, |interval| interval.per_second(of))
    };
    Value::of(queue.map(interval))
}

/// By whom, and which share of the calls where not all.
pub fn seen(observed: &Observed) -> String {
    let by = match observed.by {
        ObservedBy::Tap => "tap",
        ObservedBy::Site => "sites",
        ObservedBy::Function => "provider",
        ObservedBy::Nothing => "not seen",
        ObservedBy::Unknown => "unknown",
    };
    match observed.counting {
        _ if observed.by == ObservedBy::Nothing => by.to_owned(),
        Counting::Every => by.to_owned(),
        Counting::Ratios => format!("{by} {} ratios", share(observed.share)),
        Counting::Estimated | Counting::Unknown => format!("{by} ~{}", share(observed.share)),
    }
}
