//! Identifiers of 64 bits, as text.
#![forbid(unsafe_code)]

use std::fmt;

/// A 64-bit identifier in the form of `ibv_devinfo`.
pub(crate) struct Guid(pub(crate) u64);

impl Guid {
    /// Reads a device's name of the form `guid:0002:c903:0000:0001`; `None` for another name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let words: Vec<_> = name.strip_prefix("guid:")?.split(':').collect();
        let is_word =
            |word: &&str| word.len() == 4 && word.bytes().all(|one| one.is_ascii_hexdigit());
        match words.len() == 4 && words.iter().all(is_word) {
            true => u64::from_str_radix(&words.concat(), 16).ok().map(Self),
            false => None,
        }
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |place: u32| self.0 >> (16 * place) & 0xffff;
        let [a, b, c, d] = [3, 2, 1, 0].map(word);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}
