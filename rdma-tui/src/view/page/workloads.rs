//! Workloads: the list, and baseline against optimised of the selected one.

mod sweep;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::format::{Unit, number};
use crate::app::table::{Row, TableId, row};
use crate::app::workload::{Comparison, Listing, Running, Variant};

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
    let board = &world.workloads;
    let (rest, below) = match board.sweeps.get(&workload.name) {
        Some(sweep) => {
            let (above, below) = super::split_top(rest, rest.height / 2);
            (above, Some((below, sweep)))
        }
        None => (rest, None),
    };
    match (&board.running, board.results.get(&workload.name)) {
        (Some(running), _) if running.name == workload.name => under_way(buf, rest, running, context),
        (_, Some(Ok(result))) => effect(buf, rest, result, context),
        (_, Some(Err(why))) => explain(buf, rest, &format!("▲ it failed: {why}"), theme.bad()),
        _ if below.is_some() => explain(buf, rest, "not compared yet: Enter does", theme.dim()),
        _ if workload.sweep.is_some() => {
            explain(buf, rest, "not run yet: Enter compares slow and fast, w sweeps", theme.dim());
        }
        _ => explain(buf, rest, "not run yet: Enter compares slow and fast", theme.dim()),
    }
    match below {
        Some((area, Ok(swept))) => sweep::draw(buf, area, swept, theme),
        Some((area, Err(why))) => explain(buf, area, &format!("▲ the sweep failed: {why}"), theme.bad()),
        None => {}
    }
}

/// What runs, with both sides' figures as they come.
fn under_way(buf: &mut Buffer, area: Rect, running: &Running, context: Context<'_>) {
    let theme = context.theme;
    let head = format!("◐ running for {} s: {}", running.seconds, running.progress);
    let Some(live) = &running.live else {
        explain(buf, area, &head, theme.text());
        return;
    };
    let mut y = area.y;
    for text in wrap(&head, area.width.into()).iter().take(2).chain([&live.comparison]) {
        if y < area.bottom() {
            put(buf, area.x, y, text, area.width, theme.text());
        }
        y += 1;
    }
    let most = live.baseline.ops_per_s().max(live.optimised.ops_per_s()).max(f64::MIN_POSITIVE);
    for (which, side, style) in
        [("baseline", &live.baseline, theme.series(3)), ("optimised", &live.optimised, theme.series(2))]
    {
        if y + 1 >= area.bottom() {
            return;
        }
        let name = if side.variant.is_empty() { which } else { &side.variant };
        let rate = side.ops_per_s();
        let figures = format!("{} · {} runs", number(rate, Unit::PerSecond), side.runs.len());
        put(buf, area.x, y, name, 24, theme.text());
        put_right(buf, area.x, y, &figures, area.width, theme.text());
        bar::bar(buf, area.x, y + 1, area.width, rate / most, style, theme.frame());
        y += 2;
    }
}

/// Two bars on one scale, the ratio, the verdict.
fn effect(buf: &mut Buffer, area: Rect, result: &Comparison, context: Context<'_>) {
    let theme = context.theme;
    let most = result.baseline.shown().0.max(result.optimised.shown().0).max(f64::MIN_POSITIVE);
    let mut y = area.y;
    for (which, variant, style) in
        [("baseline", &result.baseline, theme.series(3)), ("optimised", &result.optimised, theme.series(2))]
    {
        if y + 1 >= area.bottom() {
            return;
        }
        let name = if variant.name.is_empty() { which } else { &variant.name };
        let figures = figures(variant);
        let used = u16::try_from(figures.chars().count()).unwrap_or(area.width);
        put(buf, area.x, y, name, area.width.saturating_sub(used + 2), theme.text());
        put_right(buf, area.x, y, &figures, area.width, theme.text());
        bar::bar(buf, area.x, y + 1, area.width, variant.shown().0 / most, style, theme.frame());
        y += 2;
    }
    if y < area.bottom() {
        let r = result.ratio;
        let text = format!("{:.2}× ({:.2}–{:.2})", r.median, r.low, r.high);
        let style = if r.low > 1.0 { theme.good() } else { theme.warn() };
        let x = area.x + put(buf, area.x, y, &text, area.width, style) + 2;
        let profile = result.device.profile.as_deref().filter(|_| result.baseline.modelled.is_some());
        let modelled = profile.map(|profile| format!(", modelled as {profile}")).unwrap_or_default();
        let device = format!("on {} ({}{modelled})", result.device.name, result.device.kind);
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
    let (rate, latency_ns) = variant.shown();
    let mut text = number(rate, Unit::PerSecond);
    for name in ["p50", "p99"] {
        if let Some(ns) = latency_ns.and_then(|l| l.get(name)) {
            text.push_str(&format!("  {name} {}", number(*ns, Unit::Nanoseconds)));
        }
    }
    text
}

/// What the workload counted beside what the probes saw.
fn counts(buf: &mut Buffer, area: Rect, result: &Comparison, context: Context<'_>) {
    let theme = context.theme;
    let mut y = area.y + 1;
    let mut line = |name: &str, text: &str, style| {
        if y < area.bottom() {
            put(buf, area.x, y, name, 24, theme.dim());
            put(buf, area.x + 26, y, text, area.width.saturating_sub(26), style);
            y += 1;
        }
    };
    let Some(probes) = &result.probes else {
        let Some(truth) = result.ground_truth.as_object() else { return };
        for (name, count) in truth.iter().filter(|(_, count)| count.as_u64().is_some_and(|n| n > 0)) {
            line(name, &count.to_string(), theme.text());
        }
        return;
    };
    for checked in probes {
        if let Some(why) = &checked.error {
            line(&checked.variant, &format!("▲ probes saw nothing: {why}"), theme.warn());
            continue;
        }
        let (text, style) = match checked.checks.iter().filter(|check| check.probes.is_some()).count() {
            0 => ("no figure was observed".to_owned(), theme.warn()),
            n if checked.equal => (format!("● {n} figures: probes and workload agree"), theme.good()),
            n => (format!("▲ {n} figures: they differ"), theme.bad()),
        };
        line(&checked.variant, &text, style);
        for check in
            checked.checks.iter().filter(|check| check.truth > 0 || check.probes.is_some_and(|p| p > 0))
        {
            let (text, style) = match check.probes {
                Some(seen) if seen == check.truth => (format!("{seen} = probes"), theme.text()),
                Some(seen) => (format!("{}, probes {seen}", check.truth), theme.bad()),
                None => (format!("{}, not observed", check.truth), theme.dim()),
            };
            line(&format!("  {}", check.name), &text, style);
        }
    }
}
