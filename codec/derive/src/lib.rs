//! `#[ibex::message]` and `#[derive(ibex::Schema)]`.
//!
//! Both are used through the `ibex` crate, and what they generate names
//! everything by a path through `::ibex`. Where that crate goes by another name
//! or is re-exported by another, `crate = path` says so.

#![forbid(unsafe_code)]

mod attributes;
mod message;
mod schema;
mod serde_attributes;

use proc_macro::TokenStream;

/// Makes a struct or an enum a message of the default codec.
///
/// It derives rkyv's `Archive`, `Serialize` and `Deserialize` (through
/// `ibex::rkyv`, so that your `Cargo.toml` needs no line for rkyv) and
/// [`Schema`](derive@Schema). The receiver of an `Entry` sees an
/// `ArchivedEntry` with the same fields.
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
/// Types that contain each other need `recursive` on one of each circle, or the compiler
/// reports an "overflow evaluating the requirement `Expr: Archive`". Its fields of other types
/// then go without bounds of their own, so it is serialized by what can share and allocate, as
/// all of ibex and rkyv's `to_bytes` can.
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
/// A receiver takes a message for invalid whose pointers (boxes, vectors, strings) are nested
/// more than 254 deep: following them must end before its stack does. `send` does not count
/// them, since a count would cost each message of such a type, so a program that builds a deep one
/// keeps to the limit. A list that may be longer is better sent as a `Vec`.
///
/// Attributes of rkyv work as always, for example `#[rkyv(derive(Debug))]` for
/// the archived type or `#[rkyv(with = ..)]` on a field. Those of
/// [`Schema`](derive@Schema) do, too, as `#[ibex(..)]` or here:
/// `#[ibex::message(crate = path)]` uses the ibex crate at `path`.
#[proc_macro_attribute]
pub fn message(arguments: TokenStream, item: TokenStream) -> TokenStream {
    message::expand(arguments.into(), item.into()).into()
}

/// Describes the structure of a struct or an enum, so that both ends of a
/// channel can tell whether they mean the same type.
///
/// For a type that is sent by the default codec, `#[ibex::message]` includes
/// this.
///
/// - `#[ibex(crate = path)]` on the type uses the ibex crate at `path`.
/// - `#[ibex(schema_name = "openraft-0.10")]` on a field or on the type has this name stand
///   for all of its structure: for a type of others that has no schema and too many parts to
///   repeat them. The name is part of the fingerprint, so two programs that give different
///   names do not open the channel. Nobody looks behind it: put into it what decides the
///   bytes, the release of the crate at least, its features and type parameters where they
///   count, and change it whenever they change.
/// - `#[ibex(schema = Type)]` on a field describes it as `Type` is: for a field
///   whose own type is foreign and has no schema. Use a type of the same
///   structure, for example `[u8; 16]` for a UUID.
///
/// A channel of somebody else's type is one of a struct around it:
///
/// ```ignore
/// #[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
/// struct Append(#[ibex(schema_name = "openraft-0.10 TypeConfig")] AppendEntriesRequest<TypeConfig>);
/// ```
///
/// Type parameters have to have a schema themselves, and count as what they stand for. A
/// type with lifetimes gets `WithLifetime` as well, so that it can be received borrowed.
///
/// # Attributes of serde
///
/// The codec `Serde` writes positions, and neither names nor types. Hence, of what stands
/// in `#[serde(..)]`:
///
/// - What names things changes nothing (`rename`, `rename_all`, `alias`), nor do `default`,
///   `transparent`, `borrow`, `bound`, `crate`, `deny_unknown_fields`, `expecting`,
///   `getter` and `remote`.
/// - `with = "serde_bytes"` on a field is described as what it writes; `skip` on a field
///   counts: both ends have it or none.
/// - Another `with`, `serialize_with` or `deserialize_with` needs `#[ibex(schema = Type)]`
///   beside it, since nobody sees what the functions write.
/// - `flatten`, `skip_serializing`, `skip_deserializing`, `skip_serializing_if`, `tag`,
///   `content`, `untagged`, `other`, `from`, `into`, `try_from`, and `skip` and `with` on
///   variants do not compile: the bytes would not say what was left out or comes next.
///
/// Where serde's derives are for another format (JSON in a log) and no channel has the
/// codec `Serde` for the type, `#[ibex(ignore_serde)]` on it steps over all of them.
#[proc_macro_derive(Schema, attributes(ibex, rkyv, serde))]
pub fn derive_schema(item: TokenStream) -> TokenStream {
    schema::expand(item.into()).into()
}
