//! The words of a trigger.

use super::figure::{EXAMPLES, Figure, Unit};
use super::{Condition, Operator};

/// Longest trigger: longer ones are a mistake.
const MAX_BYTES: usize = 4096;

/// What is wrong with a trigger, and with which piece of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{piece}' (character {at}): {reason}")]
pub struct ParseError {
    /// The piece.
    pub piece: String,
    /// Where it begins, in characters from 1.
    pub at: usize,
    /// What is wrong with it, and what would be right.
    pub reason: String,
}

/// Alternatives of conditions that hold together.
pub fn parse(text: &str) -> Result<Vec<Vec<Condition>>, ParseError> {
    if text.len() > MAX_BYTES {
        let piece = text.chars().take(20).collect::<String>() + "…";
        return Err(ParseError { piece, at: 1, reason: format!("longer than {MAX_BYTES} bytes") });
    }
    let words = words(text)?;
    let mut words = words.iter().peekable();
    let mut any = Vec::new();
    let mut all = Vec::new();
    loop {
        all.push(condition(&mut words, text)?);
        match words.next() {
            None => break,
            Some(word) if word.text == "and" => {}
            Some(word) if word.text == "or" => any.push(std::mem::take(&mut all)),
            Some(word) => return Err(word.error("expected 'and' or 'or' here")),
        }
    }
    any.push(all);
    Ok(any)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Word {
    text: String,
    at: usize,
}

impl Word {
    fn error(&self, reason: impl Into<String>) -> ParseError {
        ParseError { piece: self.text.clone(), at: self.at, reason: reason.into() }
    }
}

/// Cuts a trigger into names, operators and values.
fn words(text: &str) -> Result<Vec<Word>, ParseError> {
    let is_sign = |c: char| matches!(c, '>' | '<' | '=');
    let mut words: Vec<Word> = Vec::new();
    let mut begun = false;
    for (at, c) in text.chars().enumerate() {
        let at = at + 1;
        if c.is_whitespace() {
            begun = false;
        } else if is_sign(c) || c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '-' | '%') {
            let same = words.last().is_some_and(|w| w.text.ends_with(is_sign) == is_sign(c));
            if begun && same {
                words.iter_mut().last().into_iter().for_each(|word| word.text.push(c));
            } else {
                words.push(Word { text: c.to_string(), at });
            }
            begun = true;
        } else {
            let reason = "has no meaning here; conditions are joined with 'and' and 'or'".to_owned();
            return Err(ParseError { piece: c.to_string(), at, reason });
        }
    }
    Ok(words)
}

fn condition<'a>(
    words: &mut std::iter::Peekable<impl Iterator<Item = &'a Word>>,
    text: &str,
) -> Result<Condition, ParseError> {
    let Some(name) = words.next() else {
        let at = text.chars().count() + 1;
        let reason =
            format!("a condition is missing here, such as reg_latency_p99>1ms; figures are {EXAMPLES}");
        return Err(ParseError { piece: String::new(), at, reason });
    };
    if name.text.starts_with("SIG") {
        return match name.text.as_str() {
            "SIGUSR1" => Ok(Condition::Signal(libc::SIGUSR1)),
            "SIGUSR2" => Ok(Condition::Signal(libc::SIGUSR2)),
            _ => Err(name.error("only SIGUSR1 and SIGUSR2 can be waited for")),
        };
    }
    let Some(figure) = Figure::named(&name.text) else {
        return Err(name.error(format!("no such figure; there are {EXAMPLES}")));
    };
    let Some(sign) = words.next_if(|word| word.text.starts_with(['>', '<', '='])) else {
        // Alone, a figure that counts means "more than none".
        return if figure.unit() == Unit::Count {
            Ok(Condition::Figure(figure, Operator::Above, 0.0))
        } else {
            Err(name.error("needs a value to compare with, such as >1ms"))
        };
    };
    let operator = [Operator::Above, Operator::AtLeast, Operator::Below, Operator::AtMost]
        .into_iter()
        .find(|operator| operator.sign() == sign.text)
        .ok_or_else(|| sign.error("compare with >, >=, < or <="))?;
    let Some(value) = words.next() else {
        return Err(sign.error("a value is missing after it"));
    };
    Ok(Condition::Figure(figure.clone(), operator, amount(value, figure.unit())?))
}

/// A number with the unit that fits the figure: ns, bytes, or plain.
fn amount(word: &Word, unit: Unit) -> Result<f64, ParseError> {
    let digits = word.text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.text.len());
    let (number, suffix) = word.text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| word.error("not a number"))?;
    let scale = match (unit, suffix) {
        (Unit::Time, "ns") => 1.0,
        (Unit::Time, "us" | "µs") => 1e3,
        (Unit::Time, "ms") => 1e6,
        (Unit::Time, "s") => 1e9,
        (Unit::Time, "") => return Err(word.error("needs a unit: ns, us, ms or s")),
        (Unit::Time, _) => return Err(word.error(format!("unknown unit '{suffix}': use ns, us, ms or s"))),
        (Unit::Bytes, "" | "B") => 1.0,
        (Unit::Bytes, "KiB" | "K") => 1024.0,
        (Unit::Bytes, "MiB" | "M") => 1024.0 * 1024.0,
        (Unit::Bytes, "GiB" | "G") => 1024.0 * 1024.0 * 1024.0,
        (Unit::Bytes, _) => return Err(word.error(format!("unknown unit '{suffix}': use KiB, MiB or GiB"))),
        (Unit::PerSecond, "" | "/s") | (Unit::Count, "") => 1.0,
        (Unit::PerSecond, "k/s" | "k") | (Unit::Count, "k") => 1e3,
        (Unit::PerSecond, "M/s" | "M") | (Unit::Count, "M") => 1e6,
        (Unit::PerSecond, _) => {
            return Err(
                word.error(format!("unknown unit '{suffix}': a rate is a number per second, such as 5k/s"))
            );
        }
        (Unit::Count, _) => {
            return Err(word.error(format!("'{suffix}' has no meaning: this is a plain number")));
        }
    };
    Ok(number * scale)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(text: &str) -> Condition {
        let mut any = parse(text).unwrap();
        assert_eq!((any.len(), any[0].len()), (1, 1), "{text}");
        any.remove(0).remove(0)
    }

    #[test]
    fn conditions_are_read_with_or_without_blanks() {
        let expected = Condition::Figure(Figure::Latency("reg".into(), 990), Operator::Above, 1e6);
        for text in ["reg_latency_p99>1ms", " reg_latency_p99 > 1ms ", "reg_latency_p99 >1000us"] {
            assert_eq!(one(text), expected, "{text}");
        }
        assert_eq!(one("cqe_error"), Condition::Figure(Figure::CqeError, Operator::Above, 0.0));
        assert_eq!(
            one("live_mr_bytes>=2GiB"),
            Condition::Figure(Figure::LiveMrBytes, Operator::AtLeast, 2_147_483_648.0)
        );
        assert_eq!(one("SIGUSR2"), Condition::Signal(libc::SIGUSR2));
    }

    #[test]
    fn and_binds_closer_than_or() {
        let any = parse("cqe_error and live_qps>3 or SIGUSR1").unwrap();
        assert_eq!(any.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, piece, at) in [
            ("reg_latency_p98>1ms", "reg_latency_p98", 1),
            ("cqe_error and reg_latency_p99>1parsec", "1parsec", 31),
            ("reg_latency_p99>1", "1", 17),
            ("reg_latency_p99", "reg_latency_p99", 1),
            ("cqe_error xor lost", "xor", 11),
            ("cqe_error | lost", "|", 11),
            ("SIGKILL", "SIGKILL", 1),
            ("lost=>1", "=>", 5),
            ("lost>", ">", 5),
            ("", "", 1),
            ("lost or", "", 8),
            ("lost>1 2", "2", 8),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.piece.as_str(), error.at), (piece, at), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }

        #[test]
        fn no_words_of_the_language_make_it_panic(words in prop::collection::vec(
            prop::sample::select(vec!["and", "or", "cqe_error", ">", "<=", "1", "1ms", "reg_rate", "SIGUSR1", "9e9", "."]), 0..12)
        ) {
            let _ = parse(&words.join(" "));
            let _ = parse(&words.concat());
        }
    }
}
