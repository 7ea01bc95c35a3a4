//! A screen as plain text.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::App;
use crate::app::page::Page;
use crate::app::world::World;
use crate::theme::Theme;
use crate::view;

/// Draws a page on a screen of some size that exists in memory only.
pub fn render(
    page: Page,
    world: &World,
    theme: &Theme,
    (width, height): (u16, u16),
    set_up: impl FnOnce(&mut App),
) -> Buffer {
    let mut app = App::new(world.source.origin);
    app.page = page;
    set_up(&mut app);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    // Twice: only drawing tells a table how many rows it has room for.
    for _ in 0..2 {
        app.refresh(world);
        buffer.reset();
        view::draw(&mut buffer, &app, world, theme);
    }
    buffer
}

/// The characters of a screen, line by line, without blanks at the ends.
pub fn lines(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let mut line = String::new();
        let mut skip = 0;
        for x in buffer.area.left()..buffer.area.right() {
            let symbol = buffer[(x, y)].symbol();
            if skip > 0 {
                skip -= 1;
                continue;
            }
            skip = unicode_width::UnicodeWidthStr::width(symbol).saturating_sub(1);
            line.push_str(symbol);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
