//! Fingerprints of types that `#[serde(with = "serde_bytes")]` changes.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::marker::PhantomData;

use crate::{Describer, Schema};

/// The structure of a `T` that is stored as bytes. [`derive(Schema)`](derive@crate::Schema)
/// describes fields with `#[serde(with = "serde_bytes")]` as this.
///
/// A vector or slice of bytes has the same structure with and without. An array gets a length,
/// which it has not otherwise, so its structure differs.
///
/// ```
/// use ibex_codec::{ByteString, Schema, SchemaInfo};
///
/// fn text<T: Schema>() -> String {
///     SchemaInfo::of::<T>("example", &[]).text
/// }
/// assert_eq!(text::<ByteString<Vec<u8>>>(), text::<Vec<u8>>());
/// assert_ne!(text::<ByteString<[u8; 4]>>(), text::<[u8; 4]>());
/// ```
#[derive(Debug)]
pub struct ByteString<T: ?Sized>(PhantomData<T>);

macro_rules! same_as_vector {
    ($($type:ty),*) => {$(
        impl Schema for ByteString<$type> {
            fn describe(to: &mut Describer) {
                Vec::<u8>::describe(to);
            }
        }
    )*};
}
same_as_vector!([u8], Vec<u8>, Cow<'_, [u8]>);

impl<const N: usize> Schema for ByteString<[u8; N]> {
    fn describe(to: &mut Describer) {
        to.compound("serde_bytes", &[<[u8; N]>::describe]);
    }
}

impl<T: ?Sized> Schema for ByteString<&T>
where
    ByteString<T>: Schema,
{
    fn describe(to: &mut Describer) {
        ByteString::<T>::describe(to);
    }
}

impl<T: ?Sized> Schema for ByteString<Box<T>>
where
    ByteString<T>: Schema,
{
    fn describe(to: &mut Describer) {
        to.compound("Box", &[ByteString::<T>::describe]);
    }
}

impl<T> Schema for ByteString<Option<T>>
where
    ByteString<T>: Schema,
{
    fn describe(to: &mut Describer) {
        to.compound("Option", &[ByteString::<T>::describe]);
    }
}

#[cfg(feature = "serde")]
mod types_of_serde_bytes {
    use serde_bytes::{ByteArray, ByteBuf, Bytes};

    use super::ByteString;
    use crate::{Describer, Schema};

    macro_rules! by_themselves {
        ($($type:ty as $like:ty $(, $length:ident)?;)*) => {$(
            impl$(<const $length: usize>)? Schema for $type {
                fn describe(to: &mut Describer) {
                    ByteString::<$like>::describe(to);
                }
            }

            impl$(<const $length: usize>)? Schema for ByteString<$type> {
                fn describe(to: &mut Describer) {
                    <$type>::describe(to);
                }
            }
        )*};
    }

    by_themselves! {
        Bytes as [u8];
        ByteBuf as Vec<u8>;
        ByteArray<N> as [u8; N], N;
    }
}
