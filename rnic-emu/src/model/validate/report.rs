//! The validation as a table for people and as JSON for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use super::judge::{Judged, Summary};
use super::series::Class;

fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Fitted => "fitted",
        Class::HeldOut => "held out",
        Class::Contradicted => "contradicted",
        Class::Control => "control",
    }
}

/// A number short enough for a table.
fn short(value: f64) -> String {
    if value.abs() >= 1e5 && value.fract() == 0.0 {
        for (unit, size) in [("Gi", 30), ("Mi", 20), ("Ki", 10)] {
            let scaled = value / f64::from(1u32 << size);
            if scaled >= 1.0 && scaled.fract() == 0.0 {
                return format!("{scaled}{unit}");
            }
        }
    }
    if value.fract() == 0.0 || value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// The table: every series with its points, then the summary.
pub fn table(all: &[Judged], summaries: &[Summary]) -> String {
    let mut out = String::new();
    for judged in all {
        let s = &judged.series;
        let _ = writeln!(out, "{} [{}] {}", s.id, class(s.class), s.title);
        let _ = writeln!(out, "  {} ({}), profile {}", s.source, s.quality, s.profile);
        for (key, value) in &s.set {
            let _ = writeln!(out, "  with {} = {}", key.def().name, short(*value));
        }
        let _ = writeln!(
            out,
            "  {:>12} {:>12} {:>12} {:>9}",
            s.x,
            format!("published {}", s.metric.unit()),
            "modelled",
            "error"
        );
        for point in &judged.points {
            let published = point.published.map_or("-".to_owned(), short);
            let error = point.error.map_or("-".to_owned(), percent);
            let _ = writeln!(
                out,
                "  {:>12} {:>12} {:>12} {:>9}",
                short(point.x),
                published,
                format!("{:.2}", point.modelled),
                error
            );
        }
        if let (Some(median), Some(p90)) = (judged.median, judged.p90) {
            let _ = writeln!(
                out,
                "  median error {:.1} %, nine in ten within {:.1} %",
                median * 100.0,
                p90 * 100.0
            );
        }
        if let Some((published, modelled)) = judged.knee {
            let _ = writeln!(
                out,
                "  knee published {} modelled {} (factor {:.2})",
                short(published.round()),
                short(modelled.round()),
                (published / modelled).max(modelled / published)
            );
        } else if s.knee.is_some() {
            let _ = writeln!(out, "  knee: not found in both");
        }
        if let Some(control) = judged.control {
            let word = if control.holds { "holds" } else { "FAILS" };
            let _ = writeln!(out, "  control {word}: farthest {}", percent(control.farthest));
        }
        if !s.note.is_empty() {
            let _ = writeln!(out, "  note: {}", s.note);
        }
        out.push('\n');
    }
    out.push_str(&summary(summaries, all));
    out
}

fn summary(summaries: &[Summary], all: &[Judged]) -> String {
    let mut out = format!(
        "{:<20}{:>7}{:>8}{:>9}{:>9}{:>9}{:>13}{:>13}{:>10}\n",
        "class", "series", "points", "median", "p90", "worst", "within 10 %", "within 20 %", "knees ok"
    );
    for s in summaries {
        let [name, rest @ ..] = cells(s);
        let [series, points, median, p90, worst, ten, twenty, knees] = rest;
        let _ = writeln!(
            out,
            "{name:<20}{series:>7}{points:>8}{median:>9}{p90:>9}{worst:>9}{ten:>13}{twenty:>13}{knees:>10}"
        );
    }
    let _ = writeln!(out, "{}", controls(all));
    out.push_str("Only the held-out rows are validation.\n");
    out
}

fn cells(s: &Summary) -> [String; 9] {
    let pc = |share: f64| format!("{:.1} %", share * 100.0);
    [
        s.profile.as_ref().map_or_else(|| class(s.class).to_owned(), |p| format!("  of {p}")),
        s.series.to_string(),
        s.points.to_string(),
        pc(s.median),
        pc(s.p90),
        pc(s.worst),
        pc(s.within.0),
        pc(s.within.1),
        format!("{} of {}", s.knees.0, s.knees.1),
    ]
}

fn controls(all: &[Judged]) -> String {
    let controls: Vec<_> = all.iter().filter_map(|j| j.control).collect();
    format!("negative controls: {} of {} hold", controls.iter().filter(|c| c.holds).count(), controls.len())
}

/// The validation as Markdown, for the documentation: the summary, then a line per series.
pub fn markdown(all: &[Judged], summaries: &[Summary]) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head = |names: &[&str]| format!("| {} |\n|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let mut out = head(&[
        "class",
        "series",
        "points",
        "median error",
        "9 in 10 within",
        "worst",
        "within 10 %",
        "within 20 %",
        "knees within 1.5×",
    ]);
    for s in summaries {
        out.push_str(&row(&cells(s).map(|c| c.trim().to_owned())));
    }
    let _ = write!(out, "\n{}. Only the held-out rows are validation.\n\n", controls(all));
    out.push_str(&head(&[
        "series", "class", "profile", "source", "points", "median", "9 in 10", "worst", "knee",
    ]));
    for judged in all {
        let s = &judged.series;
        let pc = |share: Option<f64>| share.map_or("–".to_owned(), |e| format!("{:.1} %", e * 100.0));
        let worst = judged.points.iter().filter_map(|p| p.error).max_by(|a, b| a.abs().total_cmp(&b.abs()));
        let knee = match (judged.knee, judged.control) {
            (Some((published, modelled)), _) => {
                format!("{} / {}", short(published.round()), short(modelled.round()))
            }
            (None, Some(control)) => (if control.holds { "holds" } else { "FAILS" }).to_owned(),
            _ => "–".to_owned(),
        };
        let cells = [
            format!("{} (`{}`)", s.title, s.id),
            class(s.class).to_owned(),
            s.profile.clone(),
            s.source.clone(),
            judged.points.len().to_string(),
            pc(judged.median),
            pc(judged.p90),
            worst.map_or("–".to_owned(), percent),
            knee,
        ];
        out.push_str(&row(&cells));
    }
    out
}

/// Everything, for programs.
pub fn json(all: &[Judged], summaries: &[Summary]) -> Value {
    let series: Vec<Value> = all
        .iter()
        .map(|judged| {
            let s = &judged.series;
            json!({
                "id": s.id,
                "title": s.title,
                "source": s.source,
                "quality": s.quality,
                "class": s.class,
                "profile": s.profile,
                "set": s.set.iter().map(|(k, v)| (k.def().name.to_owned(), json!(v))).collect::<serde_json::Map<_, _>>(),
                "x": s.x,
                "unit": s.metric.unit(),
                "points": judged.points,
                "median_error": judged.median,
                "p90_error": judged.p90,
                "knee": judged.knee.map(|(p, m)| json!({ "published": p, "modelled": m })),
                "control": judged.control,
                "note": s.note,
            })
        })
        .collect();
    json!({ "series": series, "summary": summaries })
}
