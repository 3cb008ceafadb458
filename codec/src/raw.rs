//! Messages that are bytes and nothing else.

use crate::{Codec, EncodeError, Invalid, MIN_ALIGNMENT, SchemaInfo, SlotWriter};

/// The codec of `[u8]`: one copy at the sender, none at the receiver, and every
/// payload is valid.
///
/// Since a sender takes `&[u8]`, a byte string and a reference to a `Vec<u8>`
/// both coerce: `send(b"abc")`, `send(&vec)`.
#[derive(Debug, Clone, Copy)]
pub enum Raw {}

impl Codec<[u8]> for Raw {
    type View = [u8];
    type Held = ();

    fn alignment() -> usize {
        MIN_ALIGNMENT
    }

    fn schema() -> SchemaInfo {
        SchemaInfo::of::<[u8]>("raw", &[])
    }

    #[inline]
    fn size(value: &[u8]) -> Option<usize> {
        Some(value.len())
    }

    #[inline]
    fn encode(value: &[u8], slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        Ok(slot.write(value)?)
    }

    #[inline]
    fn open(_: &[u8]) -> Result<(), Invalid> {
        Ok(())
    }

    #[inline]
    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [u8] {
        payload
    }
}
