//! A finding as a trace holds it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::doctor::Finding;

/// A finding of the recorder: the object that `rdma-probe doctor --json` prints. It is kept as it was written, for a
/// trace outlives its rules: whoever wants today's judgement has the doctor judge the trace again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Judgement(#[schemars(with = "Finding")] pub Map<String, Value>);

impl Judgement {
    /// What the doctor found; `None` where it cannot be said in JSON.
    pub fn of(finding: &Finding) -> Option<Self> {
        match serde_json::to_value(finding) {
            Ok(Value::Object(object)) => Some(Self(object)),
            _ => None,
        }
    }

    /// A part of it in text; empty where it is absent or not a plain value. `path` names keys from the outside in.
    pub fn text(&self, path: &[&str]) -> String {
        let mut keys = path.iter();
        let first = keys.next().and_then(|key| self.0.get(*key));
        match keys.try_fold(first, |value, key| value.map(|value| value.get(*key))).flatten() {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => String::new(),
            Some(plain) => plain.to_string(),
        }
    }

    /// What it rests on, a line each.
    pub fn evidence(&self) -> impl Iterator<Item = &str> {
        let lines = self.0.get("evidence").and_then(Value::as_array).into_iter().flatten();
        lines.filter_map(|line| line.get("text")?.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_a_later_version_changed_are_read_as_empty() {
        let judgement: Judgement = serde_json::from_str(
            r#"{"id":7,"cost":{"cpu_share":0.5},"process":null,"evidence":["x",{"text":"y"}]}"#,
        )
        .unwrap();
        assert_eq!(judgement.text(&["id"]), "7");
        assert_eq!(judgement.text(&["cost", "cpu_share"]), "0.5");
        assert_eq!(
            judgement.text(&["process", "pid"]) + &judgement.text(&["cost"]) + &judgement.text(&[]),
            ""
        );
        assert_eq!(judgement.evidence().collect::<Vec<_>>(), ["y"]);
    }
}
