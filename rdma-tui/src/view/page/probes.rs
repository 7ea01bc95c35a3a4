//! Probes: the verdict of each, what it counted, and what was missed.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use probe_user::model::Model;

use crate::app::format::{count, duration, harmless};
use crate::app::totals;

use super::super::Context;
use super::super::widgets::facts::{Fact, facts};
use super::super::widgets::{bar, explain, panel::panel, put};

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let (top, rest) = super::split_top(area, 7);
    let pieces = super::columns(top, &[1, 1]);
    verdicts(buf, pieces[0], context);
    lost(buf, pieces[1], context);
    super::list(buf, rest, context, &super::nothing_yet(context, "no probe has reported a verdict"));
}

fn verdicts(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let counts = totals::verdicts(&world.model);
    let inside = panel(buf, area, "Verdicts", &format!("{} probes", world.model.probes.len()), theme);
    if world.model.probes.is_empty() {
        explain(buf, inside, &super::nothing_yet(context, "no probe has reported a verdict"), theme.dim());
        return;
    }
    let pieces = [
        (counts.live, theme.good(), "█", "live"),
        (counts.sampled, theme.series(0), "▓", "sampled"),
        (counts.not_here, theme.dim(), "░", "not here"),
        (counts.denied, theme.warn(), "▒", "denied"),
        (counts.broken, theme.bad(), "X", "broken"),
        (counts.unknown, theme.dim(), "?", "unknown"),
    ];
    let bars: Vec<_> = pieces.iter().map(|(n, style, fill, _)| (*n as f64, *style, *fill)).collect();
    bar::parts(buf, inside.x, inside.y, inside.width, &bars);
    let mut x = inside.x;
    let mut y = inside.y + 1;
    for (n, style, fill, name) in pieces.iter().filter(|(n, ..)| *n > 0) {
        let text = format!("{n} {name}");
        if x + text.len() as u16 + 4 > inside.right() {
            (x, y) = (inside.x, y + 1);
        }
        if y >= inside.bottom() {
            return;
        }
        x += put(buf, x, y, fill, 1, *style) + 1;
        x += put(buf, x, y, &text, inside.right().saturating_sub(x), theme.text()) + 2;
    }
    if y + 1 < inside.bottom() && counts.denied > 0 {
        put(buf, inside.x, y + 1, "▲ denied: the table names what is missing", inside.width, theme.warn());
    }
}

fn lost(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let inside = panel(buf, area, "What was missed", "0 everywhere: every count is exact", theme);
    let lost = world.model.lost();
    let fact = |label, n: u64, says: &str| {
        let style = if n > 0 { theme.bad() } else { theme.dim() };
        Fact::new(label, format!("{:<8} {says}", count(n as f64))).styled(style)
    };
    let list = [
        fact("events", lost.ring_events, "ring buffer full; counts are not affected"),
        fact("returns", lost.unpaired, "entry not remembered: table full"),
        fact("kernel returns", lost.kernel_returns, "no free return-probe slot"),
        fact("uncounted", lost.uncounted, "counter table full: counts are too low"),
        fact("records", world.source.dropped_records, "not read from the collector in time"),
    ];
    let late = late(&world.model).map(|fact| fact.styled(theme.warn()));
    facts(buf, inside, &list.into_iter().chain(late).collect::<Vec<_>>(), theme);
}

/// What may have been called before the probes were in place.
pub(super) fn late(model: &Model) -> Option<Fact> {
    let (file, late_ns) = model.latest_probes()?;
    let name = harmless(file.rsplit('/').next().unwrap_or(file));
    Some(Fact::new("late", format!("▲ {name} was watched {} after it was loaded", duration(late_ns as f64))))
}
