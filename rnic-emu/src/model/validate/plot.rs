//! A series as an SVG drawing: published against modelled.

use std::fmt::Write;

use super::judge::Judged;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;

/// Maps values of one axis to places on the drawing.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let scale = |v: f64| if self.log { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let (low, high) = (scale(self.low), scale(self.high));
        let part = if high > low { (scale(value) - low) / (high - low) } else { 0.5 };
        self.from + part * (self.to - self.from)
    }
}

/// Draws one series. The modelled curve is a line, published points are rings, so that colour is not needed to tell them
/// apart.
pub fn plot(judged: &Judged) -> String {
    let s = &judged.series;
    let xs: Vec<f64> = judged.points.iter().map(|p| p.x).collect();
    let fold = |f: fn(f64, f64) -> f64| xs.iter().copied().fold(f64::NAN, f);
    let (low, high) = (fold(f64::min), fold(f64::max));
    let x = Axis { low, high, from: LEFT, to: WIDTH - RIGHT, log: low > 0.0 && high / low >= 16.0 };
    let top = judged
        .points
        .iter()
        .flat_map(|p| [p.published.unwrap_or(0.0), p.modelled])
        .filter(|v| v.is_finite())
        .fold(0.0, f64::max);
    let top = round_up(top);
    let y = Axis { low: 0.0, high: top, from: HEIGHT - BOTTOM, to: TOP, log: false };

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"13\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"34\" fill=\"#555\">{}</text>\n",
        escape(&s.title),
        escape(&format!("{}; {}; {}", s.profile, s.source, class(judged))),
    );
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let at = y.at(value);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            label(value)
        );
    }
    let mut last = f64::MIN;
    for &value in &xs {
        let at = x.at(value);
        if at - last > 34.0 {
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 16.0,
                label(value)
            );
            last = at;
        }
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
         <text x=\"14\" y=\"{:.1}\" transform=\"rotate(-90 14 {:.1})\" text-anchor=\"middle\">{}</text>\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 14.0,
        escape(&s.x),
        HEIGHT / 2.0,
        HEIGHT / 2.0,
        s.metric.unit()
    );
    let line: Vec<String> =
        judged.points.iter().map(|p| format!("{:.1},{:.1}", x.at(p.x), y.at(p.modelled))).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\"/>",
        line.join(" ")
    );
    for point in &judged.points {
        if let Some(published) = point.published {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"none\" stroke=\"#d55e00\" stroke-width=\"2\"/>",
                x.at(point.x),
                y.at(published)
            );
        }
    }
    svg.push_str(&legend());
    svg.push_str("</svg>\n");
    svg
}

fn legend() -> String {
    let (x, y) = (WIDTH - 150.0, TOP + 8.0);
    format!(
        "<line x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#0072b2\" stroke-width=\"2\"/>\n\
         <text x=\"{}\" y=\"{}\">modelled</text>\n\
         <circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"none\" stroke=\"#d55e00\" stroke-width=\"2\"/>\n\
         <text x=\"{}\" y=\"{}\">published</text>\n",
        x + 22.0,
        x + 28.0,
        y + 4.0,
        x + 11.0,
        y + 16.0,
        x + 28.0,
        y + 20.0,
    )
}

fn class(judged: &Judged) -> String {
    let class = serde_json::to_value(judged.series.class).ok();
    class.and_then(|c| c.as_str().map(|c| c.replace('_', " "))).unwrap_or_default()
}

/// The next 1, 2, 2.5 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|v| *v >= value).unwrap_or(value)
}

fn label(value: f64) -> String {
    for (unit, size) in [("Gi", 30u32), ("Mi", 20), ("Ki", 10)] {
        let scaled = value / f64::from(1u32 << size);
        if scaled >= 1.0 && scaled.fract() == 0.0 && value >= 4096.0 {
            return format!("{scaled}{unit}");
        }
    }
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
