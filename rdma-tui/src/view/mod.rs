//! Drawing: one file per page, none of them decides anything.

mod ascii;
mod detail;
mod footer;
mod header;
mod help;
mod page;
mod widgets;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::App;
use crate::app::page::Page;
use crate::app::world::World;
use crate::theme::Theme;

/// The smallest screen anything is drawn on, columns and rows; below it only a message.
pub const SMALLEST: (u16, u16) = (60, 16);

/// What a page is drawn from.
#[derive(Clone, Copy)]
struct Context<'a> {
    app: &'a App,
    world: &'a World,
    theme: &'a Theme,
}

/// Draws everything.
pub fn draw(buf: &mut Buffer, app: &App, world: &World, theme: &Theme) {
    let area = buf.area;
    let context = Context { app, world, theme };
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!(
            "rdma-tui needs {} × {} characters, this terminal has {} × {}.\nMake it larger, or press q.",
            SMALLEST.0, SMALLEST.1, area.width, area.height
        );
        widgets::explain(buf, area, &text, theme.text());
    } else {
        header::draw(buf, Rect { height: 2, ..area }, context);
        let body = Rect { y: area.y + 2, height: area.height - 3, ..area };
        if let Some(scroll) = app.help {
            help::draw(buf, body, scroll, context);
        } else if let Some((key, scroll)) = app.details.last() {
            detail::draw(buf, body, key, *scroll, context);
        } else {
            page(buf, body, context);
        }
        footer::draw(buf, Rect { y: area.bottom() - 1, height: 1, ..area }, context);
    }
    if theme.ascii {
        ascii::reduce(buf);
    }
}

fn page(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    match context.app.page {
        Page::Overview => page::overview::draw(buf, area, context),
        Page::Registration => page::registration::draw(buf, area, context),
        Page::Queues => page::queues::draw(buf, area, context),
        Page::DataPath => page::data_path::draw(buf, area, context),
        Page::Findings => page::findings::draw(buf, area, context),
        Page::Workloads => page::workloads::draw(buf, area, context),
        Page::Nic => page::nic::draw(buf, area, context),
        Page::Probes => page::probes::draw(buf, area, context),
    }
}
