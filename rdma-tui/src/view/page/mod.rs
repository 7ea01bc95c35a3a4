//! The pages.

pub mod data_path;
pub mod findings;
pub mod nic;
pub mod overview;
pub mod probes;
pub mod queues;
pub mod registration;
pub mod workloads;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::app::table::{Column, Row, TableId};
use crate::app::value::Value;
use crate::app::world::Status;
use crate::theme::Theme;

use super::Context;
use super::widgets::{panel::panel, table::table};

/// Draws the page's table in a panel of its own.
fn list(buf: &mut Buffer, area: Rect, context: Context<'_>, empty: &str) {
    let Some(id) = context.app.table_id() else { return };
    list_of(buf, area, id, context, empty);
}

fn list_of(buf: &mut Buffer, area: Rect, id: TableId, context: Context<'_>, empty: &str) {
    let state = context.app.table(id);
    let (shown, all) = (state.rows.len(), state.unfiltered);
    let place = if shown == 0 { 0 } else { state.selected + 1 };
    let note = if shown == all { format!("{place}/{all}") } else { format!("{place}/{shown} of {all}") };
    let main = context.app.table_id() == Some(id);
    let inside = panel(buf, area, id.title(), if main { &note } else { "" }, context.theme);
    table(buf, inside, state, context.world, accent, empty, main, context.theme);
}

/// Cells whose content is good or bad news; each of them also says so in words or figures.
fn accent(column: &Column, value: &Value<'_>, _row: &Row<'_>, theme: &Theme) -> Option<Style> {
    match (column.key, value) {
        ("failed" | "reg.failed" | "qp.failed", Value::Number(n)) if *n > 0.0 => Some(theme.bad()),
        ("reg.repeated", Value::Number(n)) if *n >= 0.5 => Some(theme.warn()),
        ("qp.state", Value::Text(state)) => Some(match state.as_ref() {
            "RTS" => theme.good(),
            "ERR" | "SQE" => theme.bad(),
            _ => theme.text(),
        }),
        ("state", Value::Text(state)) if state == "ended" => Some(theme.dim()),
        ("probe.verdict", Value::Text(verdict)) => Some(match verdict.as_ref() {
            "live" | "sampled" => theme.good(),
            "denied" => theme.warn(),
            "broken" => theme.bad(),
            _ => theme.dim(),
        }),
        ("finding.severity", Value::Text(severity)) => Some(match severity.chars().next() {
            Some('■') => theme.bad(),
            Some('▲') => theme.warn(),
            _ => theme.dim(),
        }),
        ("comm" | "workload" | "probe" | "counter", _) => Some(theme.series(0)),
        ("workload.effect", Value::Number(n)) => Some(if *n >= 1.05 { theme.good() } else { theme.text() }),
        _ => None,
    }
}

/// Why there is nothing to show, as far as the source of records explains it.
fn nothing_yet(context: Context<'_>, what: &str) -> String {
    match &context.world.source.status {
        Status::Waiting => "no data yet: waiting for the first sample".to_owned(),
        Status::Loading => "no data yet: the trace is being read".to_owned(),
        Status::Failed(why) => format!("no data: {why}"),
        Status::Running | Status::Standing | Status::Ended(_) => format!("no data: {what}"),
    }
}

/// Cuts `area` into what the page's table needs and a rest for other panels; the rest is empty where it would be lower
/// than `least`.
fn fitted(area: Rect, context: Context<'_>, least: u16) -> (Rect, Rect) {
    let rows = context.app.table_id().map_or(0, |table| context.app.table(table).rows.len());
    let wanted = u16::try_from(rows + 4).unwrap_or(u16::MAX).max(8);
    if area.height.saturating_sub(wanted) < least {
        return (area, Rect { y: area.bottom(), height: 0, ..area });
    }
    split_top(area, wanted)
}

/// Cuts `area` into pieces side by side, of the given shares.
fn columns(area: Rect, shares: &[u16]) -> Vec<Rect> {
    let total: u16 = shares.iter().sum::<u16>().max(1);
    let mut x = area.x;
    let mut sum = 0;
    shares
        .iter()
        .map(|share| {
            sum += share;
            let right = area.x + (u32::from(area.width) * u32::from(sum) / u32::from(total)) as u16;
            let piece = Rect { x, width: right - x, ..area };
            x = right;
            piece
        })
        .collect()
}

/// Cuts `height` lines off the top of `area`.
fn split_top(area: Rect, height: u16) -> (Rect, Rect) {
    let height = height.min(area.height);
    (Rect { height, ..area }, Rect { y: area.y + height, height: area.height - height, ..area })
}
