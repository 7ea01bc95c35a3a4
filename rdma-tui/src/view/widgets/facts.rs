//! Labels with figures, one a line.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use crate::theme::Theme;

use super::put;

/// A label and what it says.
#[derive(Debug, Clone)]
pub struct Fact {
    /// Label.
    pub label: &'static str,
    /// Figure or words.
    pub value: String,
    /// How the value looks.
    pub style: Style,
}

impl Fact {
    /// A fact in ordinary style.
    pub fn new(label: &'static str, value: impl Into<String>) -> Self {
        Self { label, value: value.into(), style: Style::new() }
    }

    /// The same in another style.
    pub fn styled(self, style: Style) -> Self {
        Self { style, ..self }
    }
}

/// Draws facts down the lines of `area`, in two columns where one is not enough and there is room; returns how many
/// fitted.
pub fn facts(buf: &mut Buffer, area: Rect, facts: &[Fact], theme: &Theme) -> usize {
    if area.height == 0 {
        return 0;
    }
    let per_column = usize::from(area.height);
    let wanted = facts.len().div_ceil(per_column).max(1);
    let columns = wanted.min(usize::from((area.width / 30).max(1)));
    let width = area.width / columns as u16;
    let mut shown = 0;
    for (column, facts) in facts.chunks(per_column).take(columns).enumerate() {
        let label = facts.iter().map(|f| f.label.width()).max().unwrap_or(0) as u16;
        let x = area.x + column as u16 * width;
        let room = width.saturating_sub(u16::from(column + 1 < columns) * 2);
        for (line, fact) in facts.iter().enumerate() {
            let y = area.y + line as u16;
            put(buf, x, y, fact.label, room.min(label), theme.dim());
            put(buf, x + label + 2, y, &fact.value, room.saturating_sub(label + 2), fact.style);
            shown += 1;
        }
    }
    shown
}
