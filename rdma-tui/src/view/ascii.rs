//! For terminals without Unicode: every character drawn is replaced by the ASCII one that comes nearest.

use ratatui::buffer::Buffer;

/// Replaces what is not ASCII.
pub fn reduce(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        let symbol = cell.symbol();
        if !symbol.is_ascii() {
            let replacement = symbol.chars().next().map_or(' ', nearest);
            cell.set_char(replacement);
        }
    }
}

/// The ASCII character nearest to `c`.
pub fn nearest(c: char) -> char {
    match c {
        '─' | '╌' | '┈' | '━' | '–' | '—' => '-',
        '│' | '┆' | '┊' | '▏' | '▎' | '▕' => '|',
        '╭' | '╮' | '╰' | '╯' | '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┬' | '┴' | '┼' => {
            '+'
        }
        '▁' | '▂' => '.',
        '▃' | '▄' => ':',
        '▅' | '▆' => '+',
        '▇' => '*',
        '█' | '▉' | '▊' | '▋' | '▓' => '#',
        '▌' | '▍' | '▒' => '=',
        '░' => '.',
        '·' | '•' => '.',
        '…' => '~',
        'µ' | 'μ' => 'u',
        '×' => 'x',
        '±' => '~',
        '≤' => '<',
        '≥' => '>',
        '●' => '*',
        '○' => 'o',
        '◐' => '%',
        '▲' => '!',
        '■' => 'X',
        '▶' | '›' | '→' | '▸' => '>',
        '◀' | '‹' | '←' => '<',
        '▾' | '▼' | '↓' => 'v',
        '▴' | '↑' => '^',
        '⏸' => '=',
        '✓' => '+',
        '✗' => 'x',
        '²' => '2',
        'ⁿ' => 'n',
        c if c.is_ascii() => c,
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn nothing_but_ascii_remains() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 20, 1));
        buffer.set_string(0, 0, "╭─ 12 µs ▲ 日本 █▁…", Style::new());
        reduce(&mut buffer);
        let text: String = buffer.content.iter().map(|c| c.symbol()).collect();
        assert!(text.is_ascii(), "{text}");
        assert!(text.starts_with("+- 12 us ! "), "{text}");
    }
}
