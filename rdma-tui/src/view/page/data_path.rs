//! Data path: posting and completing work.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::super::Context;
use super::super::widgets::{explain, panel::panel};

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let inside = panel(buf, area, "Data path", "", context.theme);
    let what = "this recording holds no data-path figures (posts, completions, sizes, latency);\nit was made by a version, or with options, that watch the control path only";
    explain(buf, inside, &super::nothing_yet(context, what), context.theme.dim());
}
