//! Fields of a message: fixed-width integers, little-endian, and short byte
//! strings behind their length.
//!
//! Reading takes from the front and names the field in its error. Bytes that are left over at the
//! end are ignored by design: that is how a later minor version adds a field.

use std::ops::RangeInclusive;

use super::{MessageError, Text};

/// A value that is a field of a message, or several fields in a row.
pub(super) trait WireField: Sized {
    /// Reads the value. An error calls it `name`; a value of several fields names these instead.
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError>;

    /// Appends the value.
    fn write(&self, out: &mut Vec<u8>);
}

/// Takes fields off the front of a message.
pub(super) struct FieldReader<'a>(pub(super) &'a [u8]);

impl<'a> FieldReader<'a> {
    pub(super) fn bytes(
        &mut self,
        field: &'static str,
        needed: usize,
    ) -> Result<&'a [u8], MessageError> {
        let left = self.0.len();
        let taken = self.0.split_off(..needed);
        taken.ok_or(MessageError::Truncated {
            field,
            needed,
            left,
        })
    }

    /// Reads a byte string of at most `max` bytes behind its `u16` length.
    pub(super) fn string(
        &mut self,
        field: &'static str,
        max: usize,
    ) -> Result<&'a [u8], MessageError> {
        let length = usize::from(u16::read(self, field)?);
        if length > max {
            return Err(MessageError::TooLong { field, length, max });
        }
        self.bytes(field, length)
    }

    pub(super) fn text(&mut self, field: &'static str, max: usize) -> Result<Text, MessageError> {
        let bytes = self.string(field, max)?;
        Ok(Text::new(&String::from_utf8_lossy(bytes)))
    }

    /// Reads the number of the entries that follow, at most `max`.
    pub(super) fn count(&mut self, field: &'static str, max: usize) -> Result<usize, MessageError> {
        let length = usize::from(u8::read(self, field)?);
        match length > max {
            true => Err(MessageError::TooLong { field, length, max }),
            false => Ok(length),
        }
    }

    /// Reads a number that has to be in `range`.
    pub(super) fn within<T: WireField + Copy + PartialOrd + Into<u32>>(
        &mut self,
        field: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<T, MessageError> {
        let value = T::read(self, field)?;
        match range.contains(&value) {
            true => Ok(value),
            false => Err(MessageError::UnknownValue {
                field,
                value: value.into(),
            }),
        }
    }
}

/// Appends a byte string behind its `u16` length, cut at `max` bytes so that the reader's bound
/// holds for whatever a caller put into the field.
pub(super) fn write_string(out: &mut Vec<u8>, bytes: &[u8], max: usize) {
    debug_assert!(max <= usize::from(u16::MAX));
    let kept = &bytes[..bytes.len().min(max)];
    (kept.len() as u16).write(out);
    out.extend_from_slice(kept);
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl WireField for $integer {
            fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
                WireField::read(from, name).map(Self::from_le_bytes)
            }

            fn write(&self, out: &mut Vec<u8>) {
                self.to_le_bytes().write(out);
            }
        }
    )*};
}

integers!(u8, u16, u32, u64);

impl<const N: usize> WireField for [u8; N] {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
        let mut array = [0; N];
        array.copy_from_slice(from.bytes(name, N)?);
        Ok(array)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl WireField for bool {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
        Ok(u8::read(from, name)? != 0)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl WireField for Text {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
        from.text(name, Text::MAX_BYTES)
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_string(out, self.as_str().as_bytes(), Text::MAX_BYTES);
    }
}
