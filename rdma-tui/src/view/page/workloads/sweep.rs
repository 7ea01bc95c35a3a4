//! A sweep: one line per value of the parameter, one bar per variant, all on one scale.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::format::{Unit, count, number};
use crate::app::workload::Sweep;
use crate::theme::Theme;
use crate::view::widgets::{bar, explain, put, put_right};

/// Columns of the parameter's values, and of a figure behind its bar.
const VALUE: u16 = 9;
const FIGURE: u16 = 10;

/// Draws `sweep`; values beyond the area's height are left out, and said to be.
pub fn draw(buf: &mut Buffer, area: Rect, sweep: &Sweep, theme: &Theme) {
    let lines = sweep.lines();
    let mut values: Vec<u64> = lines.iter().flat_map(|(_, points)| points.iter().map(|p| p.0)).collect();
    values.sort_unstable();
    values.dedup();
    let shown = u16::try_from(lines.len()).unwrap_or(u16::MAX).max(1);
    let width = area.width.saturating_sub(VALUE) / shown;
    if area.height < 3 || width < FIGURE + 4 || values.is_empty() {
        let text = if values.is_empty() { "the sweep has no points" } else { "no room for the sweep here" };
        explain(buf, area, text, theme.dim());
        return;
    }
    let parameter = sweep.parameter.as_deref().unwrap_or("value");
    put_right(buf, area.x, area.y, parameter, VALUE - 1, theme.dim());
    let column = |i: usize| area.x + VALUE + width * u16::try_from(i).unwrap_or(0);
    for (i, (key, _)) in lines.iter().enumerate() {
        put(buf, column(i), area.y, key, width - 1, theme.series(i));
    }
    let most =
        lines.iter().flat_map(|(_, points)| points.iter().map(|p| p.1)).fold(f64::MIN_POSITIVE, f64::max);
    let (from, room) = if area.height > 5 {
        put(buf, area.x, area.y + 1, &sweep.source(), area.width, theme.dim());
        (area.y + 2, usize::from(area.height - 2))
    } else {
        (area.y + 1, usize::from(area.height - 1))
    };
    let fits = if values.len() > room { room - 1 } else { values.len() };
    for (y, value) in (from..).zip(&values[..fits]) {
        put_right(buf, area.x, y, &count(*value as f64), VALUE - 1, theme.text());
        for (i, (_, points)) in lines.iter().enumerate() {
            let Some((_, rate)) = points.iter().find(|(at, _)| at == value) else { continue };
            bar::bar(buf, column(i), y, width - FIGURE - 1, rate / most, theme.series(i), theme.frame());
            put_right(
                buf,
                column(i) + width - FIGURE - 1,
                y,
                &number(*rate, Unit::PerSecond),
                FIGURE,
                theme.text(),
            );
        }
    }
    if fits < values.len() {
        let text = format!("… and {} more values: make the terminal higher", values.len() - fits);
        put(buf, area.x, area.bottom() - 1, &text, area.width, theme.dim());
    }
}
