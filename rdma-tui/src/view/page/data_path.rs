//! Data path: posting and completing work. How much, in which way, and how long it takes.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use probe_user::model::Model;
use probe_user::report::wc_status;
use probe_user::sample::QueueDetail;

use crate::app::data_path::{self, HostPath, part};
use crate::app::format::{Unit, count, duration, number, share};
use crate::app::table::{TableId, seen};

use super::super::Context;
use super::super::widgets::facts::{Fact, facts};
use super::super::widgets::{area, bar, explain, heat, panel::panel, put, put_right};

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Some(host) = data_path::of(&context.world.model) else {
        let inside = panel(buf, area, "Data path", "", context.theme);
        let why = super::nothing_yet(context, &data_path::why_none(&context.world.model));
        explain(buf, inside, &why, context.theme.dim());
        return;
    };
    let (wide, roomy) = (area.width >= 130, area.height >= 34);
    let (top, rest) = super::split_top(area, if roomy { 13 } else { 10 });
    let pieces = super::columns(top, if wide { &[10, 10, 12, 12] } else { &[1, 1] });
    posts(buf, pieces[0], &host, context);
    completions(buf, pieces[1], &host, context);
    if wide {
        rate(buf, pieces[2], context);
        reaped(buf, pieces[3], context);
    }
    let rest = if roomy {
        let (middle, rest) = super::split_top(rest, 10);
        let pieces = super::columns(middle, if wide { &[1, 1, 1] } else { &[1, 1] });
        opcodes(buf, pieces[0], &host, context);
        if wide {
            sizes(buf, pieces[1], &host, context);
            shape(buf, pieces[2], &host, context);
        } else {
            rate(buf, pieces[1], context);
        }
        rest
    } else {
        rest
    };
    let what = match context.app.table_id() {
        Some(TableId::Cqs) => "no completion queue was created or polled while it was watched",
        _ => "no queue pair was created or posted on while it was watched",
    };
    super::list(buf, rest, context, &super::nothing_yet(context, what));
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| number(value, Unit::Ratio))
}

fn posts(buf: &mut Buffer, area: Rect, host: &HostPath, context: Context<'_>) {
    let theme = context.theme;
    let inside = panel(buf, area, "Posts", &format!("seen by {}", seen(&host.observed)), theme);
    let c = &host.counts;
    let share_of = |n: u64| part(n, c.wrs).map_or_else(|| "-".to_owned(), share);
    let refused = if c.post_failed > 0 {
        Fact::new("refused", format!("▲ {} calls", count(c.post_failed as f64))).styled(theme.bad())
    } else {
        Fact::new("refused", "0").styled(theme.dim())
    };
    let rate = format!(
        "{} · {}",
        number(host.per_second(|c| c.wrs), Unit::PerSecond),
        number(host.per_second(|c| c.bytes), Unit::BytesPerSecond)
    );
    let mut list = vec![
        Fact::new("WRs now", rate).styled(theme.strong()),
        Fact::new("posts now", number(host.per_second(|c| c.post_calls), Unit::PerSecond)),
        Fact::new("WRs", format!("{} · {}", count(c.wrs as f64), number(c.bytes as f64, Unit::Bytes))),
        Fact::new(
            "per post",
            format!("{} WRs", ratio(part(c.wrs, c.post_calls.saturating_sub(c.post_failed)))),
        ),
        Fact::new(
            "signalled",
            format!("{}, longest run without {}", share_of(c.signalled), count(c.longest_unsignalled as f64)),
        ),
        Fact::new("inline", share_of(c.inline)),
        refused,
        Fact::new(
            "receives",
            format!("{} in {} calls", count(c.recv_wrs as f64), count(c.recv_calls as f64)),
        ),
    ];
    if c.cut > 0 {
        list.push(
            Fact::new("cut", format!("▲ {} chains too long to walk", count(c.cut as f64)))
                .styled(theme.warn()),
        );
    }
    list.extend(host.gaps.first().map(|gap| Fact::new("not seen", format!("▲ {gap}")).styled(theme.warn())));
    facts(buf, inside, &list, theme);
}

fn completions(buf: &mut Buffer, area: Rect, host: &HostPath, context: Context<'_>) {
    let theme = context.theme;
    let inside = panel(buf, area, "Completions", "", theme);
    let c = &host.counts;
    let found = c.polls.saturating_sub(c.empty_polls).saturating_sub(c.failed_polls);
    let errors = if c.cqe_errors > 0 {
        let mut by: Vec<_> = c.statuses.iter().filter(|(status, _)| **status != 0).collect();
        by.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        let names: Vec<String> =
            by.iter().take(2).map(|(s, n)| format!("{} ×{}", wc_status(**s), count(**n as f64))).collect();
        Fact::new("errors", format!("▲ {} {}", count(c.cqe_errors as f64), names.join(" ")))
            .styled(theme.bad())
    } else {
        Fact::new("errors", "0").styled(theme.dim())
    };
    let all = |text: String| if c.all_cqes().is_some() { text } else { "not all seen".to_owned() };
    let mut list = vec![
        Fact::new("CQEs now", all(number(host.per_second(|c| c.cqes), Unit::PerSecond)))
            .styled(theme.strong()),
        Fact::new("polls now", number(host.per_second(|c| c.polls), Unit::PerSecond)),
        Fact::new("CQEs", all(count(c.cqes as f64))),
        Fact::new("polls", count(c.polls as f64)),
        Fact::new(
            "empty",
            part(c.empty_polls, c.polls)
                .map_or_else(|| "-".to_owned(), |s| format!("{} of the polls", share(s))),
        ),
        Fact::new("per poll", all(format!("{} CQEs where any", ratio(part(c.cqes, found))))),
        errors,
        Fact::new("notify", format!("{} asked for", count(c.notifies as f64))),
    ];
    if let Some(gap) = c.detail.as_ref().and_then(|d| d.cqe_to_post_ns.as_ref()?.quantile(0.5)) {
        list.push(Fact::new("to post", format!("p50 {}", duration(gap as f64))));
    }
    facts(buf, inside, &list, theme);
}

fn rate(buf: &mut Buffer, place: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let inside = panel(buf, place, "Work requests", app.window.title(), theme);
    let columns = world.history.columns(app.window.ns(), area::columns(inside), |p| {
        p.path.as_ref().map(|path| p.per_second(path.wrs))
    });
    let columns: Vec<_> = columns.into_iter().map(Option::flatten).collect();
    area::area(buf, inside, &columns, Unit::PerSecond, theme);
}

fn reaped(buf: &mut Buffer, place: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let inside = panel(buf, place, "Post to reap", "polling delay included", theme);
    let columns = world.history.columns(app.window.ns(), heat::columns(inside), |p| {
        p.path.as_ref().map(|path| path.reaped.clone()).filter(|h| h.total() > 0)
    });
    let columns: Vec<_> = columns.into_iter().map(Option::flatten).collect();
    if columns.iter().all(Option::is_none) {
        explain(buf, inside, &super::nothing_yet(context, &unknown(&world.model)), theme.dim());
        return;
    }
    heat::heat(buf, inside, &columns, theme);
}

/// Why latencies, sizes and alignment are not known.
fn unknown(model: &Model) -> String {
    let by_tap =
        model.processes.values().any(|p| p.data_path.observed.by == probe_user::sample::ObservedBy::Tap);
    let who =
        if by_tap { "the tap counts and does not measure it" } else { "its source does not measure it" };
    format!("not known: {who}")
}

/// Bars with a name, a count and a share of the whole, largest first.
fn bars(buf: &mut Buffer, area: Rect, list: &[(String, u64)], context: Context<'_>) {
    let theme = context.theme;
    let whole: u64 = list.iter().map(|(_, n)| *n).fold(0, u64::saturating_add);
    let label = list.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(20) as u16;
    for (i, (name, n)) in list.iter().take(area.height.into()).enumerate() {
        let y = area.y + i as u16;
        let part = part(*n, whole).unwrap_or(0.0);
        put(buf, area.x, y, name, label, theme.dim());
        let room = area.width.saturating_sub(label + 1 + 15);
        bar::bar(buf, area.x + label + 1, y, room, part, theme.series(i), theme.frame());
        put_right(buf, area.x + label + 1 + room, y, &count(*n as f64), 8, theme.text());
        put_right(buf, area.x + label + 9 + room, y, &share(part), 7, theme.dim());
    }
}

fn opcodes(buf: &mut Buffer, area: Rect, host: &HostPath, context: Context<'_>) {
    let inside = panel(buf, area, "Opcodes", "", context.theme);
    let mut list: Vec<_> = host.counts.opcodes.iter().map(|(o, n)| (o.name().to_owned(), *n)).collect();
    list.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    if list.is_empty() {
        explain(buf, inside, &super::nothing_yet(context, "nothing was posted"), context.theme.dim());
        return;
    }
    bars(buf, inside, &list, context);
}

fn sizes(buf: &mut Buffer, area: Rect, host: &HostPath, context: Context<'_>) {
    let theme = context.theme;
    let inside = panel(buf, area, "Sizes", "payload of a WR", theme);
    let known = host.counts.detail.as_deref().filter(|d| !d.sizes.is_empty());
    let Some(detail) = known else {
        let mean = part(host.counts.bytes, host.counts.wrs)
            .map_or_else(String::new, |mean| format!("\n{} a WR on average", number(mean, Unit::Bytes)));
        let why = unknown(&context.world.model);
        explain(buf, inside, &format!("{}{mean}", super::nothing_yet(context, &why)), theme.dim());
        return;
    };
    let list: Vec<_> = detail
        .sizes
        .iter()
        .map(|(class, n)| (format!("≤ {}", number(2_f64.powi((*class).into()), Unit::Bytes)), *n))
        .collect();
    bars(buf, inside, &list, context);
}

fn shape(buf: &mut Buffer, area: Rect, host: &HostPath, context: Context<'_>) {
    let theme = context.theme;
    let inside = panel(buf, area, "Alignment and order", "", theme);
    let list = host.counts.detail.as_deref().map(|d| shape_facts(d, host.counts.wrs)).unwrap_or_default();
    if list.is_empty() {
        let why = super::nothing_yet(context, &unknown(&context.world.model));
        explain(buf, inside, &why, theme.dim());
        return;
    }
    facts(buf, inside, &list, theme);
}

fn shape_facts(d: &QueueDetail, wrs: u64) -> Vec<Fact> {
    let of = d.examined_wrs.unwrap_or(wrs);
    let mut list = Vec::new();
    for (label, n) in [
        ("not 64 B aligned", d.unaligned_64),
        ("not page aligned", d.unaligned_4096),
        ("odd lengths", d.odd_lengths),
        ("could be inline", d.could_inline),
        ("could be merged", d.mergeable),
    ] {
        let Some(n) = n else { continue };
        let text = part(n, of).map_or_else(|| count(n as f64), |s| format!("{} of the WRs", share(s)));
        list.push(Fact::new(label, text));
    }
    for (label, strides) in [("remote", d.remote_strides), ("local", d.local_strides)] {
        let Some(s) = strides.filter(|s| s.total() > 0) else { continue };
        let share_of = |n: u64| part(n, s.total()).map_or_else(String::new, share);
        let text = format!("{} sequential, {} elsewhere", share_of(s.sequential), share_of(s.random));
        list.push(Fact::new(label, text));
    }
    list.extend(d.most_outstanding.map(|n| Fact::new("outstanding", format!("{} at most", count(n as f64)))));
    list
}
