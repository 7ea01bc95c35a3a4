//! The clipboard of the terminal one sits at, by its OSC 52 sequence: works through ssh as well.

use std::io::{self, Write};

/// Longest text copied; terminals drop longer ones silently.
pub const MAX_BYTES: usize = 70_000;

/// Writes the sequence that asks the terminal to keep `text` on its clipboard.
///
/// # Errors
/// When it cannot be written.
pub fn copy(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut end = text.len().min(MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    write!(out, "\x1b]52;c;{}\x07", base64(&text.as_bytes()[..end]))?;
    out.flush()
}

/// Base 64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let n = chunk.iter().enumerate().fold(0_u32, |n, (i, b)| n | u32::from(*b) << (16 - 8 * i));
        for digit in 0..4 {
            if digit <= chunk.len() {
                text.push(char::from(DIGITS[(n >> (18 - 6 * digit) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let mut out = Vec::new();
        copy(&mut out, &"é".repeat(MAX_BYTES)).unwrap();
        assert!(out.len() < MAX_BYTES * 4 / 3 + 20);
    }
}
