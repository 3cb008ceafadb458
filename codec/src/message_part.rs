//! The types that messages of the codec `Rkyv` may be made of.
//!
//! rkyv archives more types than it carries whole: it cuts `usize` and `isize` to 32 bits without
//! an error. So the codec asks for a trait of ours, which those types do not have. Most types of the
//! standard library get it in `standard_types.rs`, together with their schema; here stand those for
//! which it matters whether a value takes bytes, and the borrowed forms.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;

/// A type that the codec [`Rkyv`](crate::Rkyv) carries without loss.
///
/// `#[ibex::message]` implements the trait, and the compiler checks every field for it. ibex
/// implements it for the types of the standard library, except `usize`, `isize` and their `NonZero`
/// forms: rkyv stores these in 32 bits, and cuts larger values without an error. Use `u64` and
/// `i64` for them. The codec [`Serde`](crate::Serde) carries them whole.
///
/// A type with rkyv's own derives in place of `#[ibex::message]` implements the trait by an empty
/// `impl`. That `impl` is the program's statement that all its fields are of such types.
///
/// ```
/// use ibex_codec::{Codec, Rkyv};
/// # mod ibex { pub use ibex_codec::{Schema, message, rkyv}; pub use ibex_codec as codec; }
///
/// #[ibex::message(crate = ibex)] // `crate` is not needed in a program that depends on ibex
/// struct Chunk {
///     offset: u64,
///     parts: Vec<(u64, String)>,
/// }
///
/// assert_eq!(<Rkyv as Codec<Chunk>>::alignment(), 16);
/// ```
///
/// ```compile_fail
/// # use ibex_codec::{Codec, Rkyv};
/// <Rkyv as Codec<Vec<(usize, String)>>>::alignment();
/// ```
///
/// A list of elements that take no bytes, such as `Vec<()>`, is not allowed, because a peer could
/// state any number of them: send the count as a `u64`. Such a list does not compile, though
/// `cargo check` does not notice.
///
/// ```compile_fail
/// # use ibex_codec::{Codec, Rkyv};
/// let _ = <Rkyv as Codec<Option<Vec<()>>>>::open(&[]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a message of the codec `Rkyv`",
    label = "is not carried by `Rkyv`",
    note = "rkyv stores `usize`, `isize` and their `NonZero` forms in 32 bits and cuts larger \
            values: use `u64` and `i64`, or the codec `Serde`",
    note = "add `#[ibex::message]` to the type if it is yours"
)]
pub trait MessagePart {
    /// Set if a value may hold values of its own type, as a tree does, to any depth. The sender
    /// then makes sure that the receiver accepts the depth of each message.
    const IS_RECURSIVE: bool = true;

    /// Cleared if the archived form takes no bytes, as that of `()`.
    const TAKES_BYTES: bool = true;
}

impl<T: MessagePart + ?Sized> MessagePart for &T {
    const IS_RECURSIVE: bool = T::IS_RECURSIVE;
}

impl<T: MessagePart + ToOwned + ?Sized> MessagePart for Cow<'_, T> {
    const IS_RECURSIVE: bool = T::IS_RECURSIVE;
}

macro_rules! lists {
    ($($list:ty),*) => {$(
        impl<T: MessagePart> MessagePart for $list {
            const IS_RECURSIVE: bool = {
                assert!(
                    T::TAKES_BYTES,
                    "a list of elements that take no bytes, such as `Vec<()>`, is not allowed in \
                     a message of the codec `Rkyv`; send the count as a u64"
                );
                T::IS_RECURSIVE
            };
        }
    )*};
}

lists!([T], Vec<T>, VecDeque<T>);

impl<T: MessagePart, const N: usize> MessagePart for [T; N] {
    const IS_RECURSIVE: bool = T::IS_RECURSIVE;
    const TAKES_BYTES: bool = N > 0 && T::TAKES_BYTES;
}

impl<T: MessagePart> MessagePart for Range<T> {
    const IS_RECURSIVE: bool = T::IS_RECURSIVE;
    const TAKES_BYTES: bool = T::TAKES_BYTES;
}

/// A marker takes no bytes, whatever it marks.
impl<T: ?Sized> MessagePart for PhantomData<T> {
    const IS_RECURSIVE: bool = false;
    const TAKES_BYTES: bool = false;
}
