//! Codecs turn a value into bytes where they will travel, and bytes back into a view where they
//! arrived.
//!
//! A [`Codec`] writes through a [`SlotWriter`] straight into ring memory and
//! hands the receiver a view of the payload in place. These come with ibex:
//!
//! | codec | messages | the receiver sees |
//! |---|---|---|
//! | [`Rkyv`] (default) | any type with `#[ibex::message]` | the archived value, checked, in place |
//! | [`Raw`] | `[u8]` | the bytes |
//! | [`Pod`] | plain old data and slices of it | the value or slice, in place |
//! | [`Serde`] | any type with serde's derives and `#[derive(ibex::Schema)]` | the value, decoded |
//! | [`SerdeBorrowed`] | the same where it borrows | the value on demand, borrowing from the bytes |
//!
//! A program's own codec is an `impl` of [`Codec`], whose documentation has an example.
//!
//! Both ends of a channel compare [`SchemaInfo`] when they open it: a
//! structural [`Fingerprint`] of the message type and its codec, made by
//! [`Schema`].
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "serde")]
mod bounded_deserializer;
#[cfg(feature = "serde")]
mod bounded_serializer;
mod byte_string;
mod codec;
mod error;
mod fingerprint;
#[cfg(feature = "rkyv")]
mod message_part;
mod pod;
mod raw;
#[cfg(feature = "rkyv")]
mod rkyv_codec;
#[cfg(feature = "rkyv")]
mod rkyv_scratch;
mod schema;
#[cfg(feature = "serde")]
mod serde_borrowed;
#[cfg(feature = "serde")]
mod serde_codec;
mod slot_writer;
mod standard_types;
mod with_lifetime;

pub use bytemuck;
pub use ibex_derive::{Schema, message};
#[cfg(feature = "rkyv")]
pub use rkyv;
#[cfg(feature = "serde")]
pub use {serde, serde_bytes};

pub use crate::byte_string::ByteString;
pub use crate::codec::{Codec, MAX_ALIGNMENT, MIN_ALIGNMENT};
pub use crate::error::{EncodeError, Invalid, Overflow};
pub use crate::fingerprint::Fingerprint;
#[cfg(feature = "rkyv")]
pub use crate::message_part::MessagePart;
pub use crate::pod::Pod;
pub use crate::raw::Raw;
#[cfg(feature = "rkyv")]
pub use crate::rkyv_codec::Rkyv;
#[cfg(feature = "rkyv")]
pub use crate::rkyv_scratch::RkyvSerializer;
pub use crate::schema::{Describer, Fields, MAX_TEXT_BYTES, Schema, SchemaInfo, Variants};
#[cfg(feature = "serde")]
pub use crate::serde_borrowed::SerdeBorrowed;
#[cfg(feature = "serde")]
pub use crate::serde_codec::Serde;
pub use crate::slot_writer::SlotWriter;
pub use crate::with_lifetime::WithLifetime;
