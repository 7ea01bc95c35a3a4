//! A profile: the parameters of one NIC and its host, each with its unit, source, confidence and plausible range.

mod keys;
mod load;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

pub use keys::{KEYS, Key, KeyDef};
pub use load::ProfileError;

/// How far a value can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Confidence {
    /// Published, and checked against other published figures.
    #[serde(rename = "H")]
    High,
    /// One source, or fitted to one.
    #[serde(rename = "M")]
    Medium,
    /// Inferred, or carried over from another NIC.
    #[serde(rename = "L")]
    Low,
    /// No source.
    #[serde(rename = "guess")]
    Guess,
}

impl FromStr for Confidence {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "H" => Ok(Self::High),
            "M" => Ok(Self::Medium),
            "L" => Ok(Self::Low),
            "guess" => Ok(Self::Guess),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::High => "H",
            Self::Medium => "M",
            Self::Low => "L",
            Self::Guess => "guess",
        })
    }
}

/// One parameter's value and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// The value, in the unit of its [`KeyDef`].
    pub value: f64,
    /// Where it was published, or how it was inferred.
    pub source: String,
    /// How far to trust it.
    pub confidence: Confidence,
    /// Least and greatest plausible value.
    pub range: (f64, f64),
}

/// The parameters of one NIC and its host.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    name: String,
    about: String,
    params: Vec<Param>,
}

/// Profiles that come with the product.
const BUILTIN: &[(&str, &str)] = &[
    ("cx3-like", include_str!("../../../profiles/cx3-like.toml")),
    ("cx5-like", include_str!("../../../profiles/cx5-like.toml")),
    ("cx6-like", include_str!("../../../profiles/cx6-like.toml")),
    ("article", include_str!("../../../profiles/article.toml")),
];

impl Profile {
    /// Names of the profiles that come with the product.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// A profile that comes with the product.
    pub fn builtin(name: &str) -> Result<Self, ProfileError> {
        match BUILTIN.iter().find(|(n, _)| *n == name) {
            Some((name, text)) => Self::parse(text, name),
            None => Err(ProfileError::Unknown {
                name: name.to_owned(),
                known: Self::names().collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// A built-in profile by name, or a file by path (anything with a `/` or ending in `.toml`).
    pub fn resolve(name_or_path: &str) -> Result<Self, ProfileError> {
        if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
            Self::read(Path::new(name_or_path))
        } else {
            Self::builtin(name_or_path)
        }
    }

    /// Reads a profile from a file of at most 1 MiB.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        load::read(path)
    }

    /// Parses a profile. `origin` names it in errors, and is its name unless the text gives one.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ProfileError> {
        load::parse(text, origin)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it stands for, in a sentence.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// A parameter's value.
    pub fn get(&self, key: Key) -> f64 {
        self.params[key as usize].value
    }

    /// A parameter with its source, confidence and range.
    pub fn param(&self, key: Key) -> &Param {
        &self.params[key as usize]
    }

    /// The same profile with one value changed; refused where the value makes no sense.
    pub fn with(&self, key: Key, value: f64) -> Result<Self, ProfileError> {
        let mut changed = self.clone();
        changed.set(key, value)?;
        Ok(changed)
    }

    /// Changes one value; refused where the value makes no sense.
    pub fn set(&mut self, key: Key, value: f64) -> Result<(), ProfileError> {
        load::check(key.def(), value, &self.name)?;
        let param = &mut self.params[key as usize];
        param.value = value;
        param.range = (param.range.0.min(value), param.range.1.max(value));
        Ok(())
    }

    /// Parameters whose plausible range is wider than a point: what the model is unsure of.
    pub fn uncertain(&self) -> impl Iterator<Item = (Key, &Param)> {
        KEYS.iter().map(|d| (d.key, self.param(d.key))).filter(|(_, p)| p.range.0 < p.range.1)
    }
}
