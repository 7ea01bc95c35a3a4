//! What was posted on a queue pair.

use probe_user::data_path::FLUSHED;
use probe_user::model::{ProcessModel, Qp};
use probe_user::report::{errno, failed_request, refused_request, wc_status};
use probe_user::sample::{PostedTo, QueueKind};

use crate::app::data_path::{part, why_none};
use crate::app::format::{Unit, count, duration, number, share};
use crate::app::table::seen;

use super::super::Context;
use super::Lines;

pub fn posts(lines: &mut Lines, process: &ProcessModel, qp: &Qp, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    lines.title("Work requests", theme);
    let path = &process.data_path;
    let Some(queue) =
        path.at(QueueKind::Qp, qp.qp).filter(|queue| queue.number == qp.qpn || queue.number == 0)
    else {
        let why =
            if path.is_observed() { "no post on it was seen".to_owned() } else { why_none(&world.model) };
        lines.text(format!("no data: {why}"), theme.dim());
        return;
    };
    let c = queue.tally.counts();
    let interval = queue.tally.interval(world.model.interval.1);
    let now = interval.map_or(0.0, |interval| interval.per_second(|c| c.wrs));
    lines.fact("seen by", seen(path.observed_of(queue)), theme);
    lines.fact(
        "posted",
        format!(
            "{} WRs in {} calls, {}; now {}",
            count(c.wrs as f64),
            count(c.post_calls as f64),
            number(c.bytes as f64, Unit::Bytes),
            number(now, Unit::PerSecond)
        ),
        theme,
    );
    if c.post_failed > 0 {
        lines.styled("refused", format!("▲ {} calls", count(c.post_failed as f64)), theme.bad(), theme);
    }
    failures(lines, process, qp, context);
    if let (Some(signalled), Some(inline)) = (part(c.signalled, c.wrs), part(c.inline, c.wrs)) {
        let run = count(c.longest_unsignalled as f64);
        lines.fact("signalled", format!("{}, longest run without {run}", share(signalled)), theme);
        lines.fact("inline", share(inline), theme);
    }
    for (opcode, n) in &c.opcodes {
        lines.fact(opcode.name(), count(*n as f64), theme);
    }
    if c.recv_calls > 0 {
        let text = format!("{} in {} calls", count(c.recv_wrs as f64), count(c.recv_calls as f64));
        lines.fact("receives", text, theme);
    }
    let Some(detail) = &c.detail else { return };
    if let Some(n) = detail.most_outstanding {
        lines.fact("outstanding", format!("{} at most", count(n as f64)), theme);
    }
    for reap in &detail.post_to_reap_ns {
        let (Some(p50), Some(p99)) = (reap.latency_ns.quantile(0.5), reap.latency_ns.quantile(0.99)) else {
            continue;
        };
        let size = number(2_f64.powi(reap.size_class.into()), Unit::Bytes);
        let text = format!(
            "{} ≤ {size}: p50 {} p99 {} (polling delay included)",
            reap.opcode.name(),
            duration(p50 as f64),
            duration(p99 as f64)
        );
        lines.fact("post to reap", text, theme);
    }
}

/// The first request of each kind of failure on the queue pair: what failed before what was flushed behind it.
fn failures(lines: &mut Lines, process: &ProcessModel, qp: &Qp, context: Context<'_>) {
    let theme = context.theme;
    let counts = process.data_path.totals.seen();
    let Some(detail) = counts.detail.as_deref() else { return };
    let of_qp =
        detail.refused.iter().filter(|one| one.number == qp.qpn && one.queue != PostedTo::SharedReceive);
    for (one, first) in of_qp.filter_map(|one| Some((one, one.first.as_deref()?))) {
        let text = format!("▲ {} ×{}: {}", errno(one.errno), count(one.count as f64), refused_request(first));
        lines.styled("first refused", text, theme.bad(), theme);
    }
    let mut failed: Vec<_> = detail.failed_by_qp.iter().filter(|one| one.qpn == qp.qpn).collect();
    failed.sort_by_key(|one| (one.status == FLUSHED, one.first.as_ref().map(|first| first.t_ns)));
    for one in failed {
        let what = first_words(one.status, one.count, one.first.as_deref().map(failed_request));
        lines.styled(if one.status == FLUSHED { "flushed" } else { "failed" }, what, theme.bad(), theme);
    }
}

fn first_words(status: u32, n: u64, first: Option<String>) -> String {
    let first = first.map(|first| format!(", the first {first}")).unwrap_or_default();
    format!("▲ {} ×{}{first}", wc_status(status), count(n as f64))
}
