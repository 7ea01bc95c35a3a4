//! The filter line cut into words, operators and brackets, each with its place.

use super::FilterError;

/// One piece of the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// First character, counted from 0.
    pub at: usize,
    /// Length in characters.
    pub len: usize,
    /// What it is.
    pub kind: Kind,
}

/// Kinds of pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A word, quotes taken off.
    Word {
        /// Its text.
        text: String,
        /// It stood in quotes, so it is never a keyword.
        quoted: bool,
    },
    /// `:`, `=`, `!=`, `<`, `<=`, `>`, `>=`.
    Operator(&'static str),
    /// `(`.
    Open,
    /// `)`.
    Close,
    /// `!`, which is `not`.
    Not,
}

/// Longest first: `<=` is not `<` and something.
const OPERATORS: [&str; 7] = ["!=", "<=", ">=", ":", "=", "<", ">"];

/// Cuts the line.
pub fn tokens(text: &str) -> Result<Vec<Token>, FilterError> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let (len, kind) = match rest[0] {
            c if c.is_whitespace() => {
                at += 1;
                continue;
            }
            '(' => (1, Kind::Open),
            ')' => (1, Kind::Close),
            '"' => {
                let Some(end) = rest[1..].iter().position(|c| *c == '"') else {
                    let message = "the quotes are never closed".to_owned();
                    return Err(FilterError { at, len: rest.len(), message });
                };
                (end + 2, Kind::Word { text: rest[1..=end].iter().collect(), quoted: true })
            }
            _ => match operator(rest) {
                Some(op) => (op.len(), Kind::Operator(op)),
                None if rest[0] == '!' => (1, Kind::Not),
                None => {
                    // After an operator a value may contain what would otherwise be an operator: `dgid:fe80::1`.
                    let is_value = matches!(tokens.last(), Some(Token { kind: Kind::Operator(_), .. }));
                    let ends = |i: usize| {
                        let c = rest[i];
                        c.is_whitespace()
                            || matches!(c, '(' | ')' | '"')
                            || (!is_value && operator(&rest[i..]).is_some())
                    };
                    let len = (1..rest.len()).find(|i| ends(*i)).unwrap_or(rest.len());
                    (len, Kind::Word { text: rest[..len].iter().collect(), quoted: false })
                }
            },
        };
        tokens.push(Token { at, len, kind });
        at += len;
    }
    Ok(tokens)
}

fn operator(rest: &[char]) -> Option<&'static str> {
    OPERATORS.into_iter().find(|op| op.chars().enumerate().all(|(i, c)| rest.get(i) == Some(&c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        tokens(text).unwrap().into_iter().map(|t| t.kind).collect()
    }

    fn word(text: &str) -> Kind {
        Kind::Word { text: text.into(), quoted: false }
    }

    #[test]
    fn operators_take_their_longest_form() {
        assert_eq!(kinds("a<=1"), [word("a"), Kind::Operator("<="), word("1")]);
        assert_eq!(kinds("!a"), [Kind::Not, word("a")]);
        assert_eq!(kinds("a != b"), [word("a"), Kind::Operator("!="), word("b")]);
    }

    #[test]
    fn a_value_may_hold_colons() {
        assert_eq!(kinds("dgid:fe80::1 x"), [word("dgid"), Kind::Operator(":"), word("fe80::1"), word("x")]);
    }

    #[test]
    fn places_count_characters_not_bytes() {
        let tokens = tokens("é (b").unwrap();
        assert_eq!((tokens[1].at, tokens[2].at), (2, 3));
    }
}
