//! Findings: what is wrong, by evidence, with cause and remedy.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::super::Context;
use super::super::widgets::{explain, panel::panel};

const NONE: &str =
    "this version has no rules that find faults yet;\nwhat the pages mark with ▲ is worth a look";

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let inside = panel(buf, area, "Findings", "", context.theme);
    explain(buf, inside, &super::nothing_yet(context, NONE), context.theme.dim());
}

/// The first of them, for the overview.
pub fn top(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    explain(buf, area, &super::nothing_yet(context, NONE), context.theme.dim());
}
