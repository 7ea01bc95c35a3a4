//! The last line: the filter while it is typed, else a message, else what the keys offer.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use unicode_width::UnicodeWidthStr;

use crate::app::keymap::{KEYMAP, Scope};
use crate::app::world::{Origin, Status};
use crate::app::{FilterLine, Tone};

use super::Context;
use super::widgets::put;

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    if let Some(line) = &app.filter_line {
        filter(buf, area, line, context);
    } else if let Some(message) = &app.message {
        let (mark, style) = match message.tone {
            Tone::Good => ("✓", theme.good()),
            Tone::Note => ("›", theme.title()),
            Tone::Bad => ("▲", theme.bad()),
        };
        put(buf, area.x + 1, area.y, mark, 1, style);
        put(buf, area.x + 3, area.y, &message.text, area.width.saturating_sub(3), theme.text());
    } else if let Status::Failed(why) = &world.source.status {
        put(buf, area.x + 1, area.y, "▲", 1, theme.bad());
        put(buf, area.x + 3, area.y, why, area.width.saturating_sub(3), theme.bad());
    } else {
        hints(buf, area, context);
    }
}

fn hints(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let mut x = area.x + 1;
    let filter = app.table_id().map(|table| app.table(table).filter_text.as_str()).unwrap_or_default();
    if !filter.is_empty() && app.details.is_empty() && app.help.is_none() {
        let text = crate::app::format::clip(filter, usize::from(area.width / 3), "…");
        x += put(buf, x, area.y, &format!("/{text}"), area.width / 2, theme.warn()) + 2;
    }
    let here = |scope: Scope| match scope {
        Scope::Anywhere => true,
        Scope::Tables => app.table_id().is_some() && app.details.is_empty(),
        Scope::Replay => world.source.origin == Origin::Replay,
        Scope::Live => world.source.origin == Origin::Live,
        Scope::On(page) => page == app.page && app.details.is_empty(),
    };
    let back = (!app.details.is_empty() || app.help.is_some()).then_some(("Esc".to_owned(), "back"));
    let offered = KEYMAP
        .iter()
        .filter(|b| !b.hint.is_empty() && here(b.scope))
        .map(|b| (b.keys[0].to_string(), b.hint));
    for (key, hint) in back.into_iter().chain(offered) {
        let wide = key.width() + hint.width() + 3;
        if usize::from(x) + wide > usize::from(area.right()) {
            break;
        }
        x += put(buf, x, area.y, &key, area.right().saturating_sub(x), theme.key());
        x += put(buf, x + 1, area.y, hint, area.right().saturating_sub(x + 1), theme.dim()) + 3;
    }
}

/// What is typed, and what is wrong with it under the very place.
fn filter(buf: &mut Buffer, area: Rect, line: &FilterLine, context: Context<'_>) {
    let theme = context.theme;
    put(buf, area.x, area.y, " /", 2, theme.key());
    let text: Vec<char> = line.prompt.text().chars().collect();
    let half = usize::from(area.width) / 2;
    // The cursor stays in sight in a text longer than the line.
    let skip = line.prompt.cursor.saturating_sub(half.max(8));
    let mut x = area.x + 2;
    for (i, c) in text.iter().enumerate().skip(skip).take(half + 8) {
        let wrong = line.error.as_ref().is_some_and(|e| i >= e.at && i < e.at + e.len);
        let mut style =
            if wrong { theme.bad().add_modifier(ratatui::style::Modifier::UNDERLINED) } else { theme.text() };
        if i == line.prompt.cursor {
            style = style.add_modifier(ratatui::style::Modifier::REVERSED);
        }
        x += put(buf, x, area.y, &c.to_string(), area.right().saturating_sub(x), style);
    }
    if line.prompt.cursor >= text.len() {
        let style = theme.text().add_modifier(ratatui::style::Modifier::REVERSED);
        x += put(buf, x, area.y, " ", area.right().saturating_sub(x), style);
    }
    x += 2;
    let room = area.right().saturating_sub(x);
    match &line.error {
        Some(error) => {
            put(buf, x, area.y, &format!("▲ {} (at {})", error.message, error.at + 1), room, theme.bad())
        }
        None => {
            let table = context.app.table(line.table);
            let text = format!("{} of {} · Enter keep · Esc undo", table.rows.len(), table.unfiltered);
            put(buf, x, area.y, &text, room, theme.dim())
        }
    };
}
