//! Published series as data: what was measured, on which load, where it was published.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::model::drive::LoadSpec;
use crate::model::profile::{Key, Profile, ProfileError};

/// What a series is used for. Declared in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Parameters were set by it.
    Fitted,
    /// No parameter was set by it: its error is the validation.
    HeldOut,
    /// Another published series on the same NIC says otherwise.
    Contradicted,
    /// An effect that must not appear.
    Control,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Million requests per second.
    Mops,
    /// Rate over that of the first point.
    Relative,
    /// Mean latency in microseconds.
    LatencyUs,
    /// Time to register a region, in microseconds.
    RegisterUs,
    /// Time to deregister a region, in microseconds.
    DeregisterUs,
}

impl Metric {
    /// Unit for people.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Mops => "Mops",
            Self::Relative => "times",
            Self::LatencyUs | Self::RegisterUs | Self::DeregisterUs => "us",
        }
    }
}

/// How a control is judged, in terms of the modelled values alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// No value is farther than this share from the first.
    Flat(f64),
    /// No value is above the first by more than this share.
    NotAbove(f64),
    /// No value is below the first by more than this share.
    NotBelow(f64),
}

/// One measured point.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Place on the x axis.
    pub x: f64,
    /// Published value; none for a control without figures.
    pub published: Option<f64>,
    /// The load.
    pub load: LoadSpec,
}

/// One published series.
#[derive(Clone, Debug)]
pub struct Series {
    /// Short name.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Where it was published.
    pub source: String,
    /// `raw` data, `txt`, or read off a `fig`ure (5 to 10 % uncertain).
    pub quality: String,
    /// What it is used for.
    pub class: Class,
    /// What was measured.
    pub metric: Metric,
    /// What the x axis is.
    pub x: String,
    /// Profile it is held against.
    pub profile: String,
    /// Facts of the measured system that differ from the profile's, with the reason in `note`.
    pub set: Vec<(Key, f64)>,
    /// Judgement of a control.
    pub control: Option<Control>,
    /// A knee is looked for where the value has fallen to this share of its greatest.
    pub knee: Option<f64>,
    /// What was assumed where the source does not say, or which mechanism is missing.
    pub note: String,
    /// Its points.
    pub points: Vec<Point>,
}

/// Why a series file was refused.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// Not TOML, or not of the right form.
    #[error("series file \"{origin}\": {error}")]
    Syntax {
        /// Which file.
        origin: String,
        /// Line, column and reason.
        error: Box<toml::de::Error>,
    },
    /// A series that makes no sense.
    #[error("series \"{id}\" in \"{origin}\": {reason}")]
    Series {
        /// Which file.
        origin: String,
        /// Which series.
        id: String,
        /// What is wrong, and the fix.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    series: Vec<Raw>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    id: String,
    title: String,
    source: String,
    quality: String,
    class: Class,
    metric: Metric,
    x: String,
    profile: String,
    #[serde(default)]
    set: Table,
    control: Option<Control>,
    knee: Option<f64>,
    #[serde(default)]
    note: String,
    #[serde(default)]
    load: Table,
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
}

/// The series that come with the product.
pub fn builtin() -> Result<Vec<Series>, SeriesError> {
    let files = [
        ("cx3.toml", include_str!("../../../validation/cx3.toml")),
        ("cx5.toml", include_str!("../../../validation/cx5.toml")),
        ("cx6.toml", include_str!("../../../validation/cx6.toml")),
        ("article.toml", include_str!("../../../validation/article.toml")),
        ("controls.toml", include_str!("../../../validation/controls.toml")),
    ];
    let mut all = Vec::new();
    for (name, text) in files {
        all.extend(parse(text, name)?);
    }
    Ok(all)
}

/// Parses a file of series. `origin` names it in errors.
pub fn parse(text: &str, origin: &str) -> Result<Vec<Series>, SeriesError> {
    let file: File = toml::from_str(text)
        .map_err(|error| SeriesError::Syntax { origin: origin.to_owned(), error: Box::new(error) })?;
    file.series
        .into_iter()
        .map(|raw| {
            let id = raw.id.clone();
            series(raw).map_err(|reason| SeriesError::Series { origin: origin.to_owned(), id, reason })
        })
        .collect()
}

fn series(raw: Raw) -> Result<Series, String> {
    let place = |name: &str| raw.columns.iter().position(|c| c == name);
    let x = place("x").ok_or("its columns lack \"x\"")?;
    let y = place("y");
    if y.is_none() && raw.control.is_none() {
        return Err("its columns lack \"y\", the published values".to_owned());
    }
    let mut points = Vec::new();
    for row in &raw.rows {
        if row.len() != raw.columns.len() {
            return Err(format!("a row has {} values for {} columns", row.len(), raw.columns.len()));
        }
        let mut load = raw.load.clone();
        for (name, value) in raw.columns.iter().zip(row) {
            if name != "x" && name != "y" {
                put(&mut load, name, value.clone())?;
            }
        }
        let load: LoadSpec = load.try_into().map_err(|e: toml::de::Error| e.message().to_owned())?;
        load.check().map_err(|e| e.to_string())?;
        points.push(Point {
            x: number(&row[x]).ok_or("an x is not a number")?,
            published: y.map(|y| number(&row[y]).ok_or("a y is not a number")).transpose()?,
            load,
        });
    }
    if points.is_empty() {
        return Err("it has no rows".to_owned());
    }
    let mut set = Vec::new();
    for (name, value) in &raw.set {
        let key = Key::find(name).map_err(|near| format!("set \"{name}\": did you mean \"{near}\"?"))?;
        set.push((key, number(value).ok_or_else(|| format!("set \"{name}\" is not a number"))?));
    }
    Ok(Series {
        id: raw.id,
        title: raw.title,
        source: raw.source,
        quality: raw.quality,
        class: raw.class,
        metric: raw.metric,
        x: raw.x,
        profile: raw.profile,
        set,
        control: raw.control,
        knee: raw.knee,
        note: raw.note,
        points,
    })
}

/// Puts a value at a dotted path of the load.
fn put(load: &mut Table, path: &str, value: Value) -> Result<(), String> {
    match path.split_once('.') {
        None => {
            load.insert(path.to_owned(), value);
            Ok(())
        }
        Some((head, tail)) => {
            let entry = load.entry(head.to_owned()).or_insert_with(|| Value::Table(Table::new()));
            let table = entry.as_table_mut().ok_or_else(|| format!("\"{head}\" is not a table"))?;
            put(table, tail, value)
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|v| v as f64))
}

impl Series {
    /// The profile it is run on: its own, with the facts of the measured system put in.
    pub fn profile(&self) -> Result<Profile, ProfileError> {
        let mut profile = Profile::resolve(&self.profile)?;
        for &(key, value) in &self.set {
            profile.set(key, value)?;
        }
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[[series]]\nid = \"a\"\ntitle = \"t\"\nsource = \"s\"\nquality = \"raw\"\nclass = \"held_out\"\n\
                        metric = \"mops\"\nx = \"QPs\"\nprofile = \"cx5-like\"\n";

    #[test]
    fn columns_set_fields_of_the_load_by_path() {
        let text = format!(
            "{HEAD}load = {{ op = \"read\" }}\ncolumns = [\"x\", \"y\", \"threads\", \"memory.bytes\"]\nrows = [[1, 2.5, 1, 4096]]"
        );
        let series = parse(&text, "f").expect("is valid");
        let point = &series[0].points[0];
        assert_eq!((point.load.threads, point.load.memory.bytes, point.published), (1, 4096, Some(2.5)));
    }

    #[test]
    fn mistakes_are_named() {
        for (tail, expected) in [
            ("columns = [\"x\"]\nrows = [[1]]", "lack \"y\""),
            ("columns = [\"x\", \"y\"]\nrows = [[1]]", "1 values for 2 columns"),
            ("columns = [\"x\", \"y\", \"thread\"]\nrows = [[1, 1, 1]]", "unknown field `thread`"),
            ("columns = [\"x\", \"y\", \"threads\"]\nrows = [[1, 1, 0]]", "threads = \"0\""),
            ("columns = [\"x\", \"y\"]\nrows = []", "no rows"),
            (
                "set = { \"link.rat\" = 1 }\ncolumns = [\"x\", \"y\"]\nrows = [[1, 1]]",
                "did you mean \"link.rate\"",
            ),
        ] {
            let error = parse(&format!("{HEAD}{tail}"), "f").expect_err("must be refused").to_string();
            assert!(error.contains(expected), "{tail}: {error}");
        }
    }

    #[test]
    fn builtin_series_are_valid_and_name_known_profiles() {
        let all = builtin().unwrap_or_else(|e| panic!("{e}"));
        for series in &all {
            series.profile().unwrap_or_else(|e| panic!("{}: {e}", series.id));
            assert_eq!(series.class == Class::Control, series.control.is_some(), "{}", series.id);
        }
        let mut ids: Vec<_> = all.iter().map(|s| &s.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all.len());
    }
}
