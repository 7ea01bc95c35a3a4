//! A titled piece of the screen: a rounded frame where there is room, a ruled title line where there is not.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use unicode_width::UnicodeWidthStr;

use crate::theme::Theme;

use super::{put, put_right};

/// Draws the frame of a panel with its title and, at the right, a note; returns the place inside.
pub fn panel(buf: &mut Buffer, area: Rect, title: &str, note: &str, theme: &Theme) -> Rect {
    let area = area.intersection(buf.area);
    if area.width < 4 || area.height < 1 {
        return Rect::new(area.x, area.y, 0, 0);
    }
    let screen = buf.area;
    let framed = screen.width >= 100 && screen.height >= 30 && area.height >= 3;
    rule(buf, area, if framed { ("╭", "╮") } else { ("─", "─") }, theme);
    let mut x = area.x + 2;
    let room = area.width.saturating_sub(4);
    x += put(buf, x - 1, area.y, &format!(" {title} "), room, theme.title());
    let left = (area.right()).saturating_sub(x + 2);
    let wanted = u16::try_from(note.width()).unwrap_or(u16::MAX).saturating_add(2);
    if !note.is_empty() && left >= wanted.min(12) {
        put_right(
            buf,
            x,
            area.y,
            &format!(" {} ", crate::app::format::clip(note, usize::from(left.saturating_sub(2)), "…")),
            left,
            theme.dim(),
        );
    }
    if !framed {
        // Without a frame between them, neighbours need a gap.
        let gap = u16::from(area.right() < screen.right());
        return Rect::new(area.x, area.y + 1, area.width - gap, area.height - 1);
    }
    for y in area.y + 1..area.bottom() - 1 {
        put(buf, area.x, y, "│", 1, theme.frame());
        put(buf, area.right() - 1, y, "│", 1, theme.frame());
    }
    let bottom = Rect::new(area.x, area.bottom() - 1, area.width, 1);
    rule(buf, bottom, ("╰", "╯"), theme);
    Rect::new(area.x + 2, area.y + 1, area.width.saturating_sub(4), area.height.saturating_sub(2))
}

fn rule(buf: &mut Buffer, area: Rect, (left, right): (&str, &str), theme: &Theme) {
    let middle = "─".repeat(usize::from(area.width.saturating_sub(2)));
    put(buf, area.x, area.y, &format!("{left}{middle}{right}"), area.width, theme.frame());
}
