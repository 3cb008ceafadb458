//! Words for a person at the other end.

use std::fmt;

use ibex_base::Escaped;

/// A sentence that crosses the wire: short, and safe to print.
///
/// The text has at most [`Text::MAX_BYTES`] bytes and is [escaped](Escaped), even if a peer made it.
/// A peer can therefore neither flood a log nor forge a line of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// The longest text, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 1024;

    /// Escapes the words, and keeps as many characters as fit.
    pub fn new(words: &str) -> Text {
        let mut kept = Escaped(words).to_string();
        let ends = kept.char_indices().map(|(at, one)| at + one.len_utf8());
        let end = ends.take_while(|end| *end <= Text::MAX_BYTES).last();
        kept.truncate(end.unwrap_or(0));
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
        assert_eq!(Text::new("a\nb\x1b[2Jc").as_str(), r"a\nb\u{1b}[2Jc");
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
