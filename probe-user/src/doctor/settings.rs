//! What the user decided: rules to be silent about, and other thresholds.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::Threshold;
use super::rules::RULES;

/// Settings of a diagnosis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    allowed: BTreeSet<String>,
    thresholds: BTreeMap<(String, String), f64>,
}

/// A setting that names nothing, or no sensible value.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SettingsError {
    /// No such rule.
    #[error("there is no rule '{id}': `rdma-probe doctor --explain all` lists them{}", near(.id))]
    Rule {
        /// What was asked for.
        id: String,
    },
    /// The rule has no such threshold.
    #[error("rule '{rule}' has no threshold '{key}': it has {has}")]
    Key {
        /// The rule.
        rule: String,
        /// What was asked for.
        key: String,
        /// What it has.
        has: String,
    },
    /// Not a number.
    #[error("threshold '{rule}.{key}' is '{value}': give a number of {unit}, 0 or more")]
    Value {
        /// The rule.
        rule: String,
        /// The threshold.
        key: String,
        /// What was given.
        value: String,
        /// Its unit.
        unit: &'static str,
    },
    /// Not TOML.
    #[error("not a file of thresholds: {0}")]
    Syntax(String),
}

/// A hint at the rule that was meant.
fn near(id: &str) -> String {
    let words: Vec<&str> = id.split('-').filter(|word| word.len() > 2).collect();
    let like: Vec<&str> = RULES
        .iter()
        .map(|rule| rule.id)
        .filter(|known| words.iter().any(|word| known.contains(word)))
        .take(4)
        .collect();
    if like.is_empty() { String::new() } else { format!("; did you mean {}?", like.join(", ")) }
}

impl Settings {
    /// Says nothing of rule `id` from now on.
    ///
    /// # Errors
    /// [`SettingsError::Rule`] when there is no such rule.
    pub fn allow(&mut self, id: &str) -> Result<(), SettingsError> {
        if !RULES.iter().any(|rule| rule.id == id) {
            return Err(SettingsError::Rule { id: id.to_owned() });
        }
        self.allowed.insert(id.to_owned());
        Ok(())
    }

    /// Takes in a file of thresholds: a TOML table per rule, a number per threshold, and at the top
    /// `allow = ["id", …]`.
    ///
    /// # Errors
    /// [`SettingsError`] names the first entry that makes no sense.
    pub fn read(&mut self, text: &str) -> Result<(), SettingsError> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            SettingsError::Syntax(e.message().lines().next().unwrap_or_default().to_owned())
        })?;
        for (rule, value) in &table {
            if rule == "allow" {
                let ids = value.as_array().map(Vec::as_slice).unwrap_or_default();
                for id in ids {
                    self.allow(id.as_str().unwrap_or_default())?;
                }
                continue;
            }
            let Some(known) = RULES.iter().find(|known| known.id == rule) else {
                return Err(SettingsError::Rule { id: rule.clone() });
            };
            let Some(values) = value.as_table() else {
                return Err(SettingsError::Syntax(format!("'{rule}' must be a table: write [{rule}]")));
            };
            for (key, value) in values {
                self.set(known.id, known.thresholds, key, value)?;
            }
        }
        Ok(())
    }

    fn set(
        &mut self,
        rule: &str,
        known: &[&Threshold],
        key: &str,
        value: &toml::Value,
    ) -> Result<(), SettingsError> {
        let Some(threshold) = known.iter().find(|t| t.key == key) else {
            let has: Vec<&str> = known.iter().map(|t| t.key).collect();
            let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
            return Err(SettingsError::Key { rule: rule.to_owned(), key: key.to_owned(), has });
        };
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
        match number.filter(|n| n.is_finite() && *n >= 0.0) {
            Some(number) => {
                self.thresholds.insert((rule.to_owned(), key.to_owned()), number);
                Ok(())
            }
            None => Err(SettingsError::Value {
                rule: rule.to_owned(),
                key: key.to_owned(),
                value: value.to_string(),
                unit: threshold.unit,
            }),
        }
    }

    /// Whether the user wants to hear of this rule.
    pub fn wants(&self, id: &str) -> bool {
        self.allowed.is_empty() || !self.allowed.contains(id)
    }

    /// The value of a threshold of a rule.
    pub fn value(&self, rule: &str, threshold: &Threshold) -> f64 {
        if self.thresholds.is_empty() {
            return threshold.value;
        }
        let key = (rule.to_owned(), threshold.key.to_owned());
        self.thresholds.get(&key).copied().unwrap_or(threshold.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sets_thresholds_and_allows_rules() {
        let mut settings = Settings::default();
        settings.read("allow = [\"many-qps\"]\n[registration-repeated]\nmin_registrations = 7\n").unwrap();
        assert!(!settings.wants("many-qps") && settings.wants("registration-repeated"));
        let rule = RULES.iter().find(|r| r.id == "registration-repeated").unwrap();
        let threshold = rule.thresholds.iter().find(|t| t.key == "min_registrations").unwrap();
        assert_eq!(settings.value(rule.id, threshold), 7.0);
        assert_eq!(Settings::default().value(rule.id, threshold), threshold.value);
    }

    #[test]
    fn what_a_file_cannot_mean_is_answered_with_the_name_and_the_fix() {
        let said = |text: &str| Settings::default().read(text).unwrap_err().to_string();
        assert!(said("[registration-repeate]\n").contains("'registration-repeate'"));
        assert!(said("[registration-repeated]\nmin = 1\n").contains("it has min_registrations"));
        assert!(said("[registration-repeated]\nmin_registrations = \"x\"\n").contains("'\"x\"'"));
        assert!(said("[registration-repeated]\nmin_registrations = -1\n").contains("0 or more"));
        assert!(said("allow = [\"x\"]\n").contains("no rule 'x'"));
        assert!(said("= 3").contains("not a file of thresholds"));
    }
}
