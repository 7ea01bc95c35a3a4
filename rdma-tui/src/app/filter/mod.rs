//! The language of the filter line: `qp.state=RTS comm:ib_* (reg.p99>1ms or reg.failed>0) not pid=17`.
//!
//! Terms side by side must all hold; `or`, `not` (or `!`) and brackets do what they say. A term is `FIELD OP VALUE`,
//! or a word to be found anywhere in the row. `OP` is one of `:` and `=` (a pattern with `*` and `?`, or a figure),
//! `!=`, `<`, `<=`, `>`, `>=`. Figures may carry a unit: `64KiB`, `1.5ms`, `20k`, `90%`. Words with blanks go in
//! double quotes.

mod lexer;
mod parser;
mod pattern;

use std::cmp::Ordering;

use super::format::Unit;
use super::value::Value;

pub use pattern::Pattern;

/// A column that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    /// Name in the language, such as `reg.p99`.
    pub name: &'static str,
    /// Unit of its figures; `None` for words.
    pub unit: Option<Unit>,
}

/// A filter, ready to be asked about rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    root: Option<Node>,
}

/// What is wrong with a filter, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FilterError {
    /// First character concerned, counted from 0.
    pub at: usize,
    /// Characters concerned, at least 1.
    pub len: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Word(Pattern),
    Text { field: usize, negated: bool, pattern: Pattern },
    Number { field: usize, op: Comparison, value: f64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    AtMost,
    More,
    AtLeast,
}

impl Comparison {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::More => order.is_gt(),
            Self::AtLeast => order.is_ge(),
        }
    }
}

impl Filter {
    /// Reads a filter over `fields`; an empty text lets everything through.
    ///
    /// # Errors
    /// [`FilterError`] with the place of the first thing that cannot be understood.
    pub fn parse(text: &str, fields: &[Field]) -> Result<Self, FilterError> {
        Ok(Self { root: parser::parse(text, fields)? })
    }

    /// True when it lets everything through.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Whether a row passes; `cell` gives its content by index into the fields the filter was read over.
    pub fn matches<'v>(&self, fields: &[Field], cell: &dyn Fn(usize) -> Value<'v>) -> bool {
        self.root.as_ref().is_none_or(|node| holds(node, fields, cell))
    }
}

fn holds<'v>(node: &Node, fields: &[Field], cell: &dyn Fn(usize) -> Value<'v>) -> bool {
    match node {
        Node::All(nodes) => nodes.iter().all(|n| holds(n, fields, cell)),
        Node::Any(nodes) => nodes.iter().any(|n| holds(n, fields, cell)),
        Node::Not(inner) => !holds(inner, fields, cell),
        Node::Word(pattern) => (0..fields.len()).any(|i| match cell(i) {
            Value::Text(text) => pattern.found_in(&text),
            Value::Number(n) if matches!(fields[i].unit, Some(Unit::Id | Unit::Address)) => {
                pattern.matches(&Value::Number(n).show(fields[i].unit))
            }
            Value::Number(_) | Value::Missing => false,
        }),
        Node::Text { field, negated, pattern } => match cell(*field) {
            Value::Text(text) => pattern.matches(&text) != *negated,
            number @ Value::Number(_) => pattern.matches(&number.show(fields[*field].unit)) != *negated,
            Value::Missing => *negated,
        },
        // What is not known is neither more nor less than anything.
        Node::Number { field, op, value } => match cell(*field) {
            Value::Number(n) => n.partial_cmp(value).is_some_and(|order| op.holds(order)),
            Value::Text(_) | Value::Missing => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &[Field] = &[
        Field { name: "comm", unit: None },
        Field { name: "pid", unit: Some(Unit::Id) },
        Field { name: "reg.p99", unit: Some(Unit::Nanoseconds) },
        Field { name: "reg.bytes", unit: Some(Unit::Bytes) },
        Field { name: "qp.signalled", unit: Some(Unit::Share) },
    ];

    fn passes(filter: &str) -> bool {
        let row = [
            Value::text("ib_write_bw"),
            Value::Number(4711.0),
            Value::Number(1.2e6),
            Value::Number(65536.0),
            Value::Missing,
        ];
        let filter = Filter::parse(filter, FIELDS).unwrap_or_else(|e| panic!("'{filter}': {e}"));
        filter.matches(FIELDS, &|i| row[i].clone())
    }

    #[test]
    fn terms_side_by_side_must_all_hold() {
        assert!(passes(""));
        assert!(passes("comm:ib_*"));
        assert!(passes("comm:ib_* reg.p99>1ms"));
        assert!(!passes("comm:ib_* reg.p99>2ms"));
        assert!(passes("comm:nothing or reg.p99>=1.2ms"));
        assert!(passes("not (comm:nothing or pid=1) reg.bytes=64KiB"));
        assert!(!passes("!comm:ib_*"));
        assert!(passes("comm!=ib_read_bw"));
    }

    #[test]
    fn a_word_is_looked_for_in_every_column_of_words_and_names() {
        assert!(passes("write"));
        assert!(passes("WRITE"));
        assert!(passes("4711"));
        assert!(!passes("65536"), "figures are asked for by field");
        assert!(passes("\"ib_write\""));
        assert!(!passes("471"), "a number is a whole name");
    }

    #[test]
    fn what_is_missing_satisfies_no_comparison() {
        assert!(!passes("qp.signalled>90%"));
        assert!(!passes("qp.signalled<=90%"));
        assert!(passes("not qp.signalled>90"));
    }

    #[test]
    fn a_bare_share_is_read_in_per_cent() {
        let filter = Filter::parse("qp.signalled>90", FIELDS).unwrap();
        assert!(filter.matches(FIELDS, &|_| Value::Number(0.95)));
        assert!(!filter.matches(FIELDS, &|_| Value::Number(0.85)));
    }

    #[test]
    fn errors_name_their_place_and_the_remedy() {
        for (text, at, len, says) in [
            ("reg.p9>1", 0, 6, "did you mean 'reg.p99'"),
            ("comm:x nofield=3", 7, 7, "no field 'nofield' here"),
            ("reg.p99>", 7, 1, "a value should follow '>'"),
            ("reg.p99>fast", 8, 4, "'fast' is not a duration"),
            ("reg.bytes>3parsecs", 10, 8, "'3parsecs' is not a size"),
            ("(comm:x", 0, 1, "never closed"),
            ("comm:x)", 6, 1, "nothing was opened"),
            ("comm:x or", 7, 2, "something should follow 'or'"),
            ("or comm:x", 0, 2, "something should stand before 'or'"),
            ("\"abc", 0, 4, "the quotes are never closed"),
            ("comm>x", 4, 1, "comm holds words"),
            ("not", 0, 3, "something should follow 'not'"),
        ] {
            let error = Filter::parse(text, FIELDS).expect_err(text);
            assert!(error.message.contains(says), "'{text}': {error}");
            assert_eq!((error.at, error.len), (at, len), "'{text}': {error}");
        }
    }

    #[test]
    fn deep_brackets_are_refused_rather_than_overflowing_the_stack() {
        let text = "(".repeat(100_000);
        let error = Filter::parse(&text, FIELDS).unwrap_err();
        assert!(error.message.contains("too deep"), "{error}");
        assert!(Filter::parse(&"!".repeat(100_000), FIELDS).is_err());
    }
}
