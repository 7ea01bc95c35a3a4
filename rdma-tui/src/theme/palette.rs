//! The themes' colours.

type Rgb = (u8, u8, u8);

/// The themes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Name {
    /// For dark terminals.
    #[default]
    Dark,
    /// For light terminals.
    Light,
    /// For colour-blind eyes, on dark terminals (the palette of Okabe and Ito).
    Safe,
    /// No colours.
    None,
}

impl Name {
    /// The theme after this one.
    pub fn next(self) -> Self {
        match self {
            Self::Dark => Self::Light,
            Self::Light => Self::Safe,
            Self::Safe => Self::None,
            Self::None => Self::Dark,
        }
    }

    /// Name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Dark => "dark",
            Self::Light => "light",
            Self::Safe => "colour-blind safe",
            Self::None => "no colours",
        }
    }
}

/// Colours by meaning.
#[derive(Debug, Clone)]
pub struct Palette {
    pub dim: Rgb,
    pub frame: Rgb,
    pub title: Rgb,
    pub key: Rgb,
    pub good: Rgb,
    pub warn: Rgb,
    pub bad: Rgb,
    pub selected: Rgb,
    pub series: [Rgb; 6],
    pub gradient: [Rgb; 3],
    pub heat: [Rgb; 5],
}

/// Viridis: even steps of lightness, so that it also reads in grey and for colour-blind eyes.
const VIRIDIS: [Rgb; 5] = [(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)];

pub fn of(name: Name) -> Palette {
    match name {
        Name::Dark | Name::None => Palette {
            dim: (139, 148, 166),
            frame: (76, 86, 106),
            title: (97, 200, 222),
            key: (235, 203, 139),
            good: (143, 202, 120),
            warn: (240, 190, 90),
            bad: (242, 108, 117),
            selected: (48, 58, 78),
            series: [
                (97, 175, 239),
                (198, 146, 233),
                (86, 194, 178),
                (229, 160, 96),
                (240, 130, 160),
                (160, 200, 110),
            ],
            gradient: [(62, 166, 160), (86, 160, 240), (214, 120, 224)],
            heat: VIRIDIS,
        },
        Name::Light => Palette {
            dim: (98, 104, 118),
            frame: (176, 182, 194),
            title: (0, 98, 140),
            key: (140, 82, 0),
            good: (22, 120, 40),
            warn: (160, 92, 0),
            bad: (190, 20, 40),
            selected: (214, 226, 244),
            series: [
                (20, 90, 190),
                (130, 50, 170),
                (0, 120, 110),
                (176, 84, 0),
                (190, 30, 100),
                (70, 110, 0),
            ],
            gradient: [(0, 140, 130), (20, 90, 190), (150, 40, 160)],
            heat: [(238, 242, 214), (160, 214, 180), (64, 170, 190), (36, 100, 170), (38, 30, 110)],
        },
        Name::Safe => Palette {
            dim: (150, 156, 166),
            frame: (86, 92, 104),
            title: (86, 180, 233),
            key: (240, 228, 66),
            good: (86, 180, 233),
            warn: (240, 228, 66),
            bad: (238, 120, 40),
            selected: (44, 60, 84),
            series: [
                (86, 180, 233),
                (230, 159, 0),
                (0, 178, 135),
                (240, 228, 66),
                (224, 150, 190),
                (238, 120, 40),
            ],
            gradient: [(0, 114, 178), (86, 180, 233), (240, 228, 66)],
            heat: VIRIDIS,
        },
    }
}

/// The colour at a place, 0–1, along a scale.
pub fn along(scale: &[Rgb], at: f64) -> Rgb {
    let at = if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 };
    let place = at * (scale.len() - 1) as f64;
    let low = (place as usize).min(scale.len() - 2);
    let t = place - low as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * t).round() as u8;
    let (a, b) = (scale[low], scale[low + 1]);
    (mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance((r, g, b): Rgb) -> f64 {
        let linear = |c: u8| {
            let c = f64::from(c) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    }

    fn contrast(a: Rgb, b: Rgb) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_is_readable_on_the_background_it_is_made_for() {
        for (name, background) in
            [(Name::Dark, (24, 26, 32)), (Name::Safe, (24, 26, 32)), (Name::Light, (255, 255, 255))]
        {
            let p = of(name);
            let texts = [p.dim, p.title, p.key, p.good, p.warn, p.bad];
            for color in texts.into_iter().chain(p.series) {
                let contrast = contrast(color, background);
                assert!(contrast >= 4.5, "{name:?} {color:?}: contrast {contrast:.1}, WCAG AA asks for 4.5");
            }
            assert!(contrast(p.dim, p.selected) >= 3.0, "{name:?}: dim text on the selected row");
        }
    }

    #[test]
    fn the_scale_survives_figures_beyond_its_ends() {
        let scale = [(0, 0, 0), (100, 100, 100)];
        assert_eq!(along(&scale, 0.5), (50, 50, 50));
        assert_eq!(along(&scale, f64::NAN), (0, 0, 0));
        assert_eq!(along(&scale, 7.0), (100, 100, 100));
    }
}
