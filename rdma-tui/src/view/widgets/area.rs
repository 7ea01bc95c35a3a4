//! A filled chart over time, coloured from low to high, with its scale at the left.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::format::{Unit, number};
use crate::theme::Theme;

use super::{RISING, put, put_right};

/// Columns of the scale.
const SCALE: u16 = 8;

/// Width of the chart itself within `area`: how many values it can show.
pub fn columns(area: Rect) -> usize {
    area.width.saturating_sub(SCALE + 1).into()
}

/// Draws `values`, oldest first; `None` leaves a gap.
pub fn area(buf: &mut Buffer, area: Rect, values: &[Option<f64>], unit: Unit, theme: &Theme) {
    if area.height == 0 || area.width <= SCALE + 2 {
        return;
    }
    let top = nice(values.iter().flatten().copied().fold(0.0, f64::max), unit);
    let chart = Rect::new(area.x + SCALE + 1, area.y, area.width - SCALE - 1, area.height);
    put_right(buf, area.x, area.y, &number(top, unit), SCALE, theme.dim());
    if area.height > 2 {
        put_right(buf, area.x, area.bottom() - 1, "0", SCALE, theme.dim());
    }
    if area.height > 5 {
        put_right(buf, area.x, area.y + area.height / 2, &number(top / 2.0, unit), SCALE, theme.dim());
    }
    for y in chart.y..chart.bottom() {
        put(buf, chart.x - 1, y, "│", 1, theme.frame());
    }
    let eighths = f64::from(chart.height) * 8.0;
    let skip = values.len().saturating_sub(chart.width.into());
    for (i, value) in values[skip..].iter().enumerate() {
        let x = chart.x + i as u16;
        let Some(value) = value else {
            put(buf, x, chart.bottom() - 1, "·", 1, theme.frame());
            continue;
        };
        let mut filled = (value / top * eighths).round().clamp(0.0, eighths) as usize;
        // Something is never drawn as nothing.
        if *value > 0.0 {
            filled = filled.max(1);
        }
        for row in 0..chart.height {
            let level = filled.saturating_sub(usize::from(row) * 8).min(8);
            if level == 0 {
                break;
            }
            let height = f64::from(row + 1) / f64::from(chart.height);
            put(buf, x, chart.bottom() - 1 - row, RISING[level], 1, theme.gradient(height));
        }
    }
}

/// A round number at or above `max`, in the unit's own steps, so that the scale does not change with every value.
pub fn nice(max: f64, unit: Unit) -> f64 {
    if !max.is_finite() || max <= 0.0 {
        return 1.0;
    }
    if unit == Unit::Bytes {
        return 2_f64.powf(max.log2().ceil());
    }
    let power = 10_f64.powf(max.log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0];
    steps.iter().map(|step| step * power).find(|step| *step >= max * 0.999_999).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_at_a_round_number_above_everything() {
        for (max, top) in
            [(0.0, 1.0), (0.7, 0.8), (1.0, 1.0), (11.0, 15.0), (980.0, 1000.0), (1234.0, 1500.0)]
        {
            assert!((nice(max, Unit::PerSecond) - top).abs() < 1e-9, "{max}");
        }
        assert!((nice(5000.0, Unit::Bytes) - 8192.0).abs() < 1e-9);
        assert!((nice(f64::INFINITY, Unit::Count) - 1.0).abs() < 1e-9);
    }
}
