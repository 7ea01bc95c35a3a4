//! Profiles from TOML, every mistake answered with the key's name and the fix.

use std::io::Read;
use std::path::Path;

use toml::{Table, Value};

use super::keys::{self, KEYS, Key, KeyDef};
use super::{Confidence, Param, Profile};

/// Largest profile file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// Why a profile was refused.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No such built-in profile.
    #[error("unknown profile \"{name}\": use one of {known}, or the path of a TOML file")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The file could not be read.
    #[error("cannot read profile \"{path}\": {error}")]
    Unreadable {
        /// Its path.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// Not TOML.
    #[error("profile \"{origin}\" is not valid TOML: {error}")]
    Syntax {
        /// Which profile.
        origin: String,
        /// Line, column and reason.
        error: Box<toml::de::Error>,
    },
    /// A key that is not a parameter.
    #[error("profile \"{origin}\": unknown parameter \"{key}\"; did you mean \"{nearest}\"?")]
    UnknownKey {
        /// Which profile.
        origin: String,
        /// The key.
        key: String,
        /// The nearest that exists.
        nearest: String,
    },
    /// A parameter is missing.
    #[error(
        "profile \"{origin}\": parameter \"{key}\" is missing; add it, or start from a whole profile with extends = \"cx5-like\""
    )]
    Missing {
        /// Which profile.
        origin: String,
        /// The key.
        key: &'static str,
    },
    /// A value makes no sense.
    #[error("profile \"{origin}\": {key} = {value}: {fix}")]
    BadValue {
        /// Which profile.
        origin: String,
        /// The key.
        key: String,
        /// The bad value.
        value: String,
        /// What would be accepted.
        fix: String,
    },
}

pub(super) fn read(path: &Path) -> Result<Profile, ProfileError> {
    let name = path.display().to_string();
    let unreadable = |error| ProfileError::Unreadable { path: name.clone(), error };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(unreadable(std::io::Error::other("larger than 1 MiB: this is not a profile")));
    }
    parse(&text, &name)
}

pub(super) fn parse(text: &str, origin: &str) -> Result<Profile, ProfileError> {
    let table: Table = text
        .parse()
        .map_err(|error| ProfileError::Syntax { origin: origin.to_owned(), error: Box::new(error) })?;
    let base = match table.get("extends") {
        None => None,
        Some(Value::String(name)) => Some(Profile::builtin(name)?),
        Some(other) => {
            return Err(bad(origin, "extends", other, "give the name of a built-in profile in quotes"));
        }
    };
    let mut params: Vec<Option<Param>> = match &base {
        Some(base) => base.params.iter().cloned().map(Some).collect(),
        None => vec![None; KEYS.len()],
    };
    let (mut name, mut about) = (stem(origin), base.map(|b| b.about).unwrap_or_default());
    for (section, value) in &table {
        match (section.as_str(), value) {
            ("extends", _) => {}
            ("name", Value::String(text)) => name.clone_from(text),
            ("about", Value::String(text)) => about.clone_from(text),
            ("name" | "about", other) => return Err(bad(origin, section, other, "give a text in quotes")),
            (_, Value::Table(entries)) => {
                for (entry, value) in entries {
                    let key = find(origin, &format!("{section}.{entry}"))?;
                    let old = params[key as usize].take();
                    params[key as usize] = Some(param(origin, key.def(), value, old)?);
                }
            }
            _ => {
                find(origin, section)?;
            }
        }
    }
    let params = params
        .into_iter()
        .zip(KEYS)
        .map(|(p, def)| p.ok_or_else(|| ProfileError::Missing { origin: origin.to_owned(), key: def.name }))
        .collect::<Result<_, _>>()?;
    let profile = Profile { name, about, params };
    check_together(&profile, origin)?;
    Ok(profile)
}

/// One parameter: `{ value, unit, source, confidence, range }`, or a bare number, which keeps no source.
fn param(origin: &str, def: &KeyDef, value: &Value, old: Option<Param>) -> Result<Param, ProfileError> {
    let fields = match value {
        Value::Table(fields) => fields,
        number => {
            let value = check(def, as_number(origin, def.name, number)?, origin)?;
            let range = old.map_or((value, value), |o| (o.range.0.min(value), o.range.1.max(value)));
            return Ok(Param {
                value,
                source: "set by hand".to_owned(),
                confidence: Confidence::Guess,
                range,
            });
        }
    };
    const FIELDS: [&str; 5] = ["value", "unit", "source", "confidence", "range"];
    if let Some(field) = fields.keys().find(|f| !FIELDS.contains(&f.as_str())) {
        let nearest = FIELDS.into_iter().min_by_key(|f| keys::distance(f, field)).unwrap_or("value");
        let (key, nearest) = (format!("{}.{field}", def.name), format!("{}.{nearest}", def.name));
        return Err(ProfileError::UnknownKey { origin: origin.to_owned(), key, nearest });
    }
    let at = |field: &str| format!("{}.{field}", def.name);
    let value = match fields.get("value") {
        Some(v) => check(def, as_number(origin, def.name, v)?, origin)?,
        None => return Err(bad(origin, def.name, value, "its field \"value\" is missing")),
    };
    match fields.get("unit") {
        None if def.unit.is_empty() => {}
        Some(Value::String(unit)) if unit == def.unit => {}
        Some(other) => return Err(bad(origin, &at("unit"), other, &format!("must be \"{}\"", def.unit))),
        None => {
            let fix = format!("its field \"unit\" is missing; write unit = \"{}\"", def.unit);
            return Err(bad(origin, def.name, value, &fix));
        }
    }
    let source = match fields.get("source") {
        Some(Value::String(s)) if !s.trim().is_empty() => s.clone(),
        Some(other) => return Err(bad(origin, &at("source"), other, "give a text in quotes")),
        None => "not given".to_owned(),
    };
    let confidence = match fields.get("confidence") {
        None => Confidence::Guess,
        Some(v) => v
            .as_str()
            .and_then(|s| s.parse().ok())
            .ok_or_else(|| bad(origin, &at("confidence"), v, "must be \"H\", \"M\", \"L\" or \"guess\""))?,
    };
    let range = match fields.get("range") {
        None => (value, value),
        Some(v) => range(origin, def, v, value)?,
    };
    Ok(Param { value, source, confidence, range })
}

fn range(origin: &str, def: &KeyDef, given: &Value, value: f64) -> Result<(f64, f64), ProfileError> {
    let at = format!("{}.range", def.name);
    let Some([low, high]) = given.as_array().map(Vec::as_slice) else {
        return Err(bad(origin, &at, given, "must be [low, high]"));
    };
    let low = check(def, as_number(origin, &at, low)?, origin)?;
    let high = check(def, as_number(origin, &at, high)?, origin)?;
    if low <= value && value <= high {
        Ok((low, high))
    } else {
        Err(bad(origin, &at, given, &format!("must be [low, high] with the value, {value}, between them")))
    }
}

/// Accepts a value that makes sense for its parameter.
pub(super) fn check(def: &KeyDef, value: f64, origin: &str) -> Result<f64, ProfileError> {
    if !(value >= def.min && value <= def.max) {
        let unit = if def.unit.is_empty() { String::new() } else { format!(" {}", def.unit) };
        return Err(bad(origin, def.name, value, &format!("must be from {} to {}{unit}", def.min, def.max)));
    }
    if def.whole && value.fract() != 0.0 {
        return Err(bad(origin, def.name, value, "must be a whole number"));
    }
    Ok(value)
}

/// Values that are each fine and make no sense together.
fn check_together(profile: &Profile, origin: &str) -> Result<(), ProfileError> {
    let (free, all) = (profile.get(Key::DoorbellLockFree), profile.get(Key::DoorbellRegisters));
    if free > all {
        let fix = format!("cannot be more than doorbell.registers, which is {all}");
        return Err(bad(origin, "doorbell.lock_free", free, &fix));
    }
    Ok(())
}

fn as_number(origin: &str, key: &str, value: &Value) -> Result<f64, ProfileError> {
    match value {
        Value::Float(v) => Ok(*v),
        Value::Integer(v) => Ok(*v as f64),
        other => Err(bad(origin, key, other, "must be a number")),
    }
}

fn find(origin: &str, name: &str) -> Result<Key, ProfileError> {
    Key::find(name).map_err(|nearest| ProfileError::UnknownKey {
        origin: origin.to_owned(),
        key: name.to_owned(),
        nearest: nearest.to_owned(),
    })
}

fn bad(origin: &str, key: &str, value: impl ToString, fix: &str) -> ProfileError {
    let text = value.to_string();
    let value = if text.starts_with('"') { text } else { format!("\"{text}\"") };
    ProfileError::BadValue { origin: origin.to_owned(), key: key.to_owned(), value, fix: fix.to_owned() }
}

/// Name of a profile that gives none: its file's name without folder and extension.
fn stem(origin: &str) -> String {
    Path::new(origin).file_stem().map_or_else(|| origin.to_owned(), |s| s.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Profile::parse(text, "mine.toml").expect_err("must be refused").to_string()
    }

    #[test]
    fn every_builtin_profile_is_whole_and_says_where_each_value_comes_from() {
        for name in Profile::names() {
            let profile = Profile::builtin(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(profile.name(), name);
            assert!(!profile.about().is_empty());
            for def in KEYS {
                let param = profile.param(def.key);
                assert!(param.source.len() > 3 && param.source != "not given", "{name}: {}", def.name);
            }
        }
    }

    #[test]
    fn a_profile_can_change_a_few_values_of_another() {
        let text =
            "extends = \"cx5-like\"\n[link]\nrate = 25\n[mtt]\nentries = { value = 64, range = [32, 128] }";
        let profile = Profile::parse(text, "lab.toml").expect("is valid");
        assert_eq!(profile.name(), "lab");
        assert_eq!((profile.get(Key::LinkRate), profile.get(Key::MttEntries)), (25.0, 64.0));
        assert_eq!(profile.param(Key::MttEntries).range, (32.0, 128.0));
    }

    #[test]
    fn mistakes_are_answered_with_the_key_and_the_fix() {
        let with = |lines: &str| refusal(&format!("extends = \"cx5-like\"\n{lines}"));
        for (text, expected) in [
            ("[mtt]\nentires = 4", "unknown parameter \"mtt.entires\"; did you mean \"mtt.entries\"?"),
            ("[link]\nrate = -1", "link.rate = \"-1\": must be from 0.1 to 3200 Gb/s"),
            ("[link]\nrate = nan", "link.rate = \"NaN\": must be from"),
            ("[link]\nrate = \"fast\"", "link.rate = \"fast\": must be a number"),
            ("[pu]\ncount = 7.5", "pu.count = \"7.5\": must be a whole number"),
            ("[tx]\nack = { value = 3, unit = \"us\" }", "tx.ack.unit = \"us\": must be \"ns\""),
            ("[tx]\nack = { value = 3 }", "write unit = \"ns\""),
            ("[tx]\nack = { unit = \"ns\" }", "its field \"value\" is missing"),
            ("[tx]\nack = { value = 3, unit = \"ns\", range = [4, 5] }", "with the value, 3, between them"),
            ("[tx]\nack = { value = 3, unit = \"ns\", range = 4 }", "must be [low, high]"),
            (
                "[tx]\nack = { value = 3, unit = \"ns\", confidence = \"sure\" }",
                "must be \"H\", \"M\", \"L\" or \"guess\"",
            ),
            ("[tx]\nack = { value = 3, unit = \"ns\", sorce = \"x\" }", "did you mean \"tx.ack.source\"?"),
            ("[doorbell]\nregisters = 2", "cannot be more than doorbell.registers, which is 2"),
            ("about = 3", "about = \"3\": give a text in quotes"),
            ("rate = 3", "unknown parameter \"rate\""),
        ] {
            assert!(with(text).contains(expected), "{text}: {}", with(text));
        }
        assert!(refusal("[link]\nrate = 100").contains("is missing"));
        assert!(refusal("extends = \"cx9\"").contains("use one of cx3-like"));
        assert!(refusal("= 3").contains("not valid TOML"));
        let gone = Profile::resolve("./no/such.toml").expect_err("is not there").to_string();
        assert!(gone.contains("\"./no/such.toml\""), "{gone}");
    }
}
