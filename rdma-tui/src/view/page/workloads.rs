//! Workloads: the list, and baseline against optimised of the selected one.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::format::{Unit, number};
use crate::app::table::{Row, TableId, row};
use crate::app::workload::{Comparison, Listing, Variant};

use super::super::Context;
use super::super::widgets::{bar, explain, panel::panel, put, put_right, wrap};

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let board = &context.world.workloads;
    let why = match &board.listing {
        Listing::Asking => "no data yet: asking rdma-workload for its list".to_owned(),
        Listing::Unavailable(why) => format!("no data: {why}"),
        Listing::Known => "no data: rdma-workload lists no workload".to_owned(),
    };
    if area.width >= 110 {
        let pieces = super::columns(area, &[5, 6]);
        super::list(buf, pieces[0], context, &why);
        selected(buf, pieces[1], context);
    } else {
        let (top, rest) = super::split_top(area, area.height.saturating_sub(9));
        super::list(buf, top, context, &why);
        selected(buf, rest, context);
    }
}

fn selected(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let key = app.table(TableId::Workloads).selection();
    let Some(Row::Workload(workload)) = key.and_then(|key| row(key, world)) else {
        panel(buf, area, "Effect", "", theme);
        return;
    };
    let inside = panel(buf, area, &workload.name, "Enter runs it", theme);
    let mut y = inside.y;
    for text in wrap(&workload.claim, inside.width.into()).iter().take(if inside.height > 12 { 4 } else { 1 })
    {
        put(buf, inside.x, y, text, inside.width, theme.dim());
        y += 1;
    }
    let rest = Rect { y, height: inside.bottom().saturating_sub(y), ..inside };
    match (&world.workloads.running, world.workloads.results.get(&workload.name)) {
        (Some(running), _) if running.name == workload.name => {
            let text = format!("◐ running for {} s\n{}", running.seconds, running.progress);
            explain(buf, rest, &text, theme.text());
        }
        (_, Some(Ok(result))) => effect(buf, rest, result, context),
        (_, Some(Err(why))) => explain(buf, rest, &format!("▲ it failed: {why}"), theme.bad()),
        _ => explain(buf, rest, "not run yet", theme.dim()),
    }
}

/// Two bars on one scale, the ratio, the verdict.
fn effect(buf: &mut Buffer, area: Rect, result: &Comparison, context: Context<'_>) {
    let theme = context.theme;
    let most = result.baseline.ops_per_s.max(result.optimised.ops_per_s).max(f64::MIN_POSITIVE);
    let mut y = area.y;
    for (which, variant, style) in
        [("baseline", &result.baseline, theme.series(3)), ("optimised", &result.optimised, theme.series(2))]
    {
        if y + 1 >= area.bottom() {
            return;
        }
        let name = if variant.name.is_empty() { which } else { &variant.name };
        put(buf, area.x, y, name, 24, theme.text());
        put_right(buf, area.x, y, &figures(variant), area.width, theme.text());
        bar::bar(buf, area.x, y + 1, area.width, variant.ops_per_s / most, style, theme.frame());
        y += 2;
    }
    if y < area.bottom() {
        let r = result.ratio;
        let text = format!("{:.2}× ({:.2}–{:.2})", r.median, r.low, r.high);
        let style = if r.low > 1.0 { theme.good() } else { theme.warn() };
        let x = area.x + put(buf, area.x, y, &text, area.width, style) + 2;
        let device = format!("on {} ({})", result.device.name, result.device.kind);
        put(buf, x, y, &device, area.right().saturating_sub(x), theme.dim());
        y += 1;
    }
    for text in wrap(&result.verdict, area.width.into()) {
        if y >= area.bottom() {
            return;
        }
        put(buf, area.x, y, &text, area.width, theme.text());
        y += 1;
    }
    counts(buf, Rect { y, height: area.bottom().saturating_sub(y), ..area }, result, context);
}

fn figures(variant: &Variant) -> String {
    let mut text = number(variant.ops_per_s, Unit::PerSecond);
    for name in ["p50", "p99"] {
        if let Some(ns) = variant.latency_ns.as_ref().and_then(|l| l.get(name)) {
            text.push_str(&format!("  {name} {}", number(*ns, Unit::Nanoseconds)));
        }
    }
    text
}

/// What the workload counted beside what the probes saw.
fn counts(buf: &mut Buffer, area: Rect, result: &Comparison, context: Context<'_>) {
    let theme = context.theme;
    let Some(truth) = result.ground_truth.as_object() else { return };
    let counts = truth.iter().filter(|(_, count)| count.is_number());
    for (y, (name, own)) in (area.y + 1..area.bottom()).zip(counts) {
        let seen = result.probes.as_ref().and_then(|p| p.get(name));
        let (text, style) = match seen {
            Some(seen) if seen == own => (format!("{own} = probes"), theme.good()),
            Some(seen) => (format!("{own}, probes {seen}"), theme.bad()),
            None => (own.to_string(), theme.text()),
        };
        put(buf, area.x, y, name, 24, theme.dim());
        put(buf, area.x + 26, y, &text, area.width.saturating_sub(26), style);
    }
}
