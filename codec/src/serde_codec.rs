//! Messages of types that derive serde's traits, in the format of the crate postcard.
//!
//! The format is positional: fields in their order, variants by their number, integers in as many
//! bytes as they need, no names and no types. Only the type gives the bytes their meaning, so both
//! ends compare its fingerprint first.

use std::any;

use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned};

use crate::bounded_serializer::EncodeFailure;
use crate::{Codec, EncodeError, Invalid, MIN_ALIGNMENT, Overflow, Schema, SchemaInfo, SlotWriter};
use crate::{bounded_deserializer, bounded_serializer};

/// The codec of types with serde's derives: written by postcard straight into the slot,
/// decoded into a value of their own.
///
/// The codec is for types that have serde's derives already, or that contain types that rkyv does
/// not archive. [`Rkyv`](crate::Rkyv) decodes nothing, so it is faster if both suit the type.
/// [`SerdeBorrowed`](crate::SerdeBorrowed) is for types that borrow, and decodes without copying;
/// the compiler says here that their `Deserialize` is "not general enough". The bytes are the same
/// on hosts of any byte order and word size.
///
/// ```
/// use ibex_codec::{Codec, Serde, SlotWriter, serde, serde_bytes};
/// use std::mem::MaybeUninit;
/// # mod ibex { pub use ibex_codec::{Schema, serde}; pub use ibex_codec as codec; }
///
/// #[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
/// # #[ibex(crate = ibex)]
/// #[serde(crate = "ibex::serde")] // not needed with a line for serde in Cargo.toml
/// struct Entry {
///     offset: u64,
///     #[serde(with = "serde_bytes")] // one copy instead of a loop over the bytes
///     data: Vec<u8>,
/// }
///
/// let entry = Entry { offset: 300, data: vec![7; 1000] };
/// let mut memory = [MaybeUninit::uninit(); 2000];
/// let mut slot = SlotWriter::new(&mut memory);
/// Serde::encode(&entry, &mut slot)?;
/// assert_eq!(slot.len(), 2 + 2 + 1000); // two varints, and the bytes
/// # Ok::<(), ibex_codec::EncodeError>(())
/// ```
///
/// # Bytes
///
/// serde knows a `Vec<u8>` as a sequence of numbers, and visits each by itself. `#[serde(with =
/// "serde_bytes")]` on the field (the crate is `ibex::serde_bytes` here), or the type
/// `serde_bytes::ByteBuf` in its place, makes it one piece. For 1 KiB, on an AMD EPYC (Zen 4) that
/// had other work, medians of five runs of `cargo bench -p ibex-codec --bench serde`:
///
/// | field | encode | decode |
/// |---|---|---|
/// | `Vec<u8>` | 480 to 900 ns | 730 to 1520 ns |
/// | the same with `serde_bytes` | 12 to 14 ns | 19 to 22 ns |
/// | `&[u8]` with `serde_bytes`, by `SerdeBorrowed` | 12 to 13 ns | 11 to 12 ns, the check included |
///
/// The encoded bytes are the same, and so is the fingerprint: each end may choose for itself. An
/// array, `[u8; N]`, is different: `serde_bytes` gives it a length.
///
/// # Costs
///
/// The sender allocates nothing. The receiver allocates what its type needs: a `Vec` or a `String`
/// is an allocation each. The encoded size is not known in advance, so a value that does not fit
/// the rest of the ring is encoded twice.
///
/// # Limits
///
/// A sender refuses a message that is nested deeper than 128 levels (structs, sequences, enums and
/// `Some`s within each other), and one with more than a thousand elements that take no bytes
/// (`Vec<()>`): its receiver would refuse it. A recursive type with kilobytes of fields at each level
/// should box them: they are on the stack while the message is decoded.
///
/// serde itself leaves out the flow information and the scope of a `SocketAddrV6`: both arrive
/// as 0. A scope means nothing on another host; to one on the same host, send it as a field of its
/// own.
///
/// The derive of [`Schema`](derive@Schema) refuses serde's attributes that would make an end
/// misread the other; its documentation lists them.
#[derive(Debug, Clone, Copy)]
pub enum Serde {}

impl<T> Codec<T> for Serde
where
    T: Serialize + DeserializeOwned + Schema + Send + 'static,
{
    type View = T;
    type Held = T;

    fn alignment() -> usize {
        MIN_ALIGNMENT
    }

    fn schema() -> SchemaInfo {
        schema_of::<T>()
    }

    #[inline]
    fn size(_: &T) -> Option<usize> {
        None
    }

    #[inline]
    fn encode(value: &T, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        encode(value, slot)
    }

    #[inline]
    fn open(payload: &[u8]) -> Result<T, Invalid> {
        decode(payload)
    }

    #[inline]
    unsafe fn view<'a>(held: &'a T, _: &'a [u8]) -> &'a T {
        held
    }
}

/// Returns the schema of all codecs of this format, so that owned values reach receivers that
/// borrow.
pub(crate) fn schema_of<T: Schema + ?Sized>() -> SchemaInfo {
    SchemaInfo::of::<T>("postcard 1", &[])
}

#[inline]
pub(crate) fn encode<T: Serialize>(
    value: &T,
    slot: &mut SlotWriter<'_>,
) -> Result<(), EncodeError> {
    let result = bounded_serializer::write(value, slot);
    // The slot is asked, not the error: an implementation of `Serialize` may have passed over the
    // overflow.
    if slot.overflowed() {
        return Err(Overflow.into());
    }
    result.map_err(|failure| refused::<T>(&failure))
}

#[inline]
pub(crate) fn decode<'de, T: Deserialize<'de>>(payload: &'de [u8]) -> Result<T, Invalid> {
    bounded_deserializer::from_bytes(payload).map_err(|refusal| {
        let name = any::type_name::<T>();
        Invalid::new(format!("not the encoding of a {name}: {refusal}"))
    })
}

#[cold]
fn refused<T>(failure: &EncodeFailure) -> EncodeError {
    let name = any::type_name::<T>();
    EncodeError::Failed(format!("cannot encode a {name}: {failure}").into())
}
