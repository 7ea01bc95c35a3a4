//! A one-line chart.

use ratatui::buffer::Buffer;

use crate::theme::Theme;

use super::{RISING, put};

/// Draws the latest `width` values, the newest at the right; the largest fills its cell.
pub fn spark(buf: &mut Buffer, x: u16, y: u16, width: u16, values: impl ExactSizeIterator<Item = f64>, theme: &Theme) {
    let skip = values.len().saturating_sub(width.into());
    let values: Vec<f64> = values.skip(skip).collect();
    let max = values.iter().copied().fold(0.0, f64::max);
    let start = x + width.saturating_sub(values.len() as u16);
    for (i, value) in values.iter().enumerate() {
        let share = if max > 0.0 { value / max } else { 0.0 };
        let level = if *value > 0.0 { ((share * 8.0).round() as usize).clamp(1, 8) } else { 0 };
        put(buf, start + i as u16, y, RISING[level], 1, theme.gradient(share));
    }
}
