//! A table: only the rows on screen are looked up and written, so ten thousand cost what twenty cost.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::app::format::many;
use crate::app::table::{Column, Row, RowKey, TableState, columns, row};
use crate::app::value::Value;
use crate::app::world::World;
use crate::theme::Theme;

use super::{explain, put, put_right};

/// What a page adds to a cell: a style of its own.
pub type Accent = fn(&Column, &Value<'_>, &Row<'_>, &Theme) -> Option<Style>;

/// Draws `state` into `area`, heading first. `empty` says why there are no rows; a table that keys do not move shows no
/// selection.
#[expect(clippy::too_many_arguments, reason = "what a table is drawn from")]
pub fn table(
    buf: &mut Buffer,
    area: Rect,
    state: &TableState,
    world: &World,
    accent: Accent,
    empty: &str,
    moved_by_keys: bool,
    theme: &Theme,
) {
    if area.height < 2 || area.width < 10 {
        return;
    }
    let body = Rect::new(area.x, area.y + 1, area.width, area.height - 1);
    state.height.set(body.height.into());
    let chosen = fit(columns(state.table), area.width.saturating_sub(3), state.sort);
    heading(buf, area, &chosen, state, theme);
    if state.rows.is_empty() {
        let text = match state.unfiltered {
            0 => empty.to_owned(),
            n => format!("none of {n} rows pass the filter '{}' (Esc clears it)", state.filter_text),
        };
        explain(buf, body, &text, theme.dim());
        return;
    }
    let lines = lines(state, world, body.height.into());
    for (i, line) in lines.iter().enumerate() {
        let y = body.y + i as u16;
        match line {
            Line::Group(title) => {
                put(buf, body.x, y, &format!("▾ {title}"), body.width, theme.title());
            }
            Line::Row(index) => draw_row(
                buf,
                body,
                y,
                *index,
                &chosen,
                state,
                world,
                accent,
                moved_by_keys && *index == state.selected,
                theme,
            ),
        }
    }
    scrollbar(buf, body, state, theme);
}

enum Line {
    Group(String),
    Row(usize),
}

/// What stands on each line: rows, and before each group its name.
fn lines(state: &TableState, world: &World, height: usize) -> Vec<Line> {
    let mut top = state.top.min(state.rows.len().saturating_sub(1));
    let group = state.group.column().and_then(|key| columns(state.table).iter().find(|c| c.key == key));
    loop {
        let mut lines = Vec::with_capacity(height);
        let mut last: Option<String> = None;
        let mut shown = false;
        for (index, key) in state.rows.iter().enumerate().skip(top) {
            if lines.len() >= height {
                break;
            }
            if let Some(column) = group {
                let title = group_title(column, key, world);
                if last.as_ref() != Some(&title) {
                    // A heading without a row under it says nothing.
                    if lines.len() + 2 > height {
                        break;
                    }
                    lines.push(Line::Group(title.clone()));
                    last = Some(title);
                }
            }
            lines.push(Line::Row(index));
            shown |= index == state.selected;
        }
        // Group lines take room that the scrolling did not count on.
        if shown || top >= state.selected {
            return lines;
        }
        top += 1;
    }
}

fn group_title(column: &Column, key: &RowKey, world: &World) -> String {
    let Some(row) = row(key, world) else { return String::new() };
    let value = (column.get)(world, &row).show(column.unit);
    match (column.key, row) {
        ("pid", Row::Qp(process, _)) => format!(
            "{} {}  {} on {}",
            process.info.id.pid,
            crate::app::format::harmless(&process.info.comm),
            many(process.queues.qp_population.live, "QP"),
            many(process.queues.cq_population.live, "CQ")
        ),
        ("qp.cq", Row::Qp(process, qp)) => {
            let sharers = process.queues.cqs().get(&qp.send_cq).map_or(0, |cq| cq.qps.live);
            format!(
                "CQ {value} of {}  {}",
                crate::app::format::harmless(&process.info.comm),
                many(sharers, "QP")
            )
        }
        ("qp.peer", _) => format!("peer {value}"),
        _ => value,
    }
}

/// The columns that fit, each with its width; words at the end take what is left.
fn fit(columns: &'static [Column], width: u16, sort: usize) -> Vec<(usize, &'static Column, u16)> {
    let mut chosen: Vec<(usize, &Column, u16)> =
        columns.iter().enumerate().map(|(i, c)| (i, c, c.width.max(c.title.len() as u16))).collect();
    let total = |chosen: &[(usize, &Column, u16)]| chosen.iter().map(|(_, _, w)| w + 1).sum::<u16>();
    while total(&chosen) > width && chosen.len() > 1 {
        // The column it is sorted by stays as long as any: without it the order cannot be understood.
        let gone = chosen
            .iter()
            .enumerate()
            .filter(|(_, (i, _, _))| *i != sort)
            .max_by_key(|(place, (_, c, _))| (c.sheds, *place))
            .map(|(place, _)| place);
        match gone {
            Some(place) if chosen[place].1.sheds > 0 || chosen.len() > 3 => _ = chosen.remove(place),
            _ => break,
        }
    }
    // Words take what is left, the widest columns first, each at most as much again as it has.
    let mut left = width.saturating_sub(total(&chosen));
    let mut words: Vec<usize> = (0..chosen.len()).filter(|i| chosen[*i].1.unit.is_none()).collect();
    words.sort_by_key(|i| std::cmp::Reverse(chosen[*i].1.width));
    for place in words {
        let more = left.min(chosen[place].1.width);
        chosen[place].2 += more;
        left -= more;
    }
    chosen
}

fn heading(
    buf: &mut Buffer,
    area: Rect,
    chosen: &[(usize, &Column, u16)],
    state: &TableState,
    theme: &Theme,
) {
    let mut x = area.x + 2;
    for (index, column, width) in chosen {
        let sorted = *index == state.sort;
        let style = if sorted { theme.key() } else { theme.dim() };
        let arrow = if state.descending { "▾" } else { "▴" };
        let title = if sorted { format!("{}{arrow}", column.title) } else { column.title.to_owned() };
        // The arrow may use the gap between columns, so that no heading is cut for being sorted by.
        if column.unit.is_some() {
            let extra = u16::from(sorted && title.chars().count() > usize::from(*width));
            put_right(buf, x.saturating_sub(extra), area.y, &title, width + extra, style);
        } else {
            put(buf, x, area.y, &title, width + 1, style);
        }
        x += width + 1;
    }
}

#[expect(clippy::too_many_arguments, reason = "one row's worth of its caller's state")]
fn draw_row(
    buf: &mut Buffer,
    body: Rect,
    y: u16,
    index: usize,
    chosen: &[(usize, &Column, u16)],
    state: &TableState,
    world: &World,
    accent: Accent,
    selected: bool,
    theme: &Theme,
) {
    let Some(row) = row(&state.rows[index], world) else { return };
    let mut x = body.x + 2;
    for (_, column, width) in chosen {
        let value = (column.get)(world, &row);
        let style = match &value {
            Value::Missing => theme.frame(),
            Value::Number(n) if *n == 0.0 && column.unit.is_some() => theme.dim(),
            _ => theme.text(),
        };
        let style = accent(column, &value, &row, theme).map_or(style, |a| style.patch(a));
        let text = value.show(column.unit);
        if column.unit.is_some() {
            put_right(buf, x, y, &text, *width, style);
        } else {
            put(buf, x, y, &text, *width, style);
        }
        x += width + 1;
    }
    if selected {
        let line = Rect::new(body.x, y, body.width.saturating_sub(1), 1);
        buf.set_style(line, theme.selected());
        put(buf, body.x, y, "▶", 1, theme.key().patch(theme.selected()));
    }
}

/// A mark at the right edge for where one is, when not all rows fit.
fn scrollbar(buf: &mut Buffer, body: Rect, state: &TableState, theme: &Theme) {
    let (n, height) = (state.rows.len(), usize::from(body.height));
    if n <= height || height == 0 {
        return;
    }
    let size = (height * height / n).max(1);
    let start = state.top * (height - size) / (n - height).max(1);
    for i in 0..height {
        let inside = i >= start && i < start + size;
        let (glyph, style) = if inside { ("█", theme.dim()) } else { ("│", theme.frame()) };
        put(buf, body.right() - 1, body.y + i as u16, glyph, 1, style);
    }
}
