//! Fields of a message: fixed-width integers, little-endian, and short byte
//! strings behind their length.
//!
//! Reading takes from the front and names the field in its error. Bytes that are left over at the
//! end are ignored by design: that is how a later minor version adds a field.

use super::{MessageError, Text};

/// Takes fields off the front of a message.
pub(super) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { rest: bytes }
    }

    pub(super) fn bytes(
        &mut self,
        field: &'static str,
        length: usize,
    ) -> Result<&'a [u8], MessageError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(MessageError::Truncated {
                field,
                needed: length,
                left: self.rest.len(),
            })?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], MessageError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, MessageError> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, MessageError> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, MessageError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, MessageError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Reads a byte string of at most `max` bytes behind its `u16` length.
    pub(super) fn string(
        &mut self,
        field: &'static str,
        max: usize,
    ) -> Result<&'a [u8], MessageError> {
        let length = usize::from(self.u16(field)?);
        if length > max {
            return Err(MessageError::TooLong { field, length, max });
        }
        self.bytes(field, length)
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<Text, MessageError> {
        let bytes = self.string(field, Text::MAX_BYTES)?;
        Ok(Text::new(&String::from_utf8_lossy(bytes)))
    }
}

/// Appends fields to a message.
pub(super) struct FieldWriter<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> FieldWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> FieldWriter<'a> {
        FieldWriter { out }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes a byte string behind its `u16` length, cut at `max` bytes so that the reader's bound
    /// holds for whatever a caller put into the field.
    pub(super) fn string(&mut self, bytes: &[u8], max: usize) {
        debug_assert!(max <= usize::from(u16::MAX));
        let kept = &bytes[..bytes.len().min(max)];
        self.u16(kept.len() as u16);
        self.bytes(kept);
    }

    pub(super) fn text(&mut self, text: &Text) {
        self.string(text.as_str().as_bytes(), Text::MAX_BYTES);
    }
}
