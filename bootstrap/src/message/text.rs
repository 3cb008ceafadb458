//! Words for a person at the other end.

use std::fmt;

/// A sentence that crosses the wire: short, and safe to print.
///
/// The text has at most [`Text::MAX_BYTES`] bytes and no control character, even if a peer made it.
/// A peer can therefore neither flood a log nor forge a line of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// The longest text, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 1024;

    /// Keeps as many characters as fit; a control character becomes `?`.
    pub fn new(words: &str) -> Text {
        let mut kept = String::with_capacity(words.len().min(Text::MAX_BYTES));
        for character in words.chars() {
            let character = if character.is_control() {
                '?'
            } else {
                character
            };
            if kept.len() + character.len_utf8() > Text::MAX_BYTES {
                break;
            }
            kept.push(character);
        }
        Text(kept)
    }

    /// The words.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_short_and_printable() {
        assert_eq!(Text::new("a\nb\x1b[2Jc").as_str(), "a?b?[2Jc");
        assert_eq!(Text::new(&"x".repeat(9000)).as_str().len(), Text::MAX_BYTES);
    }

    #[test]
    fn a_text_is_never_cut_inside_a_character() {
        let text = Text::new(&"€".repeat(9000));
        // Each of these characters has three bytes.
        assert_eq!(text.as_str().len(), Text::MAX_BYTES / 3 * 3);
        assert!(text.as_str().chars().all(|character| character == '€'));
    }
}
