//! How the host's figures moved: one point per sample, derived from successive models.

use std::collections::VecDeque;

use probe_user::model::Model;
use probe_user::sample::{Call, Histogram};

use super::totals::{self, REGISTRATIONS};

/// Points kept: more than an hour at one per second. When full, the older half is thinned to every second point.
const KEPT: usize = 4096;

/// What happened between two samples.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Point {
    /// When the interval ended.
    pub t_ns: u64,
    /// Its length.
    pub span_ns: u64,
    /// Registrations entered.
    pub registrations: u64,
    /// Registrations that failed.
    pub failed: u64,
    /// Bytes registered.
    pub registered_bytes: u64,
    /// Deregistrations entered.
    pub deregistrations: u64,
    /// Latencies of the registrations that returned, ns.
    pub latency: Histogram,
    /// Control-path calls of any kind.
    pub calls: u64,
    /// Live QPs at the end.
    pub qps: u64,
    /// Live CQs at the end.
    pub cqs: u64,
    /// Live MRs at the end.
    pub mrs: u64,
    /// Registered bytes at the end.
    pub mr_bytes: u64,
    /// Bytes the ports received and sent, where the devices count them.
    pub port_bytes: Option<(u64, u64)>,
    /// Events and returns missed.
    pub lost: u64,
    /// Posts and polls; `None` while nothing watches them.
    pub path: Option<PathPoint>,
}

/// Posts and polls between two samples.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PathPoint {
    /// Calls that post sends.
    pub posts: u64,
    /// Send work requests.
    pub wrs: u64,
    /// Completions taken.
    pub cqes: u64,
    /// Polls.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// From post to reap, ns, as far as its source knows.
    pub reaped: Histogram,
}

impl PathPoint {
    fn absorb(&mut self, later: &Self) {
        self.posts += later.posts;
        self.wrs += later.wrs;
        self.cqes += later.cqes;
        self.polls += later.polls;
        self.empty_polls += later.empty_polls;
        self.reaped.merge(&later.reaped);
    }

    /// What the model's last interval tells.
    fn of(model: &Model) -> Option<Self> {
        let mut point = None;
        for path in model.processes.values().map(|p| &p.data_path).filter(|path| path.is_observed()) {
            let sum: &mut Self = point.get_or_insert_default();
            let Some(interval) = path.totals.interval(model.interval.1) else { continue };
            let counts = &interval.counts;
            sum.posts = sum.posts.saturating_add(counts.post_calls);
            sum.wrs = sum.wrs.saturating_add(counts.wrs);
            sum.cqes = sum.cqes.saturating_add(counts.cqes);
            sum.polls = sum.polls.saturating_add(counts.polls);
            sum.empty_polls = sum.empty_polls.saturating_add(counts.empty_polls);
            if let Some(reaped) = counts.detail.as_ref().and_then(|detail| detail.post_to_reap()) {
                sum.reaped.merge(&reaped);
            }
        }
        point
    }
}

impl Point {
    /// `n` per second of this interval.
    pub fn per_second(&self, n: u64) -> f64 {
        if self.span_ns == 0 { 0.0 } else { n as f64 * 1e9 / self.span_ns as f64 }
    }

    fn absorb(&mut self, later: &Self) {
        self.t_ns = later.t_ns;
        self.span_ns += later.span_ns;
        self.registrations += later.registrations;
        self.failed += later.failed;
        self.registered_bytes += later.registered_bytes;
        self.deregistrations += later.deregistrations;
        self.latency.merge(&later.latency);
        self.calls += later.calls;
        (self.qps, self.cqs, self.mrs, self.mr_bytes) = (later.qps, later.cqs, later.mrs, later.mr_bytes);
        self.lost += later.lost;
        match (&mut self.path, &later.path) {
            (Some(mine), Some(later)) => mine.absorb(later),
            (mine @ None, Some(later)) => *mine = Some(later.clone()),
            (_, None) => {}
        }
        self.port_bytes = match (self.port_bytes, later.port_bytes) {
            (Some((rx, tx)), Some((more_rx, more_tx))) => Some((rx + more_rx, tx + more_tx)),
            (mine, other) => mine.or(other),
        };
    }
}

/// Totals the next point is the difference to.
#[derive(Debug, Clone, Default)]
struct Before {
    t_ns: u64,
    totals: totals::Totals,
    lost: u64,
    port_bytes: Option<(u64, u64)>,
}

/// The points so far.
#[derive(Debug, Clone, Default)]
pub struct History {
    points: VecDeque<Point>,
    before: Before,
}

impl History {
    /// Takes in the model as it is after a sample.
    pub fn observe(&mut self, model: &Model) {
        let to = model.interval.1;
        if to == 0 {
            return;
        }
        if self.before.t_ns == 0 {
            self.before.t_ns = model.header.t_ns.min(to);
        }
        let now = totals::of(model);
        let lost = totals::lost(model);
        let port_bytes = totals::port_bytes(model);
        let mut latency = Histogram::default();
        for process in model.processes.values() {
            for call in REGISTRATIONS {
                if let Some(interval) = process.calls.get(&call).and_then(|stats| model.interval_of(stats)) {
                    latency.merge(&interval.latency);
                }
            }
        }
        let since = |n: u64, before: u64| n.saturating_sub(before);
        let old = &self.before.totals;
        let point = Point {
            t_ns: to,
            span_ns: to.saturating_sub(self.before.t_ns),
            registrations: since(now.registrations.entered, old.registrations.entered),
            failed: since(now.registrations.failed, old.registrations.failed),
            registered_bytes: since(now.registrations.bytes, old.registrations.bytes),
            deregistrations: since(now.deregistrations.entered, old.deregistrations.entered),
            latency,
            calls: since(now.calls, old.calls),
            qps: now.qps,
            cqs: now.cqs,
            mrs: now.mrs,
            mr_bytes: now.mr_bytes,
            port_bytes: match (port_bytes, self.before.port_bytes) {
                (Some((rx, tx)), Some((old_rx, old_tx))) => Some((since(rx, old_rx), since(tx, old_tx))),
                _ => None,
            },
            lost: since(lost, self.before.lost),
            path: PathPoint::of(model),
        };
        self.before = Before { t_ns: to, totals: now, lost, port_bytes };
        self.points.push_back(point);
        if self.points.len() > KEPT {
            self.thin();
        }
    }

    /// Halves the resolution of the older half.
    fn thin(&mut self) {
        let recent = self.points.split_off(self.points.len() / 2);
        let mut thinned = VecDeque::with_capacity(self.points.len() / 2 + recent.len() + 1);
        let mut old = std::mem::take(&mut self.points).into_iter();
        while let Some(mut point) = old.next() {
            if let Some(next) = old.next() {
                point.absorb(&next);
            }
            thinned.push_back(point);
        }
        thinned.extend(recent);
        self.points = thinned;
    }

    /// The points, oldest first.
    pub fn points(&self) -> impl DoubleEndedIterator<Item = &Point> + ExactSizeIterator {
        self.points.iter()
    }

    /// The latest point.
    pub fn last(&self) -> Option<&Point> {
        self.points.back()
    }

    /// `columns` values over the last `window_ns`, oldest first: `f` of all the points that end in a column together,
    /// `None` where no sample fell.
    ///
    /// Columns lie at fixed multiples of time, so that a chart moves by whole columns instead of shimmering.
    pub fn columns<T>(&self, window_ns: u64, columns: usize, f: impl Fn(&Point) -> T) -> Vec<Option<T>> {
        let Some(last) = self.last() else { return std::iter::repeat_with(|| None).take(columns).collect() };
        let width = (window_ns / columns.max(1) as u64).max(1);
        let last_column = last.t_ns / width;
        let mut merged: Vec<Option<Point>> = vec![None; columns];
        for point in self.points.iter().rev() {
            let back = (last_column - (point.t_ns / width).min(last_column)) as usize;
            if back >= columns {
                break;
            }
            // A sample that stands for several columns fills them all: a chart finer than the sampling has no holes.
            let covers = (point.span_ns / width).clamp(1, columns as u64) as usize;
            for back in back..(back + covers).min(columns) {
                match &mut merged[columns - 1 - back] {
                    Some(there) if back == (last_column - point.t_ns / width) as usize => {
                        let mut earlier = point.clone();
                        earlier.absorb(there);
                        *there = earlier;
                    }
                    Some(_) => {}
                    empty => *empty = Some(point.clone()),
                }
            }
        }
        merged.iter().map(|point| point.as_ref().map(&f)).collect()
    }
}

/// Whether `call` registers memory.
pub fn registers(call: Call) -> bool {
    REGISTRATIONS.contains(&call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(points: impl IntoIterator<Item = (u64, u64)>) -> History {
        let points = points
            .into_iter()
            .map(|(second, registrations)| Point {
                t_ns: second * 1_000_000_000,
                span_ns: 1_000_000_000,
                registrations,
                ..Point::default()
            })
            .collect();
        History { points, ..History::default() }
    }

    #[test]
    fn columns_wider_than_a_sample_add_up() {
        let history = history((1..=60).map(|s| (s, 10)));
        let columns = history.columns(60_000_000_000, 10, |p| p.registrations);
        assert_eq!(columns.len(), 10);
        assert_eq!(columns[..9].iter().flatten().sum::<u64>(), 54 * 10 + 5 * 10 - 50);
        assert!(columns.iter().all(Option::is_some));
    }

    #[test]
    fn columns_narrower_than_a_sample_repeat_it_instead_of_leaving_holes() {
        let history = history([(10, 1), (11, 2), (12, 3)]);
        let columns = history.columns(2_000_000_000, 8, |p| p.registrations);
        assert_eq!(columns.iter().flatten().count(), 8);
        assert_eq!(columns.last(), Some(&Some(3)));
    }

    #[test]
    fn nothing_recorded_is_nothing_not_zero() {
        let history = History::default();
        assert_eq!(history.columns(1_000, 3, |p| p.calls), [None, None, None]);
    }

    #[test]
    fn thinning_keeps_every_count() {
        let mut history = history((1..=101).map(|s| (s, 3)));
        history.thin();
        assert_eq!(history.points().map(|p| p.registrations).sum::<u64>(), 303);
        assert!(history.points.len() < 80);
    }
}
