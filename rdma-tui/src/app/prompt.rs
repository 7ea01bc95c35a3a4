//! The filter line while it is typed.

use super::key::Key;

/// Longest filter; longer input is ignored rather than kept for ever.
const MAX_CHARS: usize = 500;

/// Text and cursor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    chars: Vec<char>,
    /// Place of the cursor, in characters.
    pub cursor: usize,
}

/// What a key did to the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// The text changed.
    Changed,
    /// Only the cursor moved, or nothing happened.
    Moved,
    /// Enter: keep it.
    Accepted,
    /// Esc: as it was before.
    Cancelled,
}

impl Prompt {
    /// A line holding `text`, the cursor at its end.
    pub fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        Self { cursor: chars.len(), chars }
    }

    /// The text.
    pub fn text(&self) -> String {
        self.chars.iter().collect()
    }

    /// Takes a key.
    pub fn key(&mut self, key: Key) -> Edit {
        match key {
            Key::Enter => return Edit::Accepted,
            Key::Esc | Key::Ctrl('c') => return Edit::Cancelled,
            Key::Char(c) if !c.is_control() && self.chars.len() < MAX_CHARS => {
                self.chars.insert(self.cursor, c);
                self.cursor += 1;
                return Edit::Changed;
            }
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.chars.remove(self.cursor);
                return Edit::Changed;
            }
            Key::Delete if self.cursor < self.chars.len() => {
                self.chars.remove(self.cursor);
                return Edit::Changed;
            }
            Key::Ctrl('u') => {
                self.chars.drain(..self.cursor);
                self.cursor = 0;
                return Edit::Changed;
            }
            Key::Ctrl('w') => {
                let before = &self.chars[..self.cursor];
                let end = before.iter().rposition(|c| *c != ' ').map_or(0, |i| i + 1);
                let start = before[..end].iter().rposition(|c| *c == ' ').map_or(0, |i| i + 1);
                self.chars.drain(start..self.cursor);
                self.cursor = start;
                return Edit::Changed;
            }
            Key::Left => self.cursor = self.cursor.saturating_sub(1),
            Key::Right => self.cursor = (self.cursor + 1).min(self.chars.len()),
            Key::Home | Key::Ctrl('a') => self.cursor = 0,
            Key::End | Key::Ctrl('e') => self.cursor = self.chars.len(),
            _ => {}
        }
        Edit::Moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[Key]) -> (String, usize) {
        let mut prompt = Prompt::new("comm:é x");
        for key in keys {
            prompt.key(*key);
        }
        (prompt.text(), prompt.cursor)
    }

    #[test]
    fn keys_edit_where_the_cursor_stands() {
        assert_eq!(typed(&[Key::Backspace]), ("comm:é ".into(), 7));
        assert_eq!(typed(&[Key::Home, Key::Delete]), ("omm:é x".into(), 0));
        assert_eq!(typed(&[Key::Left, Key::Left, Key::Char('z')]), ("comm:éz x".into(), 7));
        assert_eq!(typed(&[Key::Ctrl('w')]), ("comm:é ".into(), 7));
        assert_eq!(typed(&[Key::Ctrl('w'), Key::Ctrl('w')]), (String::new(), 0));
        assert_eq!(typed(&[Key::Left, Key::Ctrl('u')]), ("x".into(), 0));
        assert_eq!(typed(&[Key::Right, Key::End, Key::Delete]), ("comm:é x".into(), 8));
    }

    #[test]
    fn endless_input_does_not_grow_for_ever() {
        let mut prompt = Prompt::default();
        (0..10_000).for_each(|_| _ = prompt.key(Key::Char('x')));
        assert_eq!(prompt.text().len(), MAX_CHARS);
    }
}
