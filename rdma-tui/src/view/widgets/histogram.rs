//! A histogram lying on its side: one line per class, bar and count.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use probe_user::model::bounds;
use probe_user::sample::Histogram;

use crate::app::format::{count, duration, share};
use crate::theme::Theme;

use super::{bar, put_right};

/// Draws latencies (ns) in at most `area.height` classes of equal factor, slowest last.
pub fn histogram(buf: &mut Buffer, area: Rect, latencies: &Histogram, theme: &Theme) {
    let total = latencies.total();
    let (Some(low), Some((_, high))) = (latencies.quantile(0.0), latencies.highest()) else { return };
    if area.width < 24 || area.height == 0 {
        return;
    }
    let classes = classes(latencies, low.max(1), high, area.height.into());
    let most = classes.iter().map(|(_, n)| *n).max().unwrap_or(1).max(1);
    for (i, (upto, n)) in classes.iter().enumerate() {
        let y = area.y + i as u16;
        put_right(buf, area.x, y, &format!("≤ {}", duration(*upto)), 10, theme.dim());
        let room = area.width.saturating_sub(10 + 1 + 14);
        let at = (i as f64 + 0.5) / classes.len() as f64;
        bar::bar(buf, area.x + 11, y, room, *n as f64 / most as f64, theme.gradient(at), theme.frame());
        let part = if total == 0 { 0.0 } else { *n as f64 / total as f64 };
        put_right(buf, area.x + 11 + room, y, &count(*n as f64), 7, theme.text());
        put_right(buf, area.x + 18 + room, y, &share(part), 7, theme.dim());
    }
}

/// Upper bound (ns) and count of each class, with round bounds: a step of the series 1, 2, 5, 10 or a power of it.
fn classes(latencies: &Histogram, low: u64, high: u64, at_most: usize) -> Vec<(f64, u64)> {
    let mut bounds_ns: Vec<f64> = Vec::new();
    for series in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
        bounds_ns = round_bounds(low as f64, high as f64, series);
        if bounds_ns.len() <= at_most.max(1) {
            break;
        }
    }
    let mut counts = vec![0_u64; bounds_ns.len()];
    for (index, n) in &latencies.0 {
        let (from, to) = bounds(*index);
        let middle = from as f64 + (to - from) as f64 / 2.0;
        let class = bounds_ns.iter().position(|bound| middle <= *bound).unwrap_or(bounds_ns.len() - 1);
        counts[class] = counts[class].saturating_add(*n);
    }
    // More decades than lines: the fastest ones are told together.
    let mut classes: Vec<(f64, u64)> = bounds_ns.into_iter().zip(counts).collect();
    while classes.len() > at_most.max(1) {
        let (_, n) = classes.remove(0);
        classes[0].1 = classes[0].1.saturating_add(n);
    }
    classes
}

fn round_bounds(low: f64, high: f64, series: &[f64]) -> Vec<f64> {
    let mut bounds = Vec::new();
    let mut power = 10_f64.powf(low.max(1.0).log10().floor());
    while bounds.len() < 80 {
        for step in series {
            let bound = step * power;
            if bound >= low {
                bounds.push(bound);
                if bound >= high {
                    return bounds;
                }
            }
        }
        power *= 10.0;
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_round_bounds_and_lose_nothing() {
        let mut latencies = Histogram::default();
        for ns in [900, 1_500, 40_000, 41_000, 7_000_000] {
            latencies.record(ns);
        }
        for at_most in [1, 3, 8, 40] {
            let classes = classes(&latencies, 900, 7_000_000, at_most);
            assert!(classes.len() <= at_most, "{at_most}");
            assert_eq!(classes.iter().map(|(_, n)| n).sum::<u64>(), 5);
            assert!(classes.last().unwrap().0 >= 7_000_000.0);
        }
    }

    #[test]
    fn the_largest_value_there_is_does_not_loop_for_ever() {
        let mut latencies = Histogram::default();
        latencies.record(0);
        latencies.record(u64::MAX);
        assert_eq!(classes(&latencies, 1, u64::MAX, 12).iter().map(|(_, n)| n).sum::<u64>(), 2);
    }
}
