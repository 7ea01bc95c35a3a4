//! Patterns with `*` and `?`, without regard to case.

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    chars: Vec<char>,
}

impl Pattern {
    /// A pattern as written.
    pub fn new(text: &str) -> Self {
        Self { chars: folded(text).collect() }
    }

    /// Whether it fits the whole of `text`.
    pub fn matches(&self, text: &str) -> bool {
        let text: Vec<char> = folded(text).collect();
        fits(&self.chars, &text)
    }

    /// Whether it fits some part of `text`.
    pub fn found_in(&self, text: &str) -> bool {
        let text: Vec<char> = folded(text).collect();
        let open: Vec<char> =
            std::iter::once('*').chain(self.chars.iter().copied()).chain(std::iter::once('*')).collect();
        fits(&open, &text)
    }
}

fn folded(text: &str) -> impl Iterator<Item = char> {
    text.chars().flat_map(char::to_lowercase)
}

/// Without recursion, and in `pattern × text` steps at worst: each `*` goes back to itself only.
fn fits(pattern: &[char], text: &[char]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_fit_whole_words() {
        for (pattern, text, fit) in [
            ("ib_*", "ib_write_bw", true),
            ("ib_*_bw", "ib_write_bw", true),
            ("ib_?rite_bw", "ib_write_bw", true),
            ("ib", "ib_write_bw", false),
            ("*", "", true),
            ("?", "", false),
            ("RTS", "rts", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), fit, "{pattern} on {text}");
        }
        assert!(Pattern::new("write").found_in("ib_write_bw"));
    }

    #[test]
    fn many_stars_do_not_explode() {
        let pattern = Pattern::new(&"a*".repeat(200));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(100))));
    }
}
