//! Registration: what it costs, over time and by size, and who does it.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use probe_user::model::{Part, SplitTotals};
use probe_user::report::errno;

use crate::app::format::{Unit, count, duration, number, share};
use crate::app::table::TableId;
use crate::app::totals;

use super::super::Context;
use super::super::widgets::facts::{Fact, facts};
use super::super::widgets::{area, bar, explain, heat, histogram, panel::panel, put};

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let roomy = area.height >= 34;
    let (top, rest) = super::split_top(area, if roomy { 16 } else { 10 });
    let wide = area.width >= 150;
    let pieces = super::columns(top, if wide { &[9, 10, 12, 10] } else { &[4, 5] });
    cost(buf, pieces[0], context);
    over_time(buf, pieces[pieces.len().min(3) - 1], context);
    if wide {
        distribution(buf, pieces[1], context);
        rate(buf, pieces[3], context);
    }
    let rest = if roomy && !wide {
        let (middle, rest) = super::split_top(rest, 12);
        let pieces = super::columns(middle, &[1, 1]);
        distribution(buf, pieces[0], context);
        rate(buf, pieces[1], context);
        rest
    } else {
        rest
    };
    let why = super::nothing_yet(context, &why_none(context));
    let (list, spare) = super::fitted(rest, context, 8);
    super::list(buf, list, context, &why);
    // By size as well where there is room, unless it is what the table shows.
    if spare.height > 0 && context.app.table_id() != Some(TableId::Sizes) {
        super::list_of(buf, spare, TableId::Sizes, context, &why);
    }
}

/// "None seen" and "could not be seen" are different things.
fn why_none(context: Context<'_>) -> String {
    let watched = context.world.model.probes.values().any(|probe| {
        let attached = matches!(
            probe.verdict,
            probe_user::sample::Verdict::Live | probe_user::sample::Verdict::Sampled { .. }
        );
        attached && (probe.call.is_some_and(crate::app::history::registers) || probe.name.contains("reg_mr"))
    });
    match watched {
        true => "nothing was registered while it was watched".to_owned(),
        false => "no registration seen, and no probe on registration is attached (8 shows why)".to_owned(),
    }
}

fn cost(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let inside = panel(buf, area, "Cost", "", theme);
    let latency = totals::registration_quantiles(&world.model);
    let sums = totals::of(&world.model);
    let all = sums.registrations;
    if all.entered == 0 {
        explain(buf, inside, &super::nothing_yet(context, &why_none(context)), theme.dim());
        return;
    }
    let ns = |ns: Option<u64>| ns.map_or("-".into(), |ns| duration(ns as f64));
    let failed = if all.failed > 0 {
        let errnos = totals::registration_errnos(&world.model);
        let names: Vec<String> =
            errnos.iter().take(3).map(|(e, n)| format!("{} ×{}", errno(*e), count(*n as f64))).collect();
        Fact::new("failed", format!("{} {}", count(all.failed as f64), names.join(" "))).styled(theme.bad())
    } else {
        Fact::new("failed", "0").styled(theme.dim())
    };
    let split = split(context);
    let pages: (u64, u64) =
        world.model.processes.values().fold((0, 0), |(p, ns), m| {
            (p + m.registrations.pages, ns.saturating_add(m.registrations.pages_ns))
        });
    let mut list = vec![
        Fact::new(
            "count",
            format!("{} · {}", count(all.entered as f64), number(all.bytes as f64, Unit::Bytes)),
        )
        .styled(theme.strong()),
        failed,
        Fact::new("p50", ns(latency.p50)),
        Fact::new("p90", ns(latency.p90)),
        Fact::new("p99", ns(latency.p99)).styled(theme.strong()),
        Fact::new("max", ns(latency.max)),
        Fact::new(
            "per page",
            if pages.0 > 0 {
                format!("{} of 4 KiB", duration(pages.1 as f64 / pages.0 as f64))
            } else {
                "no data: no pages".into()
            },
        ),
        Fact::new(
            "live",
            format!("{} MRs · {}", count(sums.mrs as f64), number(sums.mr_bytes as f64, Unit::Bytes)),
        ),
    ];
    let kernel = match split.kernel.share() {
        Some(s) => Fact::new("kernel", share(s)),
        None => Fact::new("kernel", "no data: not seen").styled(theme.dim()),
    };
    list.push(kernel);
    let room = usize::from(inside.height);
    let with_bar = room > list.len() + 2 && split.kernel.registrations > 0;
    facts(buf, inside, &list, theme);
    if with_bar {
        parts(
            buf,
            Rect {
                y: inside.y + list.len() as u16 + 1,
                height: inside.height - list.len() as u16 - 1,
                ..inside
            },
            &split,
            context,
        );
    }
}

/// Where the time went, summed over processes.
fn split(context: Context<'_>) -> SplitTotals {
    let mut sum = SplitTotals::default();
    let add = |a: &mut Part, b: &Part| {
        a.part_ns = a.part_ns.saturating_add(b.part_ns);
        a.whole_ns = a.whole_ns.saturating_add(b.whole_ns);
        a.registrations = a.registrations.saturating_add(b.registrations);
    };
    for one in context.world.model.processes.values().map(|p| &p.registrations.split) {
        add(&mut sum.kernel, &one.kernel);
        add(&mut sum.pin, &one.pin);
        add(&mut sum.dma_map, &one.dma_map);
        add(&mut sum.driver, &one.driver);
        sum.page_faults = sum.page_faults.saturating_add(one.page_faults);
        sum.page_faults_known = sum.page_faults_known.saturating_add(one.page_faults_known);
    }
    sum
}

fn parts(buf: &mut Buffer, area: Rect, split: &SplitTotals, context: Context<'_>) {
    let theme = context.theme;
    if area.height < 2 {
        return;
    }
    let pin = split.pin.share().unwrap_or(0.0);
    let driver = split.driver.share().unwrap_or(0.0);
    let kernel = split.kernel.share().unwrap_or(0.0);
    let rest = (kernel - pin - driver).max(0.0);
    let library = (1.0 - kernel).max(0.0);
    let pieces = [
        (library, theme.series(0), "█", "library"),
        (pin, theme.series(1), "▓", "pinning"),
        (driver, theme.series(3), "▒", "driver"),
        (rest, theme.series(2), "░", "other kernel"),
    ];
    let bars: Vec<_> = pieces.iter().map(|(n, style, fill, _)| (*n, *style, *fill)).collect();
    bar::parts(buf, area.x, area.y, area.width, &bars);
    let mut x = area.x;
    let mut y = area.y + 1;
    for (n, style, fill, name) in pieces.iter().filter(|(n, ..)| *n > 0.0) {
        let text = format!("{name} {}", share(*n));
        if x + text.len() as u16 + 3 > area.right() {
            (x, y) = (area.x, y + 1);
        }
        if y >= area.bottom() {
            return;
        }
        x += put(buf, x, y, fill, 1, *style) + 1;
        x += put(buf, x, y, &text, area.right().saturating_sub(x), theme.dim()) + 2;
    }
}

pub fn over_time(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let inside = panel(buf, area, "Registration latency over time", app.window.title(), theme);
    let columns = world.history.columns(app.window.ns(), heat::columns(inside), |p| p.latency.clone());
    if columns.iter().flatten().all(|h| h.total() == 0) {
        explain(
            buf,
            inside,
            &super::nothing_yet(context, "no registration within this window (- widens it)"),
            theme.dim(),
        );
        return;
    }
    heat::heat(buf, inside, &columns, theme);
}

fn distribution(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let latency = totals::registration_latency(&world.model);
    let inside = panel(buf, area, "Latency", &format!("{} calls", count(latency.total() as f64)), theme);
    if latency.total() == 0 {
        explain(buf, inside, &super::nothing_yet(context, &why_none(context)), theme.dim());
        return;
    }
    histogram::histogram(buf, inside, &latency, theme);
}

fn rate(buf: &mut Buffer, place: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let now = world
        .history
        .last()
        .map(|p| number(p.per_second(p.registrations), Unit::PerSecond))
        .unwrap_or_default();
    let inside = panel(buf, place, "Registrations", &format!("{now} · {}", app.window.title()), theme);
    let columns =
        world.history.columns(app.window.ns(), area::columns(inside), |p| p.per_second(p.registrations));
    area::area(buf, inside, &columns, Unit::PerSecond, theme);
}
