//! The structure of a type, for two programs that want to agree on it.

#![forbid(unsafe_code)]

mod describer;

use std::fmt;

use crate::fingerprint::Fingerprint;
pub use describer::{Describer, Fields, Variants};

/// A type that can describe its structure.
///
/// `#[ibex::message]` and `#[derive(ibex::Schema)]` implement the trait; ibex implements it for the
/// types of the standard library that messages are made of. Type parameters count as the types that
/// they are instantiated with. A reference or a `Cow` describes itself as the type that it refers
/// to, a slice as a `Vec`, a `str` as a `String`: the sender may borrow what the receiver owns.
///
/// `Range` has a schema and `RangeInclusive` has none: one that was iterated to its end is empty, and
/// both rkyv and serde would carry it as one that still holds its last value. Send its two ends.
///
/// The names of structs and enums are no part of the structure, only those of fields and variants:
/// a type may move to another module or get another name on one side alone.
///
/// ```
/// use ibex_codec::{Schema, SchemaInfo};
/// # mod ibex { pub use ibex_codec::Schema; pub use ibex_codec as codec; }
///
/// #[derive(ibex::Schema)]
/// # #[ibex(crate = ibex)]
/// enum Event<T> {
///     Started { at: u64 },
///     Value(T),
/// }
///
/// let schema = SchemaInfo::of::<Event<Vec<f32>>>("example", &[]);
/// assert_eq!(
///     schema.text,
///     "example: Event { Started { at: u64 }, Value { 0: Vec<f32> } }"
/// );
/// ```
#[diagnostic::on_unimplemented(
    message = "ibex does not know the structure of `{Self}`",
    label = "has no schema",
    note = "add `#[ibex::message]` or `#[derive(ibex::Schema)]` to the type if it is yours",
    note = "for a field of a foreign type, name a type of the same structure: `#[ibex(schema = [u8; 16])]`, \
            or the type itself and its release: `#[ibex(schema_name = \"uuid-1\")]`"
)]
pub trait Schema {
    /// Describes the structure of this type to `to`.
    fn describe(to: &mut Describer);
}

/// The schema that both ends of a channel compare and, where they differ, show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaInfo {
    /// Equal at both ends, or the channel does not open.
    pub fingerprint: Fingerprint,
    /// The structure for a reader, at most [`MAX_TEXT_BYTES`] long.
    pub text: String,
}

impl SchemaInfo {
    /// The schema of messages of type `T` under `codec`; `features` are the
    /// properties of the codec's build that change the bytes.
    pub fn of<T: Schema + ?Sized>(codec: &str, features: &[&str]) -> Self {
        let mut describer = Describer::new(codec, features);
        T::describe(&mut describer);
        describer.finish()
    }
}

impl fmt::Display for SchemaInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.text, self.fingerprint)
    }
}

/// The longest [`SchemaInfo::text`]. The text travels to the peer when a channel is opened and
/// stands in an error message. A kilobyte shows which field differs in most types, and nobody would
/// read more.
pub const MAX_TEXT_BYTES: usize = 1024;
