//! Colours by what they mean, for dark and light terminals, colour-blind eyes, sixteen colours or none at all.
//!
//! Colour is never the only carrier: whatever it says is also said by a word, a mark or a place.

mod depth;
mod palette;

use ratatui::style::{Color, Modifier, Style};

pub use depth::Depth;
pub use palette::Name;

use palette::Palette;

/// How everything looks.
#[derive(Debug, Clone)]
pub struct Theme {
    /// Which theme.
    pub name: Name,
    depth: Depth,
    palette: Palette,
    /// Draw with ASCII characters only.
    pub ascii: bool,
}

impl Theme {
    /// A theme on a terminal of some depth of colour.
    pub fn new(name: Name, depth: Depth, ascii: bool) -> Self {
        let depth = if name == Name::None { Depth::None } else { depth };
        Self { name, depth, palette: palette::of(name), ascii }
    }

    /// The next theme, on the same terminal.
    pub fn next(&self, depth: Depth) -> Self {
        Self::new(self.name.next(), depth, self.ascii)
    }

    fn foreground(&self, rgb: (u8, u8, u8)) -> Style {
        match self.depth.color(rgb) {
            Some(color) => Style::new().fg(color),
            None => Style::new(),
        }
    }

    /// Ordinary text.
    pub fn text(&self) -> Style {
        Style::new()
    }

    /// What matters less: units, headings, frames.
    pub fn dim(&self) -> Style {
        match self.depth {
            Depth::None => Style::new().add_modifier(Modifier::DIM),
            _ => self.foreground(self.palette.dim),
        }
    }

    /// Frames and rules.
    pub fn frame(&self) -> Style {
        match self.depth {
            Depth::None => Style::new().add_modifier(Modifier::DIM),
            _ => self.foreground(self.palette.frame),
        }
    }

    /// Titles.
    pub fn title(&self) -> Style {
        self.foreground(self.palette.title).add_modifier(Modifier::BOLD)
    }

    /// Figures that a panel is about.
    pub fn strong(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Keys, and what can be chosen.
    pub fn key(&self) -> Style {
        self.foreground(self.palette.key).add_modifier(Modifier::BOLD)
    }

    /// All is well.
    pub fn good(&self) -> Style {
        self.foreground(self.palette.good)
    }

    /// Worth a look.
    pub fn warn(&self) -> Style {
        self.foreground(self.palette.warn).add_modifier(Modifier::BOLD)
    }

    /// Wrong.
    pub fn bad(&self) -> Style {
        self.foreground(self.palette.bad).add_modifier(Modifier::BOLD)
    }

    /// One of several series in a chart.
    pub fn series(&self, index: usize) -> Style {
        self.foreground(self.palette.series[index % self.palette.series.len()])
    }

    /// The selected row. Without colours it is reversed; it also carries a mark.
    pub fn selected(&self) -> Style {
        match self.depth.color(self.palette.selected) {
            Some(color) if !matches!(self.depth, Depth::Sixteen) => {
                Style::new().bg(color).add_modifier(Modifier::BOLD)
            }
            _ => Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    /// The page one is on.
    pub fn tab(&self) -> Style {
        match self.depth {
            Depth::None => Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
            _ => self.foreground(self.palette.title).add_modifier(Modifier::REVERSED | Modifier::BOLD),
        }
    }

    /// A place along a scale, 0–1, for filled charts: the higher the hotter.
    pub fn gradient(&self, at: f64) -> Style {
        self.foreground(palette::along(&self.palette.gradient, at))
    }

    /// A place along the scale of a heat map, 0–1. `None` where colours are too few to carry it.
    pub fn heat(&self, at: f64) -> Option<Color> {
        match self.depth {
            Depth::True | Depth::Indexed => self.depth.color(palette::along(&self.palette.heat, at)),
            Depth::Sixteen | Depth::None => None,
        }
    }

    /// Style of a heat map's characters where it must do without background colours.
    pub fn heat_text(&self, at: f64) -> Style {
        self.foreground(palette::along(&self.palette.heat, at))
    }
}
