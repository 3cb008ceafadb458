//! `#[ibex::message]` and `#[derive(ibex::Schema)]`.
//!
//! Both macros are used through the `ibex` crate, and the code that they generate names everything
//! by a path through `::ibex`. If that crate goes by another name, or another crate re-exports it,
//! `crate = path` says so.

#![forbid(unsafe_code)]

mod attributes;
mod message;
mod message_part;
mod schema;
mod serde_attributes;

use proc_macro::TokenStream;

/// Makes a struct or an enum a message of the default codec.
///
/// The macro derives rkyv's `Archive`, `Serialize` and `Deserialize` (through `ibex::rkyv`, so that
/// your `Cargo.toml` needs no line for rkyv) and [`Schema`](derive@Schema). The receiver of an
/// `Entry` sees an `ArchivedEntry` with the same fields.
///
/// ```ignore
/// #[ibex::message]
/// struct Entry {
///     offset: u64,
///     data: Vec<u8>,
/// }
/// ```
///
/// A type may contain itself, in a `Vec`, a `Box` or the like: a field that names it, or says
/// `Self`, gets the bounds that rkyv wants for that, unless an attribute of rkyv's speaks of
/// bounds.
///
/// ```ignore
/// #[ibex::message]
/// enum Tree {
///     Leaf(u64),
///     Branch(Vec<Tree>),
/// }
/// ```
///
/// Types that contain each other need `recursive` on one of each circle, or the compiler reports an
/// "overflow evaluating the requirement `Expr: Archive`". Fields of other types in that type then
/// go without bounds of their own, so its serializer must be able to share and allocate, as all of
/// ibex and rkyv's `to_bytes` can.
///
/// ```ignore
/// #[ibex::message(recursive)]
/// enum Expr {
///     Number(u64),
///     Call(Call),
/// }
///
/// #[ibex::message]
/// struct Call {
///     function: String,
///     arguments: Vec<Expr>,
/// }
/// ```
///
/// Pointers (boxes, vectors, strings) are nested at most 254 deep: following them must end before
/// the receiver's stack does. `send` checks each message of a type that contains itself, and
/// refuses a deeper one. A list that may be longer is better sent as a `Vec`.
///
/// Fields of the types `usize` and `isize` do not compile: rkyv stores them in 32 bits, and would
/// cut larger values. Use `u64` and `i64`.
///
/// Attributes of rkyv work as always, for example `#[rkyv(derive(Debug))]` for the archived type or
/// `#[rkyv(with = ..)]` on a field. The attributes of [`Schema`](derive@Schema) work, too, as
/// `#[ibex(..)]` or here: `#[ibex::message(crate = path)]` uses the ibex crate at `path`.
#[proc_macro_attribute]
pub fn message(arguments: TokenStream, item: TokenStream) -> TokenStream {
    message::expand(arguments.into(), item.into()).into()
}

/// Describes the structure of a struct or an enum, so that both ends of a
/// channel can tell whether they mean the same type.
///
/// For a type that is sent by the default codec, `#[ibex::message]` includes this derive.
///
/// - `#[ibex(crate = path)]` on the type uses the ibex crate at `path`.
/// - `#[ibex(schema_name = "openraft-0.10")]` on a field or on the type has this name stand for all
///   of its structure: for a foreign type that has no schema and too many parts to repeat them. The
///   name is part of the fingerprint, so two programs that give different names do not open the
///   channel. Nothing behind the name is compared: put into it what decides the bytes, the release
///   of the crate at least, its features and type parameters where they count, and change it
///   whenever they change.
/// - `#[ibex(schema = Type)]` on a field describes it as `Type` is: for a field
///   whose own type is foreign and has no schema. Use a type of the same
///   structure, for example `[u8; 16]` for a UUID.
///
/// To send a foreign type, declare a struct around it:
///
/// ```ignore
/// #[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
/// struct Append(#[ibex(schema_name = "openraft-0.10 TypeConfig")] AppendEntriesRequest<TypeConfig>);
/// ```
///
/// Type parameters must have a schema themselves, and each counts as the type that it stands for. A
/// type with lifetimes gets `WithLifetime` as well, so that it can be received borrowed.
///
/// # Attributes of serde
///
/// The codec `Serde` writes positions, and neither names nor types. The attributes in
/// `#[serde(..)]` therefore count as follows:
///
/// - Attributes that only name things (`rename`, `rename_all`, `alias`) change nothing, nor do
///   `default`, `transparent`, `borrow`, `bound`, `crate`, `deny_unknown_fields`, `expecting`,
///   `getter` and `remote`.
/// - A field with `with = "serde_bytes"` is described by the bytes that it writes. `skip` on a
///   field counts: both ends must have it, or neither.
/// - Another `with`, `serialize_with` or `deserialize_with` needs `#[ibex(schema = Type)]` beside
///   it, since the derive cannot see what the functions write.
/// - `flatten`, `skip_serializing`, `skip_deserializing`, `skip_serializing_if`, `tag`,
///   `content`, `untagged`, `other`, `from`, `into`, `try_from`, and `skip` and `with` on
///   variants do not compile: the bytes would not say what was left out or comes next.
///
/// If serde's derives are for another format (JSON in a log) and no channel carries the type by the
/// codec `Serde`, `#[ibex(ignore_serde)]` on the type ignores all of them.
#[proc_macro_derive(Schema, attributes(ibex, rkyv, serde))]
pub fn derive_schema(item: TokenStream) -> TokenStream {
    schema::expand(item.into()).into()
}
