//! A heat map of latencies over time: time to the right, latency upwards, brightness how many.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use probe_user::model::bounds;
use probe_user::sample::Histogram;

use crate::app::format::duration;
use crate::theme::Theme;

use super::{put, put_right};

/// Columns of the scale.
const SCALE: u16 = 8;

/// Characters for terminals whose colours cannot carry it, from few to many.
const DENSITY: [&str; 5] = [" ", "░", "▒", "▓", "█"];

/// Width of the map itself within `area`.
pub fn columns(area: Rect) -> usize {
    area.width.saturating_sub(SCALE + 1).into()
}

/// Draws one histogram per column, oldest first. Each screen row covers an equal part of the logarithm of the range.
pub fn heat(buf: &mut Buffer, area: Rect, columns: &[Option<Histogram>], theme: &Theme) {
    if area.height < 2 || area.width <= SCALE + 2 {
        return;
    }
    let Some((low, high)) = range(columns) else { return };
    let rows = usize::from(area.height);
    let span = (high / low).ln().max(f64::EPSILON);
    let row_of = |ns: f64| (((ns / low).ln() / span * rows as f64) as usize).min(rows - 1);

    let mut counts = vec![vec![0_u64; rows]; columns.len()];
    for (column, histogram) in counts.iter_mut().zip(columns) {
        for (index, n) in histogram.iter().flat_map(|h| &h.0) {
            let (from, to) = bounds(*index);
            let row = row_of(((from + to) as f64 / 2.0).clamp(low, high));
            column[row] = column[row].saturating_add(*n);
        }
    }
    let most = counts.iter().flatten().copied().max().unwrap_or(0).max(1);

    let chart = Rect::new(area.x + SCALE + 1, area.y, area.width - SCALE - 1, area.height);
    for row in 0..rows {
        let y = area.bottom() - 1 - row as u16;
        put(buf, chart.x - 1, y, "│", 1, theme.frame());
        if row == 0 || row == rows - 1 || (rows > 6 && row == rows / 2) {
            let at = low * ((row as f64 + if row == 0 { 0.0 } else { 1.0 }) / rows as f64 * span).exp();
            put_right(buf, area.x, y, &duration(at), SCALE, theme.dim());
        }
    }
    let skip = counts.len().saturating_sub(chart.width.into());
    for (i, column) in counts[skip..].iter().enumerate() {
        let x = chart.x + i as u16;
        for (row, n) in column.iter().enumerate().filter(|(_, n)| **n > 0) {
            // By logarithm: one slow call among a thousand fast ones is what one looks for.
            let at = ((*n as f64).ln_1p() / (most as f64).ln_1p()).clamp(0.05, 1.0);
            let y = area.bottom() - 1 - row as u16;
            match theme.heat(at) {
                Some(color) if !theme.ascii => {
                    put(buf, x, y, "█", 1, Style::new().fg(color));
                }
                _ => {
                    let level = ((at * 4.0).ceil() as usize).clamp(1, 4);
                    put(buf, x, y, DENSITY[level], 1, theme.heat_text(at));
                }
            }
        }
    }
}

/// Lowest and highest latency in all columns, ns, widened to at least a factor of four.
fn range(columns: &[Option<Histogram>]) -> Option<(f64, f64)> {
    let filled = || columns.iter().flatten().filter(|h| h.total() > 0);
    let low = filled().filter_map(|h| h.quantile(0.0)).min()?.max(1) as f64;
    let high = filled().filter_map(|h| h.highest()).map(|(_, high)| high).max()? as f64;
    let widen = (4.0 / (high / low)).max(1.0).sqrt();
    Some(((low / widen).max(1.0), high * widen))
}
