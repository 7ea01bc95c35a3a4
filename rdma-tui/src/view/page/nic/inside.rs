//! The inside of an emulated device: caches, units, and where a request's time goes.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::format::{Unit, number, share};
use crate::app::inside::Inside;
use crate::theme::Theme;
use crate::view::widgets::{bar, panel::panel, put, put_right};

/// Lines it needs to show everything, frame included.
pub const HEIGHT: u16 = 13;

/// Draws it: three columns where there is room, else the stages alone.
pub fn draw(buf: &mut Buffer, area: Rect, name: &str, inside: &Inside, theme: &Theme) {
    let per = number(inside.stages.iter().map(|stage| stage.ns).sum(), Unit::Nanoseconds);
    let note = format!("{} requests, {per} each", number(inside.completed as f64, Unit::Count));
    let title = format!("Inside {name}, modelled");
    if area.width < 110 {
        let within = panel(buf, area, &title, &note, theme);
        stages(buf, within, inside, theme);
        return;
    }
    let pieces = super::super::columns(area, &[4, 3, 3]);
    let within = panel(buf, pieces[0], &title, &note, theme);
    stages(buf, within, inside, theme);
    let within = panel(buf, pieces[1], "Its caches", "hit rate", theme);
    caches(buf, within, inside, theme);
    let within = panel(buf, pieces[2], "Its units", "how many busy", theme);
    units(buf, within, inside, theme);
}

fn stages(buf: &mut Buffer, area: Rect, inside: &Inside, theme: &Theme) {
    let most = inside.stages.iter().map(|stage| stage.ns).fold(f64::MIN_POSITIVE, f64::max);
    for (y, stage) in (area.y..area.bottom()).zip(&inside.stages) {
        let missing = stage.name.starts_with("missing");
        let style = if missing { theme.bad() } else { theme.series(0) };
        line(buf, area, y, stage.name, &number(stage.ns, Unit::Nanoseconds), (stage.ns / most, style), theme);
    }
}

fn caches(buf: &mut Buffer, area: Rect, inside: &Inside, theme: &Theme) {
    for (y, cache) in (area.y..area.bottom()).zip(&inside.caches) {
        let rate = cache.hits as f64 / cache.lookups as f64;
        let style = if rate < 0.9 { theme.warn() } else { theme.good() };
        line(buf, area, y, cache.name, &share(rate), (rate, style), theme);
    }
}

fn units(buf: &mut Buffer, area: Rect, inside: &Inside, theme: &Theme) {
    for (y, unit) in (area.y..area.bottom()).zip(&inside.units) {
        line(buf, area, y, unit.name, &number(unit.busy, Unit::Ratio), (unit.busy, theme.series(1)), theme);
    }
}

/// A label, a bar of a share, and its figure.
fn line(
    buf: &mut Buffer,
    area: Rect,
    y: u16,
    label: &str,
    figure: &str,
    (share, style): (f64, ratatui::style::Style),
    theme: &Theme,
) {
    let (label_width, figure_width) = ((area.width * 3 / 5).min(23), 8);
    put(buf, area.x, y, label, label_width.saturating_sub(1), theme.dim());
    let room = area.width.saturating_sub(label_width + figure_width + 1);
    bar::bar(buf, area.x + label_width, y, room, share, style, theme.frame());
    put_right(buf, area.x, y, figure, area.width, theme.text());
}
