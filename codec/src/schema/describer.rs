//! Collects the structure of a type, as a hash for the peers to compare and as
//! text for people to read why they differ.
//!
//! Rules:
//!
//! 1. The hash covers a sequence of tokens, each a tag, a length and that many
//!    bytes. Lists end in a token of their own. So the sequence can be read back
//!    in one way only, and two structures that differ anywhere differ here.
//! 2. Names of types that a user defined are text and never hashed; names of
//!    fields and variants and of standard types are hashed, and those that a user gave to a
//!    type in place of its structure.
//! 3. A type that is met again inside itself is hashed as the number of types that were entered
//!    since. This ends recursion. The type's own name identifies it, and like every type name goes
//!    into no hash.
//! 4. The text is cut at its limit; the hash never is.

#![forbid(unsafe_code)]

use std::any;

use super::{MAX_TEXT_BYTES, Schema, SchemaInfo};
use crate::fingerprint::Fnv1a;

/// The receiver of a description by [`Schema::describe`].
///
/// Derived implementations call [`structure`](Self::structure) and
/// [`enumeration`](Self::enumeration). An implementation written by hand, for a type that archives
/// as another does, simply describes that other type.
#[derive(Debug)]
pub struct Describer {
    hash: Fnv1a,
    text: String,
    text_is_cut: bool,
    /// Names of the user's types that are being described, outermost first.
    entered: Vec<&'static str>,
}

impl Describer {
    /// Begins the description of a message under `codec`.
    pub(crate) fn new(codec: &str, features: &[&str]) -> Self {
        let mut this = Self {
            hash: Fnv1a::new(),
            text: String::new(),
            text_is_cut: false,
            entered: Vec::new(),
        };
        this.token(Token::Codec, codec.as_bytes());
        for feature in features {
            this.token(Token::Feature, feature.as_bytes());
        }
        this.end();

        this.push(codec);
        if !features.is_empty() {
            this.push(" (");
            this.push(&features.join(", "));
            this.push(")");
        }
        this.push(": ");
        this
    }

    /// A type without parts, like `u64`.
    pub fn atom(&mut self, name: &str) {
        self.token(Token::Atom, name.as_bytes());
        self.push(name);
    }

    /// A type whose parts are not described. A name stands for them, for example that of the crate
    /// and release that it comes from. Another name is another structure.
    pub fn named(&mut self, name: &str) {
        self.token(Token::Named, name.as_bytes());
        self.push(&format!("{name:?}"));
    }

    /// A standard type made of others, like `HashMap<K, V>`: each of `parts` is
    /// the [`Schema::describe`] of one of them.
    pub fn compound(&mut self, name: &str, parts: &[fn(&mut Describer)]) {
        self.token(Token::Compound, name.as_bytes());
        self.push(name);
        self.parts("<", parts, ">");
    }

    /// Describes a tuple.
    pub fn tuple(&mut self, parts: &[fn(&mut Describer)]) {
        self.token(Token::Tuple, &[]);
        self.parts("(", parts, ")");
    }

    /// An array of `len` elements.
    pub fn array(&mut self, len: usize, element: fn(&mut Describer)) {
        self.token(Token::Array, &(len as u64).to_le_bytes());
        self.push("[");
        element(self);
        self.push(&format!("; {len}]"));
    }

    /// A struct `T`, called `name` in the text.
    pub fn structure<T: ?Sized>(&mut self, name: &str, fields: impl FnOnce(&mut Fields<'_>)) {
        if self.enter(name, any::type_name::<T>(), Token::Structure) {
            self.fields(fields);
            self.entered.pop();
        }
    }

    /// An enum `T`, called `name` in the text.
    pub fn enumeration<T: ?Sized>(&mut self, name: &str, variants: impl FnOnce(&mut Variants<'_>)) {
        if self.enter(name, any::type_name::<T>(), Token::Enumeration) {
            let mut list = Variants {
                to: self,
                is_first: true,
            };
            variants(&mut list);
            let is_empty = list.is_first;
            self.close(is_empty);
            self.entered.pop();
        }
    }

    pub(crate) fn finish(self) -> SchemaInfo {
        SchemaInfo {
            fingerprint: self.hash.finish(),
            text: self.text,
        }
    }

    /// Begins the type whose full name is `key`. Returns false if it is being described already: a
    /// reference outward describes it then (rule 3).
    fn enter(&mut self, name: &str, key: &'static str, kind: Token) -> bool {
        self.push(name);
        let mut inward = self.entered.iter().rev();
        let outward = inward.position(|entered| *entered == key);
        match outward {
            Some(outward) => self.token(Token::Outward, &(outward as u64).to_le_bytes()),
            None => {
                self.entered.push(key);
                self.token(kind, &[]);
            }
        }
        outward.is_none()
    }

    fn fields(&mut self, fields: impl FnOnce(&mut Fields<'_>)) {
        let mut list = Fields {
            to: self,
            is_first: true,
        };
        fields(&mut list);
        let is_empty = list.is_first;
        self.close(is_empty);
    }

    fn close(&mut self, is_empty: bool) {
        if !is_empty {
            self.push(" }");
        }
        self.end();
    }

    fn parts(&mut self, open: &str, parts: &[fn(&mut Describer)], close: &str) {
        self.push(open);
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.push(", ");
            }
            part(self);
        }
        self.push(close);
        self.end();
    }

    fn token(&mut self, tag: Token, bytes: &[u8]) {
        self.hash.update(&[tag as u8]);
        self.hash.update(&(bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    fn end(&mut self) {
        self.token(Token::End, &[]);
    }

    fn push(&mut self, text: &str) {
        if self.text_is_cut {
            return;
        }
        if self.text.len() + text.len() + CUT.len() <= MAX_TEXT_BYTES {
            self.text.push_str(text);
            return;
        }
        let mut room = text.len().min(MAX_TEXT_BYTES - CUT.len() - self.text.len());
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        self.text.push_str(&text[..room]);
        self.text.push_str(CUT);
        self.text_is_cut = true;
    }
}

/// The fields of a struct or of one variant, in order.
#[derive(Debug)]
pub struct Fields<'a> {
    to: &'a mut Describer,
    is_first: bool,
}

impl Fields<'_> {
    /// The next field. The fields of tuple structs are called `0`, `1` and so on.
    pub fn field<T: Schema + ?Sized>(&mut self, name: &str) {
        self.name(name);
        T::describe(self.to);
    }

    /// The next field, which the codec stores as `wrapper` says and not as its
    /// type would be (`#[rkyv(with = wrapper)]`, `#[serde(skip)]`).
    pub fn wrapped<T: Schema + ?Sized>(&mut self, name: &str, wrapper: &str) {
        self.name(name);
        self.to.compound(wrapper, &[T::describe]);
    }

    fn name(&mut self, name: &str) {
        self.to.token(Token::Field, name.as_bytes());
        self.to.push(if self.is_first { " { " } else { ", " });
        self.to.push(name);
        self.to.push(": ");
        self.is_first = false;
    }
}

/// The variants of an enum, in order.
#[derive(Debug)]
pub struct Variants<'a> {
    to: &'a mut Describer,
    is_first: bool,
}

impl Variants<'_> {
    /// The next variant, with the value of its discriminant and its fields.
    pub fn variant(
        &mut self,
        name: &str,
        discriminant: i128,
        fields: impl FnOnce(&mut Fields<'_>),
    ) {
        self.to.token(Token::Variant, name.as_bytes());
        self.to
            .token(Token::Discriminant, &discriminant.to_le_bytes());
        self.to.push(if self.is_first { " { " } else { ", " });
        self.is_first = false;
        self.to.push(name);
        self.to.fields(fields);
    }
}

/// The tags of rule 1. Their numbers are part of every fingerprint: they are never changed, only
/// added to.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Token {
    End = 0,
    Codec = 1,
    Feature = 2,
    Atom = 3,
    Compound = 4,
    Tuple = 5,
    Array = 6,
    Structure = 7,
    Enumeration = 8,
    Field = 9,
    Variant = 10,
    Discriminant = 11,
    Outward = 12,
    Named = 13,
}

const CUT: &str = "…";

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(names: &[&str]) -> String {
        let mut describer = Describer::new("test", &[]);
        for name in names {
            describer.atom(name);
        }
        describer.finish().text
    }

    #[test]
    fn text_is_cut_at_its_limit_and_on_a_character() {
        let long = "é".repeat(MAX_TEXT_BYTES);
        let text = text_of(&[&long, "unseen"]);
        assert!(text.len() <= MAX_TEXT_BYTES && text.len() > MAX_TEXT_BYTES - 4);
        assert!(text.ends_with("é…"), "{text}");
    }

    #[test]
    fn parts_cut_off_the_text_still_count_in_the_fingerprint() {
        let long = "x".repeat(2 * MAX_TEXT_BYTES);
        let info = |last: &str| {
            let mut describer = Describer::new("test", &[]);
            describer.atom(&long);
            describer.atom(last);
            describer.finish()
        };
        assert_eq!(info("u32").text, info("u64").text);
        assert_ne!(info("u32").fingerprint, info("u64").fingerprint);
    }

    #[test]
    fn where_a_name_ends_counts() {
        let info = |names: [&str; 2]| {
            let mut describer = Describer::new("test", &names);
            describer.atom("u8");
            describer.finish().fingerprint
        };
        assert_ne!(info(["ab", "c"]), info(["a", "bc"]));
    }
}
