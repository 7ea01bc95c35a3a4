//! Findings: what is wrong, with evidence, cause and remedy.

use probe_user::doctor::{Finding, Severity};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::table::{Row, TableId, row};
use crate::theme::Theme;

use super::super::Context;
use super::super::detail;
use super::super::widgets::{explain, panel::panel, put, put_right};

/// Nothing to judge, and nothing wrong, are different things.
fn none(context: Context<'_>) -> String {
    if context.world.model.processes.is_empty() {
        return super::nothing_yet(context, "nothing was seen that could be judged");
    }
    if !context.world.is_judged() {
        return "what was seen so far is judged with the first sample".to_owned();
    }
    "no finding: none of the rules on what was seen fires".to_owned()
}

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let rows = u16::try_from(app.table(TableId::Findings).rows.len()).unwrap_or(u16::MAX);
    let (top, rest) = super::split_top(area, rows.saturating_add(4).max(7).min(area.height / 2));
    super::list(buf, top, context, &none(context));
    let key = app.table(TableId::Findings).selection();
    let Some(Row::Finding(finding)) = key.and_then(|key| row(key, world)) else { return };
    let inside = panel(buf, rest, "Why, and what to do", "y copies · Enter opens", theme);
    let lines = detail::finding(finding, inside.width, theme);
    detail::draw_lines(buf, inside, &lines, 0);
}

/// How a severity looks.
pub fn style(severity: Severity, theme: &Theme) -> ratatui::style::Style {
    match severity {
        Severity::Note => theme.dim(),
        Severity::Warning => theme.warn(),
        Severity::Problem => theme.bad(),
    }
}

/// The first of them, for the overview.
pub fn top(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let findings: &[Finding] = world.findings();
    if findings.is_empty() {
        let text = none(context);
        explain(buf, area, &text, theme.dim());
        return;
    }
    for (y, finding) in (area.y..area.bottom()).zip(findings) {
        put(buf, area.x, y, finding.severity.mark(), 1, style(finding.severity, theme));
        put_right(buf, area.x, y, finding.comm(), area.width, theme.series(0));
        let room = area.width.saturating_sub(3 + finding.comm().chars().count() as u16);
        put(buf, area.x + 2, y, &finding.title, room, theme.text());
    }
}
