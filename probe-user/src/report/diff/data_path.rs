//! Posts and polls before and after: failures are judged, and so is the latency from post to reap where it is known;
//! how much was posted, and in which way, is told.

use crate::model::ProcessModel;
use crate::sample::{Counting, Histogram, QueueCounts};

use super::{Judged, Metric, plain, quantile};

/// A figure: its name, how it follows from the counts, and whether more of it is worse.
type Figure = (&'static str, fn(&QueueCounts) -> u64, bool);

const COUNTS: [Figure; 7] = [
    ("posts", |c| c.post_calls, false),
    ("posts_failed", |c| c.post_failed, true),
    ("wrs", |c| c.wrs, false),
    ("bytes", |c| c.bytes, false),
    ("receives", |c| c.recv_wrs, false),
    ("cqes", |c| c.cqes, false),
    ("cqe_errors", |c| c.cqe_errors, true),
];

/// Shares and means, in thousandths: they hold for samples too.
const RATIOS: [Figure; 5] = [
    ("signaled_permille", |c| ratio(c.signalled, c.wrs), false),
    ("inline_permille", |c| ratio(c.inline, c.wrs), false),
    ("wrs_per_1000_posts", |c| ratio(c.wrs, c.post_calls.saturating_sub(c.post_failed)), false),
    ("empty_polls_permille", |c| ratio(c.empty_polls, c.polls), false),
    ("cqes_per_1000_polls", |c| ratio(c.cqes, c.polls), false),
];

fn ratio(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1000).checked_div(whole.into()).and_then(|n| n.try_into().ok()).unwrap_or(0)
}

/// Adds what can be compared of the processes of one name.
pub(super) fn compare(comm: &str, a: &[&ProcessModel], b: &[&ProcessModel], metrics: &mut Vec<Metric>) {
    let (Some((x, x_counted)), Some((y, y_counted))) = (sum(a), sum(b)) else { return };
    let name = |figure: &str| format!("data_path.{figure}");
    let has_all = x.all_cqes().is_some() && y.all_cqes().is_some();
    let is_known = |(figure, ..): &&Figure| has_all || !figure.starts_with("cqe");
    if x_counted && y_counted {
        metrics.extend(
            COUNTS
                .iter()
                .filter(is_known)
                .map(|(figure, of, worse)| plain(comm, name(figure), of(&x), of(&y), *worse)),
        );
    }
    metrics.extend(
        RATIOS
            .iter()
            .filter(is_known)
            .map(|(figure, of, worse)| plain(comm, name(figure), of(&x), of(&y), *worse)),
    );
    if let (Some(x), Some(y)) = (reaped(&x), reaped(&y)) {
        for (figure, q) in [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99)] {
            metrics.push(quantile(comm, format!("post_to_reap.{figure}"), q, &x, &y, Judged::Cost));
        }
    }
}

fn reaped(counts: &QueueCounts) -> Option<Histogram> {
    counts.detail.as_ref()?.post_to_reap()
}

/// The counts of the processes that were observed, and whether they can be taken as counts; `None` where none was.
fn sum(group: &[&ProcessModel]) -> Option<(QueueCounts, bool)> {
    let (mut all, mut counted, mut any) = (QueueCounts::default(), true, false);
    for path in group.iter().map(|p| &p.data_path).filter(|path| path.is_observed()) {
        any = true;
        all.add(&path.totals.counts());
        counted &= matches!(path.observed.counting, Counting::Every | Counting::Estimated);
    }
    any.then_some((all, counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_nothing_are_nothing_and_large_counts_do_not_overflow() {
        assert_eq!((ratio(5, 0), ratio(1, 4), ratio(u64::MAX, u64::MAX)), (0, 250, 1000));
    }
}
