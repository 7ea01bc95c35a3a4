//! What a cell of a table holds, before it is written.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::format::{self, Unit};

/// The content of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'m> {
    /// Words.
    Text(Cow<'m, str>),
    /// A figure in the unit of its column.
    Number(f64),
    /// Nothing is known: sorted last, never shown as 0.
    Missing,
}

impl<'m> Value<'m> {
    /// Words; missing where there are none.
    pub fn text(text: &'m str) -> Self {
        if text.is_empty() { Self::Missing } else { Self::Text(format::harmless(text)) }
    }

    /// Words where there are any.
    pub fn of_text(text: Option<&'m str>) -> Self {
        text.map_or(Self::Missing, Self::text)
    }

    /// A figure.
    pub fn count(n: u64) -> Self {
        Self::Number(n as f64)
    }

    /// A figure where there is one.
    pub fn of(n: Option<f64>) -> Self {
        n.map_or(Self::Missing, Self::Number)
    }

    /// A figure where there is one.
    pub fn of_count(n: Option<u64>) -> Self {
        n.map_or(Self::Missing, Self::count)
    }

    /// The cell as text.
    pub fn show(&self, unit: Option<Unit>) -> String {
        match (self, unit) {
            (Self::Text(text), _) => text.to_string(),
            (Self::Number(n), unit) => format::number(*n, unit.unwrap_or(Unit::Count)),
            (Self::Missing, _) => "-".to_owned(),
        }
    }

    /// Order for sorting: figures by size, then words by alphabet, then what is missing, whichever way the column is
    /// turned (`descending`).
    pub fn order(&self, other: &Self, descending: bool) -> Ordering {
        let turned = |order: Ordering| if descending { order.reverse() } else { order };
        match (self, other) {
            (Self::Missing, Self::Missing) => Ordering::Equal,
            (Self::Missing, _) => Ordering::Greater,
            (_, Self::Missing) => Ordering::Less,
            (Self::Number(a), Self::Number(b)) => turned(a.total_cmp(b)),
            (Self::Text(a), Self::Text(b)) => turned(a.cmp(b)),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_last_either_way() {
        for descending in [false, true] {
            let mut cells = [Value::Missing, Value::Number(2.0), Value::Text("x".into()), Value::Number(1.0)];
            cells.sort_by(|a, b| a.order(b, descending));
            assert_eq!(cells[3], Value::Missing);
            assert_eq!(cells[0], Value::Number(if descending { 2.0 } else { 1.0 }));
        }
    }

    #[test]
    fn a_missing_figure_is_not_shown_as_zero() {
        assert_eq!(Value::of(None).show(Some(Unit::Count)), "-");
        assert_eq!(Value::text("").show(None), "-");
        assert_eq!(Value::count(0).show(Some(Unit::Count)), "0");
    }
}
