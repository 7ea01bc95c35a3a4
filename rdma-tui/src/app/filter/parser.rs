//! From pieces to a tree: `or` binds loosest, then standing side by side, then `not`.

use super::super::format::Unit;
use super::lexer::{self, Kind, Token};
use super::{Comparison, Field, FilterError, Node, Pattern};

/// Brackets and `not` within each other; nobody types more.
const MAX_DEPTH: usize = 64;

/// Reads a filter; `None` when it asks for nothing.
pub fn parse(text: &str, fields: &[Field]) -> Result<Option<Node>, FilterError> {
    let tokens = lexer::tokens(text)?;
    let mut parser = Parser { tokens: &tokens, next: 0, fields, depth: 0 };
    let node = parser.any()?;
    match parser.peek() {
        None => Ok(node),
        Some(token) => Err(error(token, "nothing was opened that this closes")),
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
    fields: &'a [Field],
    depth: usize,
}

fn error(token: &Token, message: impl Into<String>) -> FilterError {
    FilterError { at: token.at, len: token.len.max(1), message: message.into() }
}

fn is_or(token: &Token) -> bool {
    matches!(&token.kind, Kind::Word { text, quoted: false } if text.eq_ignore_ascii_case("or"))
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.next)
    }

    fn deeper(&mut self, token: &Token) -> Result<(), FilterError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(error(token, "brackets go too deep here")) } else { Ok(()) }
    }

    fn any(&mut self) -> Result<Option<Node>, FilterError> {
        let Some(first) = self.all()? else {
            return match self.peek() {
                Some(token) if is_or(token) => Err(error(token, "something should stand before 'or'")),
                _ => Ok(None),
            };
        };
        let mut nodes = vec![first];
        while let Some(or) = self.peek().filter(|token| is_or(token)) {
            self.next += 1;
            nodes.push(self.all()?.ok_or_else(|| error(or, "something should follow 'or'"))?);
        }
        Ok(Some(if nodes.len() == 1 { nodes.remove(0) } else { Node::Any(nodes) }))
    }

    fn all(&mut self) -> Result<Option<Node>, FilterError> {
        let mut nodes = Vec::new();
        while let Some(token) = self.peek() {
            if is_or(token) || token.kind == Kind::Close {
                break;
            }
            nodes.push(self.term()?);
        }
        Ok(match nodes.len() {
            0 => None,
            1 => nodes.pop(),
            _ => Some(Node::All(nodes)),
        })
    }

    fn term(&mut self) -> Result<Node, FilterError> {
        let token = &self.tokens[self.next];
        self.next += 1;
        match &token.kind {
            Kind::Not => self.negated(token),
            Kind::Word { text, quoted: false } if text.eq_ignore_ascii_case("not") => self.negated(token),
            Kind::Open => {
                self.deeper(token)?;
                let inner = self.any()?;
                match self.peek() {
                    Some(Token { kind: Kind::Close, .. }) => self.next += 1,
                    _ => return Err(error(token, "this bracket is never closed")),
                }
                self.depth -= 1;
                inner.ok_or_else(|| error(token, "there is nothing in these brackets"))
            }
            Kind::Word { text, quoted } => match self.peek() {
                Some(Token { kind: Kind::Operator(op), .. }) if !quoted => self.comparison(token, text, op),
                _ => Ok(Node::Word(Pattern::new(text))),
            },
            Kind::Operator(op) => Err(error(token, format!("a field should stand before '{op}'"))),
            Kind::Close => Err(error(token, "nothing was opened that this closes")),
        }
    }

    fn negated(&mut self, not: &Token) -> Result<Node, FilterError> {
        match self.peek() {
            Some(token) if !is_or(token) && token.kind != Kind::Close => {
                self.deeper(not)?;
                let inner = self.term()?;
                self.depth -= 1;
                Ok(Node::Not(Box::new(inner)))
            }
            _ => Err(error(not, "something should follow 'not'")),
        }
    }

    fn comparison(&mut self, name: &Token, text: &str, op: &str) -> Result<Node, FilterError> {
        let operator = &self.tokens[self.next];
        self.next += 1;
        let field = self
            .fields
            .iter()
            .position(|field| field.name.eq_ignore_ascii_case(text))
            .ok_or_else(|| error(name, unknown(text, self.fields)))?;
        let Some(token @ Token { kind: Kind::Word { text: value, .. }, .. }) = self.peek() else {
            return Err(error(operator, format!("a value should follow '{op}'")));
        };
        self.next += 1;
        let Field { name, unit } = self.fields[field];
        match unit {
            None if matches!(op, ":" | "=" | "!=") => {
                Ok(Node::Text { field, negated: op == "!=", pattern: Pattern::new(value) })
            }
            None => Err(error(operator, format!("{name} holds words: use ':' or '!='"))),
            Some(_) if matches!(op, ":" | "=" | "!=") && value.contains(['*', '?']) => {
                Ok(Node::Text { field, negated: op == "!=", pattern: Pattern::new(value) })
            }
            Some(unit) => {
                let op = match op {
                    ":" | "=" => Comparison::Equal,
                    "!=" => Comparison::NotEqual,
                    "<" => Comparison::Less,
                    "<=" => Comparison::AtMost,
                    ">" => Comparison::More,
                    _ => Comparison::AtLeast,
                };
                let value = number(value, unit).map_err(|message| error(token, message))?;
                Ok(Node::Number { field, op, value })
            }
        }
    }
}

/// A field that does not exist, with the one that was probably meant.
fn unknown(name: &str, fields: &[Field]) -> String {
    let near = fields
        .iter()
        .map(|field| (distance(&name.to_lowercase(), field.name), field.name))
        .filter(|(distance, _)| *distance <= 2)
        .min();
    match near {
        Some((_, near)) => format!("no field '{name}' here; did you mean '{near}'?"),
        None => {
            let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
            format!("no field '{name}' here; there are {}", names.join(" "))
        }
    }
}

/// Edits between two short words; long ones are never near.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// A figure with an optional unit, as the column counts.
fn number(text: &str, unit: Unit) -> Result<f64, String> {
    if unit == Unit::Address || (unit == Unit::Id && text.starts_with("0x")) {
        let digits = text.trim_start_matches("0x");
        return u64::from_str_radix(digits, 16)
            .map(|n| n as f64)
            .map_err(|_| format!("'{text}' is not an address"));
    }
    let (scales, what): (&[(&str, f64)], &str) = match unit {
        Unit::Nanoseconds => (
            &[("", 1.0), ("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9)],
            "a duration: 3us, 1.5ms, 2s",
        ),
        Unit::Bytes => (
            &[
                ("", 1.0),
                ("b", 1.0),
                ("k", 1024.0),
                ("kib", 1024.0),
                ("m", 1048576.0),
                ("mib", 1048576.0),
                ("g", 1073741824.0),
                ("gib", 1073741824.0),
                ("t", 1099511627776.0),
                ("tib", 1099511627776.0),
            ],
            "a size: 4096, 64KiB, 2GiB",
        ),
        Unit::BytesPerSecond => (
            &[
                ("", 1.0),
                ("b/s", 1.0),
                ("k", 1e3),
                ("kb/s", 1e3),
                ("m", 1e6),
                ("mb/s", 1e6),
                ("g", 1e9),
                ("gb/s", 1e9),
            ],
            "a bandwidth: 100MB/s, 2GB/s",
        ),
        Unit::Share => (&[("", 0.01), ("%", 0.01)], "a share in per cent: 90, 99.5%"),
        Unit::Count | Unit::PerSecond | Unit::Ratio | Unit::Id | Unit::Address => (
            &[("", 1.0), ("k", 1e3), ("m", 1e6), ("g", 1e9), ("/s", 1.0), ("k/s", 1e3), ("m/s", 1e6)],
            "a number: 17, 20k, 1.5M",
        ),
    };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let suffix = text[split..].to_lowercase();
    let scale = scales.iter().find(|(name, _)| *name == suffix).map(|(_, scale)| *scale);
    match (text[..split].parse::<f64>(), scale) {
        (Ok(n), Some(scale)) => Ok(n * scale),
        _ => Err(format!("'{text}' is not {what}")),
    }
}
