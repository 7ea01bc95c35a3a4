//! How many colours a terminal has, and the nearest it can show.

use std::ffi::OsStr;

use ratatui::style::Color;

/// Depth of colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// 24 bits.
    True,
    /// The 256 indexed colours.
    Indexed,
    /// The sixteen of old.
    Sixteen,
    /// None, by wish (`NO_COLOR`) or for want.
    None,
}

/// The sixteen colours as most terminals paint them.
const SIXTEEN: [((u8, u8, u8), Color); 14] = [
    ((205, 49, 49), Color::Red),
    ((13, 188, 121), Color::Green),
    ((200, 170, 16), Color::Yellow),
    ((36, 114, 200), Color::Blue),
    ((188, 63, 188), Color::Magenta),
    ((17, 168, 205), Color::Cyan),
    ((190, 190, 190), Color::Gray),
    ((102, 102, 102), Color::DarkGray),
    ((241, 76, 76), Color::LightRed),
    ((35, 209, 139), Color::LightGreen),
    ((245, 245, 67), Color::LightYellow),
    ((59, 142, 234), Color::LightBlue),
    ((214, 112, 214), Color::LightMagenta),
    ((41, 184, 219), Color::LightCyan),
];

impl Depth {
    /// What the environment tells: `NO_COLOR` (when not empty), `COLORTERM` and `TERM`.
    pub fn of_environment(no_color: Option<&OsStr>, colorterm: Option<&OsStr>, term: Option<&OsStr>) -> Self {
        let has = |text: Option<&OsStr>, part: &str| {
            text.is_some_and(|text| text.to_string_lossy().to_lowercase().contains(part))
        };
        if no_color.is_some_and(|v| !v.is_empty()) || term.is_some_and(|t| t == "dumb") {
            Self::None
        } else if has(colorterm, "truecolor") || has(colorterm, "24bit") || has(term, "direct") {
            Self::True
        } else if has(term, "256") || has(term, "kitty") || has(term, "alacritty") || has(term, "ghostty") {
            Self::Indexed
        } else if has(term, "vt100") || has(term, "vt102") || has(term, "vt220") {
            Self::None
        } else {
            Self::Sixteen
        }
    }

    /// The nearest colour this depth has.
    pub fn color(self, (r, g, b): (u8, u8, u8)) -> Option<Color> {
        match self {
            Self::True => Some(Color::Rgb(r, g, b)),
            Self::Indexed => Some(Color::Indexed(indexed((r, g, b)))),
            Self::Sixteen => {
                SIXTEEN.iter().min_by_key(|(known, _)| distance(*known, (r, g, b))).map(|(_, color)| *color)
            }
            Self::None => None,
        }
    }
}

fn distance(a: (u8, u8, u8), b: (u8, u8, u8)) -> u32 {
    let d = |x: u8, y: u8| u32::from(x.abs_diff(y)).pow(2);
    // The eye is most sensitive to green, least to blue.
    2 * d(a.0, b.0) + 4 * d(a.1, b.1) + 3 * d(a.2, b.2)
}

/// The nearest of the 6×6×6 cube (16–231) and the greys (232–255) of the indexed colours.
fn indexed(rgb: (u8, u8, u8)) -> u8 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let nearest = |v: u8| (0..6).min_by_key(|i| LEVELS[*i].abs_diff(v)).unwrap_or(0);
    let (r, g, b) = (nearest(rgb.0), nearest(rgb.1), nearest(rgb.2));
    let cube = (LEVELS[r], LEVELS[g], LEVELS[b]);
    let mean = (u32::from(rgb.0) + u32::from(rgb.1) + u32::from(rgb.2)) / 3;
    let step = (mean.saturating_sub(8) / 10).min(23);
    let grey = (8 + 10 * step) as u8;
    if distance((grey, grey, grey), rgb) < distance(cube, rgb) {
        232 + step as u8
    } else {
        (16 + 36 * r + 6 * g + b) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(no_color: Option<&str>, colorterm: Option<&str>, term: Option<&str>) -> Depth {
        Depth::of_environment(no_color.map(OsStr::new), colorterm.map(OsStr::new), term.map(OsStr::new))
    }

    #[test]
    fn the_environment_decides() {
        assert_eq!(depth(Some("1"), Some("truecolor"), Some("xterm-256color")), Depth::None);
        assert_eq!(
            depth(Some(""), Some("truecolor"), None),
            Depth::True,
            "an empty NO_COLOR asks for nothing"
        );
        assert_eq!(depth(None, None, Some("xterm-256color")), Depth::Indexed);
        assert_eq!(depth(None, None, Some("linux")), Depth::Sixteen);
        assert_eq!(depth(None, None, Some("dumb")), Depth::None);
        assert_eq!(depth(None, None, Some("vt100")), Depth::None);
        assert_eq!(depth(None, None, None), Depth::Sixteen);
    }

    #[test]
    fn the_nearest_colour_is_found() {
        assert_eq!(Depth::Indexed.color((255, 255, 255)), Some(Color::Indexed(231)));
        assert_eq!(Depth::Indexed.color((128, 128, 128)), Some(Color::Indexed(244)));
        assert_eq!(Depth::Sixteen.color((242, 108, 117)), Some(Color::LightRed));
        assert_eq!(Depth::None.color((1, 2, 3)), None);
    }
}
