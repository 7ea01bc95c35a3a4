//! Overview: devices, what is going on, the processes ranked, what is wrong, how the probes fare.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use probe_user::report::errno;

use crate::app::format::{Unit, count, duration, harmless, number};
use crate::app::totals;
use crate::app::world::Status;

use super::super::Context;
use super::super::widgets::facts::{Fact, facts};
use super::super::widgets::{area, explain, panel::panel, put, put_right};
use super::probes::late;

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let roomy = area.height >= 34;
    let (top, rest) = super::split_top(area, if roomy { 10 } else { 6 });
    let foot = if roomy { 9 } else { 5 };
    let (middle, bottom) = super::split_top(rest, rest.height.saturating_sub(foot));
    let wide = area.width >= 150;
    let pieces = super::columns(top, if wide { &[4, 4, 4] } else { &[1, 1] });
    devices(buf, pieces[0], context);
    calls(buf, pieces[1], context);
    if wide {
        memory(buf, pieces[2], context);
    }
    let why = super::nothing_yet(context, "no process has made an RDMA call yet");
    let (processes, spare) = super::fitted(middle, context, 14);
    super::list(buf, processes, context, &why);
    if spare.height > 0 {
        let pieces = super::columns(spare, &[1, 1]);
        super::registration::over_time(buf, pieces[0], context);
        latest(buf, pieces[1], context);
    }
    let pieces = super::columns(bottom, &[1, 1]);
    findings(buf, pieces[0], context);
    health(buf, pieces[1], context);
}

fn devices(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let devices = &world.model.devices;
    let inside = panel(buf, area, "Devices", &count(devices.len() as f64), theme);
    if devices.is_empty() {
        explain(
            buf,
            inside,
            "no data: the recording names no RDMA device;\nwhere there is none, cargo xtask emu gives one",
            theme.dim(),
        );
        return;
    }
    let mut y = inside.y;
    for device in devices.values() {
        let Some(port) = device.ports.first() else {
            if y < inside.bottom() {
                put(buf, inside.x, y, &harmless(&device.name), inside.width, theme.series(0));
                y += 1;
            }
            continue;
        };
        for port in std::iter::once(port).chain(device.ports.iter().skip(1)) {
            if y >= inside.bottom() {
                return;
            }
            let up = port.state.contains("ACTIVE");
            let (mark, style) = if up { ("●", theme.good()) } else { ("○", theme.bad()) };
            let mut x = inside.x + put(buf, inside.x, y, mark, 1, style) + 1;
            x += put(buf, x, y, &format!("{}/{}", harmless(&device.name), port.number), 12, theme.series(0))
                + 1;
            let kind = if device.emulated { "emulated".into() } else { harmless(&device.driver) };
            x += put(buf, x, y, &kind, 10, if device.emulated { theme.warn() } else { theme.dim() }) + 1;
            let state = if up { "" } else { &*port.state };
            x += put(buf, x, y, &harmless(state), 8, theme.bad()) + u16::from(!up);
            let rate = |name: &str| {
                world
                    .counters
                    .rate(&device.name, port.number, name)
                    .map(|r| number(r * 4.0, Unit::BytesPerSecond))
            };
            let text = match (rate("port_xmit_data"), rate("port_rcv_data")) {
                (Some(tx), Some(rx)) => format!("↑ {tx} ↓ {rx}"),
                _ => link(port.rate_100mbps),
            };
            put_right(buf, x, y, &text, inside.right().saturating_sub(x), theme.text());
            y += 1;
        }
    }
}

fn link(rate_100mbps: u32) -> String {
    match rate_100mbps {
        0 => "no traffic counters".to_owned(),
        rate => format!("{} Gb/s link", count(f64::from(rate) / 10.0)),
    }
}

fn calls(buf: &mut Buffer, place: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let now =
        world.history.last().map(|p| number(p.per_second(p.calls), Unit::PerSecond)).unwrap_or_default();
    let note = format!("{now} · {}", app.window.title());
    let inside = panel(buf, place, "Control-path calls", &note, theme);
    let columns = world.history.columns(app.window.ns(), area::columns(inside), |p| p.per_second(p.calls));
    if columns.iter().all(Option::is_none) {
        explain(buf, inside, &super::nothing_yet(context, "the trace holds no sample"), theme.dim());
        return;
    }
    area::area(buf, inside, &columns, Unit::PerSecond, theme);
}

fn memory(buf: &mut Buffer, place: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let now = world.history.last().map(|p| number(p.mr_bytes as f64, Unit::Bytes)).unwrap_or_default();
    let inside = panel(buf, place, "Registered memory", &format!("{now} · {}", app.window.title()), theme);
    let columns = world.history.columns(app.window.ns(), area::columns(inside), |p| p.mr_bytes as f64);
    area::area(buf, inside, &columns, Unit::Bytes, theme);
}

/// What was called last, failures marked.
fn latest(buf: &mut Buffer, place: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let inside = panel(buf, place, "Latest control-path calls", "failures marked ▲", theme);
    if world.events.is_empty() {
        explain(buf, inside, &super::nothing_yet(context, "no call was seen as it happened"), theme.dim());
        return;
    }
    for (i, event) in world.events.iter().rev().take(inside.height.into()).enumerate() {
        let y = inside.y + i as u16;
        let process = world.model.processes.get(&event.id).map_or("", |p| p.info.comm.as_str());
        put(buf, inside.x, y, &harmless(process), 16, theme.series(0));
        put(buf, inside.x + 17, y, &super::super::detail::name_of(event.call), 18, theme.text());
        put_right(buf, inside.x + 35, y, &duration(event.duration_ns as f64), 8, theme.text());
        let left = inside.width.saturating_sub(45);
        let (text, style) = match event.errno {
            0 => {
                let ago = world.model.now_ns.saturating_sub(event.t_ns);
                (format!("{} ago", duration(ago as f64)), theme.dim())
            }
            failed => (format!("▲ {}", errno(failed)), theme.bad()),
        };
        put(buf, inside.x + 45, y, &text, left, style);
    }
}

fn findings(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let inside = panel(buf, area, "Findings", "5 opens", context.theme);
    super::findings::top(buf, inside, context);
}

fn health(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let verdicts = totals::verdicts(&world.model);
    let all = world.model.probes.len();
    let inside = panel(buf, area, "Health of the probes", "8 opens", theme);
    let lost = world.model.lost();
    let attached = verdicts.live + verdicts.sampled;
    let probes = match all {
        0 => Fact::new("probes", "no data: none reported a verdict").styled(theme.dim()),
        _ => {
            let mut text = format!("● {attached} attached");
            for (n, word) in [
                (verdicts.not_here, "not here"),
                (verdicts.denied, "denied"),
                (verdicts.broken, "broken"),
                (verdicts.unknown, "unknown"),
            ] {
                if n > 0 {
                    text.push_str(&format!(" · {n} {word}"));
                }
            }
            let style = if verdicts.broken > 0 {
                theme.bad()
            } else if verdicts.denied > 0 || attached == 0 {
                theme.warn()
            } else {
                theme.good()
            };
            Fact::new("probes", text).styled(style)
        }
    };
    let source = match &world.source.status {
        Status::Ended(why) => format!("ended: {why}"),
        Status::Failed(why) => why.clone(),
        Status::Waiting => "waiting".into(),
        Status::Loading => "reading".into(),
        Status::Running => "running".into(),
        Status::Standing => "at rest".into(),
    };
    let missed = match totals::lost(&world.model) {
        0 => late(&world.model).map_or_else(
            || Fact::new("lost", "nothing: every count is exact").styled(theme.dim()),
            |late| late.styled(theme.warn()),
        ),
        _ => Fact::new(
            "lost",
            format!(
                "▲ {} events · {} returns · {} counts",
                lost.ring_events,
                lost.unpaired + lost.kernel_returns,
                lost.uncounted
            ),
        )
        .styled(theme.bad()),
    };
    let mut list = vec![probes, missed, Fact::new("collection", source)];
    for note in &world.source.notes {
        list.push(Fact::new("note", note.clone()).styled(theme.warn()));
    }
    let totals = totals::of(&world.model);
    list.push(Fact::new(
        "processes",
        format!("{} of {} still run", totals.alive, world.model.processes.len()),
    ));
    list.push(Fact::new(
        "alive",
        format!(
            "{} QPs · {} CQs · {} MRs",
            count(totals.qps as f64),
            count(totals.cqs as f64),
            count(totals.mrs as f64)
        ),
    ));
    facts(buf, inside, &list, theme);
}
