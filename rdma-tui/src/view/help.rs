//! The help, made from the key table and the columns of the page's table.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use unicode_width::UnicodeWidthStr;

use crate::app::keymap::KEYMAP;
use crate::app::table::columns;

use super::Context;
use super::widgets::{panel::panel, put, wrap};

pub fn draw(buf: &mut Buffer, area: Rect, scroll: usize, context: Context<'_>) {
    let Context { app, theme, .. } = context;
    let inside = panel(buf, area, "Help", "j k scroll · ? or Esc close", theme);
    let mut lines: Vec<(String, String, ratatui::style::Style)> = Vec::new();
    let mut groups: Vec<&str> = Vec::new();
    for binding in KEYMAP {
        if !groups.contains(&binding.group) {
            groups.push(binding.group);
        }
    }
    for group in groups {
        lines.push((group.to_owned(), String::new(), theme.title()));
        for binding in KEYMAP.iter().filter(|b| b.group == group) {
            let keys = binding.keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            lines.push((format!("  {keys}"), binding.help.to_owned(), theme.key()));
        }
    }
    if let Some(table) = app.table_id() {
        lines.push((format!("Fields of {}", table.title()), String::new(), theme.title()));
        for column in columns(table) {
            lines.push((format!("  {}", column.key), column.explain.to_owned(), theme.key()));
        }
        lines.push(("Filter".into(), String::new(), theme.title()));
        for (example, says) in [
            ("  comm:ib_*", "a pattern; = is the same, != turns it round"),
            ("  a b", "both must hold; or, not, ( ) do what they say"),
            ("  field>1.5ms", "figures take units: 64KiB 20k 90% 3us"),
            ("  word", "a bare word is looked for in every column of words"),
        ] {
            lines.push((example.into(), says.into(), theme.key()));
        }
    }
    let left = lines.iter().filter(|l| !l.1.is_empty()).map(|l| l.0.width()).max().unwrap_or(0) as u16 + 2;
    let wide = usize::from(inside.width.saturating_sub(left));
    let lines: Vec<_> = lines
        .into_iter()
        .flat_map(|(key, text, style)| {
            let parts = if text.is_empty() { vec![String::new()] } else { wrap(&text, wide) };
            parts
                .into_iter()
                .enumerate()
                .map(move |(i, part)| (if i == 0 { key.clone() } else { String::new() }, part, style))
        })
        .collect();
    let scroll = scroll.min(lines.len().saturating_sub(inside.height.into()));
    for (i, (key, text, style)) in lines.iter().skip(scroll).take(inside.height.into()).enumerate() {
        let y = inside.y + i as u16;
        put(buf, inside.x, y, key, inside.width, *style);
        put(buf, inside.x + left, y, text, inside.width.saturating_sub(left), theme.text());
    }
}
