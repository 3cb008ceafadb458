//! Text that a peer chose, as it may stand in a log or in an error.
#![forbid(unsafe_code)]

use std::fmt::{self, Write as _};

/// Text that a peer chose: `Display` writes it with every character escaped that is not printed as
/// itself.
///
/// Such characters begin lines, drive terminals, reverse the direction of text, or are invisible:
/// a line feed, an escape, U+202E, U+2028, U+200B and their kin become `\n`, `\u{1b}`, `\u{202e}`
/// and so on. So a peer can neither forge a line of a log nor hide a part of one. Quotes and
/// backslashes stay as they are, which is why text that was escaped before is not changed again.
///
/// ```
/// use ibex_base::Escaped;
///
/// assert_eq!(Escaped("a\nb").to_string(), "a\\nb");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escaped<'a>(pub &'a str);

impl Escaped<'_> {
    /// Returns whether the text is written as it is.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.0.chars().all(is_plain)
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            _ if is_plain(character) => f.write_char(character),
            _ => character
                .escape_debug()
                .try_for_each(|one| f.write_char(one)),
        })
    }
}

/// Returns whether the character is printed as itself. The standard library's `Debug` knows which
/// are: it has the tables of Unicode. An accent, which it escapes where nothing comes before, is
/// printed on the character before it.
fn is_plain(character: char) -> bool {
    if matches!(character, '"' | '\'' | '\\' | ' '..='~') {
        return true;
    }
    let mut with_one_before = [0; 8];
    with_one_before[0] = b'x';
    let length = 1 + character.encode_utf8(&mut with_one_before[1..]).len();
    let text = std::str::from_utf8(&with_one_before[..length]).unwrap_or("\0");
    text.escape_debug().nth(1) == Some(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printed_as_itself_is_escaped() {
        for (text, shown) in [
            ("\n\r\t\0", r"\n\r\t\0"),
            ("\x1b[2J\x7f\u{9b}", r"\u{1b}[2J\u{7f}\u{9b}"),
            ("\u{202e}\u{2066}\u{200f}", r"\u{202e}\u{2066}\u{200f}"),
            ("\u{2028}\u{2029}\u{85}", r"\u{2028}\u{2029}\u{85}"),
            (
                "\u{200b}\u{feff}\u{ad}\u{a0}",
                r"\u{200b}\u{feff}\u{ad}\u{a0}",
            ),
            (
                "\u{e000}\u{e0041}\u{10ffff}",
                r"\u{e000}\u{e0041}\u{10ffff}",
            ),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
            assert!(!Escaped(text).is_plain(), "{shown}");
            assert_eq!(Escaped(shown).to_string(), shown, "escaped once more");
        }
    }

    #[test]
    fn words_of_any_language_stay_as_they_are() {
        for text in [
            "{ offset: u64, name: \"it's\" } \\ ~",
            "Zürich, e\u{301}, Ελλάδα, Россия, 東京, हिन्दी, עברית, العربية, 🦀",
        ] {
            assert_eq!(Escaped(text).to_string(), text);
            assert!(Escaped(text).is_plain());
        }
    }
}
