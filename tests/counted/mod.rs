//! A codec that counts the encodings of each value.

use std::cell::Cell;

use ibex::codec::{Codec, EncodeError, Invalid, MIN_ALIGNMENT, SchemaInfo, SlotWriter};

/// A value that is received as its number.
pub(crate) struct Value {
    number: u64,
    /// The size that it states before it is encoded.
    size: Option<usize>,
    length: usize,
    fate: Fate,
    encodings: Cell<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Encoded,
    Refused,
    Panics,
}

impl Value {
    /// Creates a value with the given size, or with one that only encoding reveals.
    pub(crate) fn new(size: Option<usize>, number: u64) -> Self {
        Self {
            number,
            size,
            length: size.unwrap_or((number * 37 % 3000) as usize + 8),
            fate: Fate::Encoded,
            encodings: Cell::new(0),
        }
    }

    pub(crate) fn refused() -> Self {
        Self {
            fate: Fate::Refused,
            ..Self::new(None, 0)
        }
    }

    pub(crate) fn panicking(length: usize) -> Self {
        Self {
            fate: Fate::Panics,
            ..Self::new(Some(length), 0)
        }
    }

    pub(crate) fn encodings(&self) -> u32 {
        self.encodings.get()
    }
}

pub(crate) struct Counted;

impl Codec<Value> for Counted {
    type View = u64;
    type Held = u64;

    fn alignment() -> usize {
        MIN_ALIGNMENT
    }

    fn schema() -> SchemaInfo {
        SchemaInfo::of::<u64>("test/counted", &[])
    }

    fn size(value: &Value) -> Option<usize> {
        value.size
    }

    fn encode(value: &Value, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        value.encodings.set(value.encodings.get() + 1);
        slot.write(&value.number.to_le_bytes())?;
        match value.fate {
            Fate::Encoded => Ok(slot.write(&vec![7; value.length - 8])?),
            Fate::Refused => Err(EncodeError::Failed("it is refused".into())),
            Fate::Panics => panic!("in the middle of a value"),
        }
    }

    fn open(payload: &[u8]) -> Result<u64, Invalid> {
        let number = payload
            .first_chunk()
            .ok_or_else(|| Invalid::new("no number"))?;
        Ok(u64::from_le_bytes(*number))
    }

    unsafe fn view<'a>(held: &'a u64, _: &'a [u8]) -> &'a u64 {
        held
    }
}
