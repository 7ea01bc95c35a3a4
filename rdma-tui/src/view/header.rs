//! The two lines at the top: what is watched and how it fares; the pages.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use crate::app::data_path;
use crate::app::format::{clip, count, duration, harmless};
use crate::app::page::Page;
use crate::app::totals;
use crate::app::world::{Origin, Status, World};

use super::Context;
use super::widgets::put;

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    what(buf, area, context);
    pages(buf, Rect { y: area.y + 1, height: 1, ..area }, context);
}

/// Left: host, device, target. Right, never given up: the mode, what was missed.
fn what(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let mut right: Vec<(String, Style)> = Vec::new();
    if world.source.recording.is_some() {
        right.push(("● REC".into(), theme.bad()));
    }
    if app.paused {
        right.push(("⏸ PAUSED".into(), theme.warn()));
    }
    right.push(mode(context));
    if let Some(place) = place(world, area.width >= 100) {
        right.push((place, theme.dim()));
    }
    let lost = totals::lost(&world.model).saturating_add(world.source.dropped_records);
    match lost {
        0 => right.push(("0 lost".into(), theme.dim())),
        n => right.push((format!("▲ {} lost", count(n as f64)), theme.bad())),
    }
    if let Some(cost) = data_path::cost(&world.model) {
        // What the profiler takes beside is the first thing to go where there is no room.
        let own = data_path::profiler(&world.model).filter(|_| area.width >= 100);
        let own = own.map(|cpus| format!(" + profiler {:.1}% of a CPU", cpus * 100.0)).unwrap_or_default();
        right.push((format!("cost {:.1}%{own}", cost * 100.0), theme.dim()));
    }
    let used: usize = right.iter().map(|(text, _)| text.width() + 2).sum();
    let room = usize::from(area.width).saturating_sub(used + 12);

    put(buf, area.x, area.y, " rdma-tui ", 10, theme.tab());
    let left = format!(" {}", left(world).join(" · "));
    put(buf, area.x + 10, area.y, &clip(&left, room, "…"), room as u16, theme.text());

    let mut x = area.right().saturating_sub(used as u16 + 1) + 1;
    for (text, style) in right {
        x += put(buf, x, area.y, &text, area.right().saturating_sub(x), style) + 2;
    }
}

fn left(world: &World) -> Vec<String> {
    let mut parts = Vec::new();
    let header = &world.model.header;
    if !header.host.is_empty() {
        parts.push(harmless(&header.host).into_owned());
    }
    if !world.source.target.is_empty() {
        parts.push(harmless(&world.source.target).into_owned());
    }
    let devices: Vec<_> = world.model.devices.values().collect();
    match devices.as_slice() {
        [] => {}
        [one] if one.emulated => parts.push(format!("{} (emulated)", harmless(&one.name))),
        [one] => parts.push(harmless(&one.name).into_owned()),
        many => parts.push(format!("{} devices", many.len())),
    }
    parts
}

fn mode(context: Context<'_>) -> (String, Style) {
    let Context { world, theme, .. } = context;
    match (&world.source.status, world.source.origin) {
        (Status::Waiting, Origin::Live) => ("◐ STARTING".into(), theme.warn()),
        (Status::Waiting | Status::Loading, _) => {
            let share = world.source.loaded.map(|s| format!(" {:.0}%", s * 100.0)).unwrap_or_default();
            (format!("◐ LOADING{share}"), theme.warn())
        }
        (Status::Running, Origin::Live) => ("● LIVE".into(), theme.good()),
        (Status::Running, Origin::Replay) => ("▶ PLAYING".into(), theme.good()),
        (Status::Standing, _) => ("■ REPLAY".into(), theme.title()),
        (Status::Ended(_), _) => ("■ ENDED".into(), theme.warn()),
        (Status::Failed(_), _) => ("▲ LOST CONTACT".into(), theme.bad()),
    }
}

/// Time of day, and in a replay the place in the trace.
fn place(world: &World, roomy: bool) -> Option<String> {
    if world.model.now_ns == 0 {
        return None;
    }
    let time = time_of_day(world.model.wall_ns(world.model.now_ns));
    Some(match (world.source.origin, world.source.moments) {
        (Origin::Replay, Some(all)) if !roomy => format!("{time} {}/{all}", world.source.moment),
        (Origin::Replay, Some(all)) => {
            format!("{time} {}/{all} +{}", world.source.moment, duration(world.model.duration_ns() as f64))
        }
        (Origin::Replay, None) => format!("{time} {}", world.source.moment),
        (Origin::Live, _) => time,
    })
}

/// UTC time of day of a moment since the Unix epoch, ns.
fn time_of_day(wall_ns: u64) -> String {
    let seconds = wall_ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Full names where they fit, else short ones for all but the page one is on.
fn pages(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { app, theme, .. } = context;
    let full: usize = Page::ALL.iter().map(|page| page.title().width() + 4).sum();
    let short = full > area.width.into();
    let mut x = area.x;
    for page in Page::ALL {
        let current = page == app.page;
        let title = if short && !current { page.short_title() } else { page.title() };
        let digit = (page.index() + 1).to_string();
        if current {
            x += put(
                buf,
                x,
                area.y,
                &format!(" {digit} {title} "),
                area.right().saturating_sub(x),
                theme.tab(),
            );
        } else {
            x += put(buf, x, area.y, &format!(" {digit}"), area.right().saturating_sub(x), theme.key());
            x += put(buf, x, area.y, &format!(" {title} "), area.right().saturating_sub(x), theme.dim());
        }
    }
}
