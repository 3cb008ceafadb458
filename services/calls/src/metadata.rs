//! Metadata of a call: a few typed values by name, beside the request.
//!
//! ```text
//!   0            1      2              4     | key length
//!   | key length | kind | value length | key | value |   one pair behind the other
//!   |     u8     |  u8  |      u16     |
//! ```
//!
//! Rules:
//!
//! 1. Keys are 1 to [`Metadata::MAX_KEY_BYTES`] bytes of visible ASCII, and no key is there twice.
//! 2. There are at most [`Metadata::MAX_PAIRS`] pairs, of at most [`Metadata::MAX_BYTES`] bytes
//!    together, as they stand above.
#![forbid(unsafe_code)]

use std::fmt;

/// Metadata of a call: typed values by name, for what concerns the call and not its request, such as
/// a tenant, a locale or a number of attempts.
///
/// Pairs keep the order in which they were inserted. A key is 1 to 64 bytes of visible ASCII, and
/// stands for one value.
///
/// ```
/// use ibex::calls::{Metadata, MetadataValue};
///
/// let mut metadata = Metadata::new();
/// metadata.insert("tenant", "blue")?;
/// metadata.insert("attempt", 2)?;
/// assert_eq!(metadata.get("tenant"), Some(MetadataValue::Text("blue")));
/// assert_eq!(metadata.get("attempt"), Some(MetadataValue::Integer(2)));
/// assert_eq!(metadata.get("locale"), None);
/// # Ok::<(), ibex::calls::MetadataRefused>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// The pairs as they travel.
    encoded: Vec<u8>,
    pairs: usize,
}

/// A value of [`Metadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetadataValue<'a> {
    /// Text.
    Text(&'a str),
    /// A whole number.
    Integer(i64),
    /// Bytes, for what has an encoding of its own.
    Bytes(&'a [u8]),
}

/// A pair that [`Metadata`] does not take. The metadata is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataRefused {
    /// The key is empty, too long or not visible ASCII.
    #[error(
        "{key:?}{}, of {bytes} bytes, cannot be a key of metadata: a key is 1 to {max} bytes of \
         visible ASCII; choose another",
        if key.len() < *bytes { "…" } else { "" },
        max = Metadata::MAX_KEY_BYTES
    )]
    Key {
        /// The key, cut to its first characters.
        key: String,
        /// The length of the whole key.
        bytes: usize,
    },
    /// There are as many pairs as there may be.
    #[error(
        "metadata takes {max} pairs and no more, so not {key:?}; send it in the request",
        max = Metadata::MAX_PAIRS
    )]
    TooMany {
        /// The key of the pair.
        key: String,
    },
    /// The pair would make the metadata too long.
    #[error(
        "metadata takes {max} bytes and no more; with {key:?} it would have {bytes}; send it in \
         the request",
        max = Metadata::MAX_BYTES
    )]
    TooLong {
        /// The key of the pair.
        key: String,
        /// The length that all pairs would have, 4 bytes for each pair included.
        bytes: usize,
    },
}

impl Metadata {
    /// The most pairs.
    pub const MAX_PAIRS: usize = 16;
    /// The most bytes of all pairs, keys and values and 4 more for each pair.
    pub const MAX_BYTES: usize = 1024;
    /// The longest key, in bytes.
    pub const MAX_KEY_BYTES: usize = 64;

    /// Makes metadata without a pair.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            encoded: Vec::new(),
            pairs: 0,
        }
    }

    /// Adds a pair, behind those that are there. A value that the key had is gone then.
    ///
    /// # Errors
    ///
    /// [`MetadataRefused`]: the key is not one, or there is no room for the pair.
    pub fn insert<'a>(
        &mut self,
        key: &str,
        value: impl Into<MetadataValue<'a>>,
    ) -> Result<(), MetadataRefused> {
        if !is_key(key.as_bytes()) {
            let bytes = key.len();
            let key = key.chars().take(SHOWN_CHARACTERS).collect();
            return Err(MetadataRefused::Key { key, bytes });
        }
        let number;
        let (kind, value) = match value.into() {
            MetadataValue::Text(text) => (TEXT, text.as_bytes()),
            MetadataValue::Integer(integer) => {
                number = integer.to_le_bytes();
                (INTEGER, &number[..])
            }
            MetadataValue::Bytes(bytes) => (BYTES, bytes),
        };
        let before = self.raw().find(|pair| pair.key == key.as_bytes());
        let before = before.map(|pair| pair.at..pair.at + pair.bytes());
        let kept = self.encoded.len() - before.as_ref().map_or(0, ExactSizeIterator::len);
        let bytes = kept + HEAD_BYTES + key.len() + value.len();
        if bytes > Self::MAX_BYTES {
            let key = key.to_owned();
            return Err(MetadataRefused::TooLong { key, bytes });
        }
        if before.is_none() && self.pairs == Self::MAX_PAIRS {
            let key = key.to_owned();
            return Err(MetadataRefused::TooMany { key });
        }
        match before {
            Some(before) => drop(self.encoded.drain(before)),
            None => self.pairs += 1,
        }
        self.encoded.extend([key.len() as u8, kind]);
        self.encoded.extend((value.len() as u16).to_le_bytes());
        self.encoded.extend_from_slice(key.as_bytes());
        self.encoded.extend_from_slice(value);
        Ok(())
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<MetadataValue<'_>> {
        let found = self.iter().find(|(other, _)| *other == key);
        found.map(|(_, value)| value)
    }

    /// Returns the pairs, in the order in which they were inserted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, MetadataValue<'_>)> {
        // Every pair was checked before it got here.
        self.raw().filter_map(|pair| pair.read().ok())
    }

    /// The number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs
    }

    /// Returns whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs == 0
    }

    /// The pairs as they travel.
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Reads pairs that a peer sent.
    ///
    /// # Errors
    ///
    /// `MalformedMetadata`: they break a rule of this module.
    pub fn parse(encoded: &[u8]) -> Result<Self, MalformedMetadata> {
        if encoded.len() > Self::MAX_BYTES {
            return Err(MalformedMetadata::TooLong);
        }
        let mut keys = [&[][..]; Self::MAX_PAIRS];
        let mut pairs = 0;
        let mut rest = Pairs { encoded, at: 0 };
        for pair in &mut rest {
            pair.read()?;
            let Some(place) = keys.get_mut(pairs) else {
                return Err(MalformedMetadata::TooMany);
            };
            *place = pair.key;
            if keys[..pairs].contains(&pair.key) {
                return Err(MalformedMetadata::Twice);
            }
            pairs += 1;
        }
        if rest.at != encoded.len() {
            return Err(MalformedMetadata::Cut);
        }
        Ok(Self {
            encoded: encoded.to_vec(),
            pairs,
        })
    }

    fn raw(&self) -> Pairs<'_> {
        Pairs {
            encoded: &self.encoded,
            at: 0,
        }
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'a> From<&'a str> for MetadataValue<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for MetadataValue<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for MetadataValue<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl<'a> From<&'a [u8]> for MetadataValue<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

/// Metadata that no ibex writes. Always the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what each is")]
pub enum MalformedMetadata {
    #[error("it has more than {max} bytes", max = Metadata::MAX_BYTES)]
    TooLong,
    #[error("it has more than {max} pairs", max = Metadata::MAX_PAIRS)]
    TooMany,
    #[error("it ends within a pair")]
    Cut,
    #[error("a key is not 1 to {max} bytes of visible ASCII", max = Metadata::MAX_KEY_BYTES)]
    Key,
    #[error("a key is there twice")]
    Twice,
    #[error("a value is of kind {0}, which there is not")]
    Kind(u8),
    #[error("a text is not UTF-8")]
    Text,
    #[error("a number has {0} bytes and not 8")]
    Number(usize),
}

/// A pair, not checked.
struct Pair<'a> {
    at: usize,
    kind: u8,
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> Pair<'a> {
    fn bytes(&self) -> usize {
        HEAD_BYTES + self.key.len() + self.value.len()
    }

    fn read(&self) -> Result<(&'a str, MetadataValue<'a>), MalformedMetadata> {
        if !is_key(self.key) {
            return Err(MalformedMetadata::Key);
        }
        let key = str::from_utf8(self.key).map_err(|_| MalformedMetadata::Key)?;
        let value = match self.kind {
            TEXT => {
                let text = str::from_utf8(self.value);
                MetadataValue::Text(text.map_err(|_| MalformedMetadata::Text)?)
            }
            INTEGER => {
                let number = self.value.try_into();
                let length = self.value.len();
                let number = number.map_err(|_| MalformedMetadata::Number(length))?;
                MetadataValue::Integer(i64::from_le_bytes(number))
            }
            BYTES => MetadataValue::Bytes(self.value),
            kind => return Err(MalformedMetadata::Kind(kind)),
        };
        Ok((key, value))
    }
}

/// The pairs of encoded metadata, up to one that is cut.
struct Pairs<'a> {
    encoded: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        let at = self.at;
        let (head, rest) = self.encoded.get(at..)?.split_first_chunk::<HEAD_BYTES>()?;
        let [key, kind, value @ ..] = *head;
        let (key, rest) = rest.split_at_checked(key.into())?;
        let (value, _) = rest.split_at_checked(u16::from_le_bytes(value).into())?;
        let pair = Pair {
            at,
            kind,
            key,
            value,
        };
        self.at += pair.bytes();
        Some(pair)
    }
}

fn is_key(key: &[u8]) -> bool {
    (1..=Metadata::MAX_KEY_BYTES).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic)
}

/// The characters of a refused key that its error has.
const SHOWN_CHARACTERS: usize = 32;
const HEAD_BYTES: usize = 4;
const TEXT: u8 = 0;
const INTEGER: u8 = 1;
const BYTES: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "blue").expect("room");
        metadata.insert("attempt", -2).expect("room");
        metadata.insert("token-bin", &[0, 255][..]).expect("room");
        metadata
    }

    #[test]
    fn pairs_are_read_as_they_were_inserted() {
        let metadata = Metadata::parse(example().encoded()).expect("its own encoding");
        assert_eq!(metadata, example());
        let pairs: Vec<_> = metadata.iter().collect();
        let expected = [
            ("tenant", MetadataValue::Text("blue")),
            ("attempt", MetadataValue::Integer(-2)),
            ("token-bin", MetadataValue::Bytes(&[0, 255])),
        ];
        assert_eq!(pairs, expected);
        assert_eq!(metadata.len(), 3);
    }

    #[test]
    fn a_key_has_the_value_that_was_inserted_last() {
        let mut metadata = example();
        metadata.insert("tenant", "green").expect("room");
        assert_eq!(metadata.get("tenant"), Some(MetadataValue::Text("green")));
        assert_eq!(metadata.len(), 3);
        assert_eq!(Metadata::parse(metadata.encoded()), Ok(metadata));
    }

    #[test]
    fn what_is_beyond_the_bounds_is_refused_and_changes_nothing() {
        let mut metadata = Metadata::new();
        for number in 0..Metadata::MAX_PAIRS {
            metadata.insert(&format!("k{number}"), 1).expect("room");
        }
        let before = metadata.clone();
        let refused = metadata.insert("more", 1);
        let key = "more".to_owned();
        assert_eq!(refused, Err(MetadataRefused::TooMany { key }));
        assert_eq!(metadata, before);
        metadata.insert("k3", "another value").expect("its place");

        let mut metadata = Metadata::new();
        let most = "x".repeat(Metadata::MAX_BYTES - HEAD_BYTES - 1);
        metadata.insert("k", &most).expect("exactly the bound");
        let refused = metadata.insert("l", "");
        assert!(matches!(
            refused,
            Err(MetadataRefused::TooLong { bytes: 1029, .. })
        ));
        let refused = metadata.insert("k", &format!("{most}x"));
        assert!(matches!(
            refused,
            Err(MetadataRefused::TooLong { bytes: 1025, .. })
        ));
        for key in ["", "a b", "ä", "a\n", &"k".repeat(65)] {
            let refused = metadata.insert(key, 1);
            assert!(
                matches!(refused, Err(MetadataRefused::Key { .. })),
                "{key:?}"
            );
        }
        assert_eq!(metadata.get("k"), Some(MetadataValue::Text(&most)));
    }

    #[test]
    fn a_refused_key_is_told_with_its_whole_length() {
        let text = |key: &str| Metadata::new().insert(key, 1).unwrap_err().to_string();
        let rule = "cannot be a key of metadata: a key is 1 to 64 bytes of visible ASCII; choose \
                    another";
        let shown = "k".repeat(SHOWN_CHARACTERS);
        assert_eq!(
            text(&"k".repeat(300)),
            format!("\"{shown}\"…, of 300 bytes, {rule}")
        );
        assert_eq!(text("a b"), format!("\"a b\", of 3 bytes, {rule}"));
        assert_eq!(text(""), format!("\"\", of 0 bytes, {rule}"));
    }

    #[test]
    fn malformed_pairs_are_told_apart() {
        let pair = |key: &[u8], kind, value: &[u8]| {
            let mut pair = vec![key.len() as u8, kind];
            pair.extend_from_slice(&(value.len() as u16).to_le_bytes());
            [pair.as_slice(), key, value].concat()
        };
        let many: Vec<u8> = (0..=Metadata::MAX_PAIRS as u8)
            .flat_map(|number| pair(&[b'a' + number], BYTES, &[]))
            .collect();
        let cases = [
            (vec![0; Metadata::MAX_BYTES + 1], MalformedMetadata::TooLong),
            (many, MalformedMetadata::TooMany),
            (
                pair(b"k", BYTES, &[1])[..5].to_vec(),
                MalformedMetadata::Cut,
            ),
            (vec![1], MalformedMetadata::Cut),
            (pair(b"", BYTES, &[]), MalformedMetadata::Key),
            (pair(b"k\x7f", BYTES, &[]), MalformedMetadata::Key),
            (pair(&[b'k'; 65], BYTES, &[]), MalformedMetadata::Key),
            (pair(b"k", BYTES, &[]).repeat(2), MalformedMetadata::Twice),
            (pair(b"k", 3, &[]), MalformedMetadata::Kind(3)),
            (pair(b"k", TEXT, &[0xff]), MalformedMetadata::Text),
            (pair(b"k", INTEGER, &[1; 7]), MalformedMetadata::Number(7)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Metadata::parse(&bytes), Err(expected));
        }
    }

    proptest! {
        #[test]
        fn bytes_are_malformed_or_the_only_encoding(bytes: Vec<u8>) {
            if let Ok(metadata) = Metadata::parse(&bytes) {
                let mut again = Metadata::new();
                for (key, value) in metadata.iter() {
                    again.insert(key, value).expect("it was there");
                }
                prop_assert_eq!(again.encoded(), bytes);
            }
        }
    }
}
