//! Building blocks of the pages.

pub mod area;
pub mod bar;
pub mod facts;
pub mod heat;
pub mod histogram;
pub mod panel;
pub mod table;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use crate::app::format::clip;

/// Characters for filling a cell from below, in eighths.
pub const RISING: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Characters for filling a cell from the left, in eighths.
pub const GROWING: [&str; 9] = [" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];

/// Writes `text` at a place, cut to `width`; returns the columns used. Never writes outside the buffer.
pub fn put(buf: &mut Buffer, x: u16, y: u16, text: &str, width: u16, style: Style) -> u16 {
    let area = buf.area;
    if y < area.top() || y >= area.bottom() || x < area.left() || x >= area.right() {
        return 0;
    }
    let width = width.min(area.right() - x);
    let text = clip(text, width.into(), "…");
    buf.set_string(x, y, &text, style);
    u16::try_from(text.width()).unwrap_or(width)
}

/// Writes `text` so that it ends at the right edge of `width` columns from `x`.
pub fn put_right(buf: &mut Buffer, x: u16, y: u16, text: &str, width: u16, style: Style) {
    let text = clip(text, width.into(), "…");
    let used = u16::try_from(text.width()).unwrap_or(width).min(width);
    put(buf, x + width - used, y, &text, used, style);
}

/// Writes lines that explain why a panel is empty, in its middle.
pub fn explain(buf: &mut Buffer, area: Rect, text: &str, style: Style) {
    let width = usize::from(area.width.saturating_sub(2));
    let lines = wrap(text, width);
    let height = u16::try_from(lines.len()).unwrap_or(area.height).min(area.height);
    let top = area.y + (area.height - height) / 2;
    for (i, line) in lines.iter().take(height.into()).enumerate() {
        let used = u16::try_from(line.width()).unwrap_or(area.width).min(area.width);
        put(buf, area.x + (area.width - used) / 2, top + i as u16, line, used, style);
    }
}

/// Breaks `text` into lines of at most `width` columns, between words where possible.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if width == 0 {
        return lines;
    }
    for paragraph in text.lines() {
        let indent: String = paragraph.chars().take_while(|c| *c == ' ').collect();
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let mut word = word;
            let gap = if line.trim().is_empty() { 0 } else { 1 };
            if gap == 1 && line.width() + 1 + word.width() > width {
                lines.push(std::mem::take(&mut line));
            }
            if line.is_empty() {
                line.push_str(&indent);
            } else if !line.trim().is_empty() {
                line.push(' ');
            }
            while line.width() + word.width() > width {
                let room = width.saturating_sub(line.width()).max(1);
                let end = word.char_indices().nth(room).map_or(word.len(), |(i, _)| i);
                if end == word.len() {
                    break;
                }
                line.push_str(&word[..end]);
                word = &word[end..];
                lines.push(std::mem::take(&mut line));
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_wraps_between_words_and_long_words_are_cut() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("a\n\nb", 9), ["a", "", "b"]);
        assert!(wrap("x", 0).is_empty());
        assert_eq!(wrap("  two spaces", 8), ["  two", "  spaces"]);
    }

    #[test]
    fn writing_outside_the_screen_does_nothing() {
        let mut buf = Buffer::empty(Rect::new(0, 0, 4, 1));
        assert_eq!(put(&mut buf, 9, 0, "x", 5, Style::new()), 0);
        assert_eq!(put(&mut buf, 0, 3, "x", 5, Style::new()), 0);
        assert_eq!(put(&mut buf, 2, 0, "abcdef", 50, Style::new()), 2);
    }
}
