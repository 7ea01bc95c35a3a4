//! Sweeps as SVG: rate and latency over the swept parameter, one line per variant. No script, no font files, readable in
//! black and white (each line has its own mark).

use crate::compare::Point;
use crate::outcome::VariantOutcome;
use crate::suite::About;
use crate::table::{quantity, rate, time};
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const PANEL: f64 = 250.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 76.0;
const GAP: f64 = 60.0;

/// Colours that stay apart for colour-blind eyes (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// One line: a name and points (x, y), ascending in x.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Draws a sweep. `subtitle` says where the figures come from. `None` when nothing was swept.
pub fn sweep(about: &About, points: &[Point], subtitle: &str) -> Option<String> {
    let swept = about.sweep.as_ref()?;
    // Where the model has figures they are what the sweep is about; the emulated device's own speed is beside the point.
    let modelled =
        points.iter().any(|point| point.outcome.as_ref().is_some_and(|outcome| outcome.modelled.is_some()));
    let (rates, latencies) = if modelled {
        (
            lines(points, |outcome| Some(outcome.modelled.as_ref()?.ops_per_s)),
            lines(points, |outcome| Some(outcome.modelled.as_ref()?.latency_ns.p50)),
        )
    } else {
        (
            lines(points, |outcome| Some(outcome.summary.ops_per_s)),
            lines(points, |outcome| Some(outcome.summary.latency_ns?.p50 as f64)),
        )
    };
    if rates.is_empty() {
        return None;
    }
    let height = TOP + 2.0 * PANEL + GAP + 60.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    text(&mut svg, LEFT, 24.0, "start", &format!("{}: {}", about.name, about.question), "font-size=\"14\"");
    let source = if modelled { "figures of the timing model, in modelled time" } else { subtitle };
    text(&mut svg, LEFT, 42.0, "start", source, "fill=\"#555\"");
    let axis = match swept.unit {
        unit if unit.is_empty() || unit == swept.parameter => swept.parameter.to_owned(),
        unit => format!("{} ({unit})", swept.parameter),
    };
    let label = |value: f64| quantity(value as u64, swept.unit);
    panel(&mut svg, TOP, "operations per second", &rates, &rate, &label);
    panel(&mut svg, TOP + PANEL + GAP, "median latency", &latencies, &time, &label);
    text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, height - 12.0, "middle", &axis, "");
    svg.push_str("</svg>\n");
    Some(svg)
}

fn lines(points: &[Point], of: impl Fn(&VariantOutcome) -> Option<f64>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for point in points {
        let (Some(x), Some(y)) = (point.value, point.outcome.as_ref().and_then(&of)) else { continue };
        if x == 0 || y <= 0.0 {
            continue;
        }
        match lines.iter_mut().find(|line| line.name == point.key) {
            Some(line) => line.points.push((x as f64, y)),
            None => lines.push(Line { name: point.key.clone(), points: vec![(x as f64, y)] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

fn panel(
    svg: &mut String,
    top: f64,
    title: &str,
    lines: &[Line],
    figure: &dyn Fn(f64) -> String,
    label: &dyn Fn(f64) -> String,
) {
    let bottom = top + PANEL;
    text(svg, LEFT, top - 6.0, "start", title, "font-weight=\"bold\"");
    let all = || lines.iter().flat_map(|line| &line.points);
    let mut xs: Vec<f64> = all().map(|point| point.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (Some(&first), Some(&last)) = (xs.first(), xs.last()) else {
        text(svg, LEFT, top + 20.0, "start", "nothing to show", "");
        return;
    };
    let highest = all().map(|point| point.1).fold(0.0, f64::max);
    let ceiling = nice(highest);
    let span = (last.ln() - first.ln()).max(f64::MIN_POSITIVE);
    let x = |value: f64| match xs.len() {
        1 => (LEFT + WIDTH - RIGHT) / 2.0,
        _ => LEFT + (value.ln() - first.ln()) / span * (WIDTH - LEFT - RIGHT),
    };
    let y = |value: f64| bottom - value / ceiling * PANEL;
    for step in 0..=4 {
        let value = ceiling * f64::from(step) / 4.0;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>",
            WIDTH - RIGHT
        );
        text(svg, LEFT - 6.0, at + 4.0, "end", &figure(value), "");
    }
    for &value in &xs {
        text(svg, x(value), bottom + 16.0, "middle", &label(value), "font-size=\"10\"");
    }
    for (at, line) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let path: Vec<String> =
            line.points.iter().map(|&(px, py)| format!("{:.1},{:.1}", x(px), y(py))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for &(px, py) in &line.points {
            mark(svg, at, x(px), y(py), colour);
        }
        let row = top + 14.0 + 18.0 * at as f64;
        mark(svg, at, WIDTH - RIGHT + 20.0, row - 4.0, colour);
        text(svg, WIDTH - RIGHT + 32.0, row, "start", &line.name, "");
    }
}

/// A mark by position in the legend: circle, square, diamond, triangle, and so on round.
fn mark(svg: &mut String, kind: usize, x: f64, y: f64, colour: &str) {
    let shape = match kind % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"),
        1 => format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" fill=\"{colour}\"/>",
            x - 4.0,
            y - 4.0
        ),
        2 => format!("<path d=\"M{x:.1} {:.1} l5 5 l-5 5 l-5 -5 z\" fill=\"{colour}\"/>", y - 5.0),
        _ => format!("<path d=\"M{x:.1} {:.1} l5 9 l-10 0 z\" fill=\"{colour}\"/>", y - 5.0),
    };
    svg.push_str(&shape);
    svg.push('\n');
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str, attributes: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {attributes}>{}</text>",
        escape(content)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The smallest number not below `value` whose quarters are short to write; 1 for nothing.
fn nice(value: f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|&step| step >= value * 0.999_999)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{LatencySummary, Summary};
    use crate::suite;
    use crate::truth::Truth;

    fn point(key: &str, value: u64, ops_per_s: f64) -> Point {
        let latency = LatencySummary { p50: 1000, p90: 0, p99: 0, p999: 0, max: 0, mean: 0.0, count: 1 };
        let summary = Summary { ops_per_s, latency_ns: Some(latency), ..Summary::default() };
        let outcome = VariantOutcome {
            variant: key.into(),
            label: String::new(),
            clock: String::new(),
            summary,
            modelled: None,
            ground_truth: Truth::ZERO,
        };
        Point { value: Some(value), outcome: Some(outcome), ..Point::empty(key, Some(value)) }
    }

    #[test]
    fn axes_end_at_round_numbers_not_below_the_data() {
        assert_eq!([0.0, 1.0, 3.0, 20.8, 47_000.0, 99.0].map(nice), [1.0, 1.0, 3.0, 24.0, 50_000.0, 100.0]);
        assert_eq!(nice(f64::NAN), 1.0);
    }

    #[test]
    fn every_variant_has_a_line_and_all_text_is_escaped() {
        let about = suite::find("multi-qp").unwrap().about();
        let points = [point("a<b", 1, 10.0), point("a<b", 64, 20.0), point("c", 1, 5.0)];
        let svg = sweep(about, &points, "on <this>").unwrap();
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert!(svg.contains("a&lt;b") && svg.contains("on &lt;this&gt;") && !svg.contains("NaN"));
    }

    #[test]
    fn a_single_point_and_no_points_are_drawn_or_declined() {
        let about = suite::find("multi-qp").unwrap().about();
        assert!(sweep(about, &[point("a", 8, 10.0)], "").is_some_and(|svg| !svg.contains("NaN")));
        assert!(sweep(about, &[], "").is_none());
    }
}
