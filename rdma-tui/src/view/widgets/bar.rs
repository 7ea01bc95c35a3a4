//! Horizontal bars: a share of something, or parts of a whole.

use ratatui::buffer::Buffer;
use ratatui::style::Style;

use super::{GROWING, put};

/// Draws a bar of `share` (0–1) of `width` columns.
pub fn bar(buf: &mut Buffer, x: u16, y: u16, width: u16, share: f64, style: Style, empty: Style) {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let mut eighths = (share * f64::from(width) * 8.0).round() as usize;
    if share > 0.0 {
        eighths = eighths.max(1);
    }
    for i in 0..width {
        let level = eighths.saturating_sub(usize::from(i) * 8).min(8);
        if level == 0 {
            put(buf, x + i, y, "·", 1, empty);
        } else {
            put(buf, x + i, y, GROWING[level], 1, style);
        }
    }
}

/// Draws parts of a whole side by side; each part gets at least a column while there is room.
pub fn parts(buf: &mut Buffer, x: u16, y: u16, width: u16, parts: &[(f64, Style, &str)]) {
    let total: f64 = parts.iter().map(|(n, _, _)| n.max(0.0)).sum();
    if total <= 0.0 || width == 0 {
        return;
    }
    let mut sum = 0.0;
    let mut from = 0;
    for (n, style, fill) in parts {
        if *n <= 0.0 {
            continue;
        }
        sum += n;
        let to = ((sum / total * f64::from(width)).round() as u16).max(from + 1).min(width);
        for i in from..to {
            put(buf, x + i, y, fill, 1, *style);
        }
        from = to;
    }
}
