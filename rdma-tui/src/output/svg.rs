//! A screen as a picture: one SVG, text as text, blocks as rectangles, so that it looks the same in every viewer.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Size of a character cell and of the letters in it, in pixels.
const CELL: (f64, f64) = (8.4, 18.0);
const FONT: f64 = 14.0;
const MARGIN: f64 = 12.0;

/// Colours of the window the screen is shown in.
#[derive(Debug, Clone, Copy)]
pub struct Paper {
    /// Behind everything.
    pub background: &'static str,
    /// Ordinary text.
    pub foreground: &'static str,
}

/// A dark window.
pub const DARK: Paper = Paper { background: "#16181d", foreground: "#d8dee9" };

/// A light window.
pub const LIGHT: Paper = Paper { background: "#ffffff", foreground: "#24292f" };

/// Draws `buffer`; `title` is what a reader who cannot see the picture is told.
pub fn svg(buffer: &Buffer, title: &str, paper: Paper) -> String {
    let (columns, rows) = (f64::from(buffer.area.width), f64::from(buffer.area.height));
    let (width, height) = (columns * CELL.0 + 2.0 * MARGIN, rows * CELL.1 + 2.0 * MARGIN);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img" font-family="'JetBrains Mono','DejaVu Sans Mono',Menlo,Consolas,monospace" font-size="{FONT}" shape-rendering="crispEdges" xml:space="preserve"><title>{}</title>"#,
        escape(title)
    );
    let _ = writeln!(out, r#"<rect width="100%" height="100%" rx="10" fill="{}"/>"#, paper.background);
    for y in 0..buffer.area.height {
        row(&mut out, buffer, y, paper);
    }
    out.push_str("</svg>\n");
    out
}

#[derive(PartialEq, Clone)]
struct Look {
    foreground: String,
    background: Option<String>,
    bold: bool,
    dim: bool,
    underlined: bool,
}

fn look(cell: &Cell, paper: Paper) -> Look {
    let mut foreground = hex(cell.fg).unwrap_or_else(|| paper.foreground.to_owned());
    let mut background = hex(cell.bg);
    if cell.modifier.contains(Modifier::REVERSED) {
        let behind = background.unwrap_or_else(|| paper.background.to_owned());
        background = Some(std::mem::replace(&mut foreground, behind));
    }
    Look {
        foreground,
        background,
        bold: cell.modifier.contains(Modifier::BOLD),
        dim: cell.modifier.contains(Modifier::DIM),
        underlined: cell.modifier.contains(Modifier::UNDERLINED),
    }
}

/// Runs of cells that look the same become one element.
fn row(out: &mut String, buffer: &Buffer, y: u16, paper: Paper) {
    let cells: Vec<&Cell> = (0..buffer.area.width).map(|x| &buffer[(x, y)]).collect();
    let mut start = 0;
    while start < cells.len() {
        let style = look(cells[start], paper);
        let mut end = start + 1;
        while end < cells.len() && look(cells[end], paper) == style {
            end += 1;
        }
        run(out, &cells[start..end], start, y, &style);
        start = end;
    }
}

fn run(out: &mut String, cells: &[&Cell], start: usize, y: u16, style: &Look) {
    let left = |i: usize| MARGIN + (start + i) as f64 * CELL.0;
    let top = MARGIN + f64::from(y) * CELL.1;
    if let Some(background) = &style.background {
        let width = cells.len() as f64 * CELL.0;
        let _ = writeln!(
            out,
            r#"<rect x="{:.1}" y="{top:.1}" width="{width:.1}" height="{:.1}" fill="{background}"/>"#,
            left(0),
            CELL.1
        );
    }
    let opacity = if style.dim { r#" opacity="0.6""# } else { "" };
    let mut text = String::new();
    let mut text_from = 0;
    let flush = |out: &mut String, text: &mut String, from: usize| {
        if !text.trim().is_empty() {
            let bold = if style.bold { r#" font-weight="bold""# } else { "" };
            let line = if style.underlined { r#" text-decoration="underline""# } else { "" };
            // The length is stated, so that another font than ours does not move what stands to the right.
            let length = text.chars().count() as f64 * CELL.0;
            let _ = writeln!(
                out,
                r#"<text x="{:.1}" y="{:.1}" fill="{}" textLength="{length:.1}"{bold}{line}{opacity}>{}</text>"#,
                left(from),
                top + FONT,
                style.foreground,
                escape(text)
            );
        }
        text.clear();
    };
    let mut i = 0;
    while i < cells.len() {
        let c = first(cells[i]);
        if let Some((x, y, w, h)) = block(c) {
            flush(out, &mut text, text_from);
            // Equal blocks that fill the width of their cells are one rectangle.
            let n = if w >= 1.0 { cells[i..].iter().take_while(|cell| first(cell) == c).count() } else { 1 };
            let _ = writeln!(
                out,
                r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{}"{opacity}{}/>"#,
                left(i) + x * CELL.0,
                top + y * CELL.1,
                (w + (n - 1) as f64) * CELL.0,
                (h * CELL.1).max(1.0),
                style.foreground,
                shade(c)
            );
            i += n;
            continue;
        }
        if let Some(path) = corner(c, left(i), top) {
            flush(out, &mut text, text_from);
            let _ = writeln!(
                out,
                r#"<path d="{path}" fill="none" stroke="{}"{opacity} shape-rendering="auto"/>"#,
                style.foreground
            );
        } else if !(text.is_empty() && c == ' ') {
            if text.is_empty() {
                text_from = i;
            }
            text.push(c);
        }
        i += 1;
    }
    while text.ends_with(' ') {
        text.pop();
    }
    flush(out, &mut text, text_from);
}

fn first(cell: &Cell) -> char {
    cell.symbol().chars().next().unwrap_or(' ')
}

/// The rounded corners of frames, from the middle of one side of the cell to the middle of another.
fn corner(c: char, x: f64, y: f64) -> Option<String> {
    let (middle_x, middle_y) = (x + CELL.0 * 0.5, y + CELL.1 * 0.5);
    let (end_x, end_y) = match c {
        '╭' => (x + CELL.0, y + CELL.1),
        '╮' => (x, y + CELL.1),
        '╰' => (x + CELL.0, y),
        '╯' => (x, y),
        _ => return None,
    };
    Some(format!("M{end_x:.1} {middle_y:.1} Q{middle_x:.1} {middle_y:.1} {middle_x:.1} {end_y:.1}"))
}

/// The part of its cell a block character fills: x, y, width, height, each 0–1.
fn block(c: char) -> Option<(f64, f64, f64, f64)> {
    Some(match c {
        '█' | '▓' | '▒' | '░' => (0.0, 0.0, 1.0, 1.0),
        '▁'..='▇' => {
            let height = f64::from(c as u32 - '▁' as u32 + 1) / 8.0;
            (0.0, 1.0 - height, 1.0, height)
        }
        '▉'..='▏' => {
            let width = f64::from(8 - (c as u32 - '█' as u32)) / 8.0;
            (0.0, 0.0, width, 1.0)
        }
        '─' => (0.0, 0.47, 1.0, 0.055),
        '│' => (0.45, 0.0, 0.12, 1.0),
        _ => return None,
    })
}

fn shade(c: char) -> &'static str {
    match c {
        '▓' => r#" fill-opacity="0.75""#,
        '▒' => r#" fill-opacity="0.5""#,
        '░' => r#" fill-opacity="0.25""#,
        _ => "",
    }
}

fn hex(color: Color) -> Option<String> {
    match color {
        Color::Rgb(r, g, b) => Some(format!("#{r:02x}{g:02x}{b:02x}")),
        _ => None,
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn text_stays_text_and_blocks_become_rectangles() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 1));
        buffer.set_string(0, 0, "a<b █▄", Style::new().fg(Color::Rgb(1, 2, 3)));
        let svg = svg(&buffer, "t & t", DARK);
        assert!(svg.contains("a&lt;b"), "{svg}");
        assert!(svg.contains("<title>t &amp; t</title>"));
        assert_eq!(svg.matches("<rect").count(), 3, "the paper and two blocks: {svg}");
        assert!(svg.contains("#010203"));
    }

    #[test]
    fn eighths_have_their_sizes() {
        assert_eq!(block('▄'), Some((0.0, 0.5, 1.0, 0.5)));
        assert_eq!(block('▌'), Some((0.0, 0.0, 0.5, 1.0)));
        assert_eq!(block('▏'), Some((0.0, 0.0, 0.125, 1.0)));
        assert_eq!(block('x'), None);
    }
}
