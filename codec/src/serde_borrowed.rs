//! Messages that are decoded where they lie, without copying their text and bytes.

use serde::{Deserialize, Serialize};

use crate::serde_codec;
use crate::{
    Codec, EncodeError, Invalid, MIN_ALIGNMENT, Schema, SchemaInfo, SlotWriter, WithLifetime,
};

/// The codec of types that borrow: like [`Serde`](crate::Serde), but messages are decoded on
/// demand, and the `&str` and `&[u8]` in them are not copied.
///
/// The channel's type is the message type with the lifetime `'static`. A received message is
/// checked when it comes. [`decode`](Self::decode) (`message.decode()` in the crate ibex) returns
/// its value. A message is so decoded twice or more often; for a type whose parts are mostly
/// borrowed this costs less than one copy of them.
///
/// The bytes and the fingerprint are those of [`Serde`](crate::Serde) for the type that
/// owns what this one borrows. So one end may send a struct with a `String` and a
/// `Vec<u8>`, and the other receive one with a `&str` and a `&[u8]`.
///
/// ```
/// use ibex_codec::{Codec, SerdeBorrowed, SlotWriter, serde, serde_bytes};
/// use std::mem::MaybeUninit;
/// # mod ibex { pub use ibex_codec::{Schema, serde}; pub use ibex_codec as codec; }
///
/// #[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
/// # #[ibex(crate = ibex)]
/// #[serde(crate = "ibex::serde")]
/// struct Entry<'a> {
///     offset: u64,
///     name: &'a str,
///     #[serde(with = "serde_bytes")]
///     data: &'a [u8],
/// }
///
/// let sent = Entry { offset: 1, name: "log", data: b"abc" };
/// let mut memory = [MaybeUninit::uninit(); 100];
/// let mut slot = SlotWriter::new(&mut memory);
/// SerdeBorrowed::encode(&sent, &mut slot)?;
///
/// let payload = slot.written();
/// let entry = SerdeBorrowed::decode::<Entry<'static>>(payload)?;
/// assert_eq!((entry.name, entry.data), ("log", &b"abc"[..]));
/// assert!(payload.as_ptr_range().contains(&entry.data.as_ptr()));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum SerdeBorrowed {}

impl SerdeBorrowed {
    /// Decodes a payload in place.
    ///
    /// # Errors
    ///
    /// [`Invalid`], if the payload is not a `T`. For a payload that [`Codec::open`] accepted, only
    /// if `T`'s implementation of `Deserialize` answers differently than it did then.
    #[inline]
    pub fn decode<T>(payload: &[u8]) -> Result<T::With<'_>, Invalid>
    where
        T: WithLifetime,
        for<'a> T::With<'a>: Deserialize<'a>,
    {
        serde_codec::decode(payload)
    }
}

impl<T> Codec<T> for SerdeBorrowed
where
    T: WithLifetime + Serialize + Schema,
    for<'a> T::With<'a>: Deserialize<'a>,
{
    type View = [u8];
    type Held = ();

    fn alignment() -> usize {
        MIN_ALIGNMENT
    }

    fn schema() -> SchemaInfo {
        serde_codec::schema_of::<T>()
    }

    #[inline]
    fn size(_: &T) -> Option<usize> {
        None
    }

    #[inline]
    fn encode(value: &T, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        serde_codec::encode(value, slot)
    }

    #[inline]
    fn open(payload: &[u8]) -> Result<(), Invalid> {
        Self::decode::<T>(payload).map(drop)
    }

    #[inline]
    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [u8] {
        payload
    }
}
