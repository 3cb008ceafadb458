//! Payloads as a channel would hold them: aligned memory, a writer over some of
//! it, an open, a view.

#![allow(dead_code)] // each test binary uses some of it

use std::mem::MaybeUninit;

use ibex_codec::{Codec, EncodeError, Invalid, MAX_ALIGNMENT, SlotWriter};

/// Bytes whose first is aligned as an arrival block is.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    /// 64 bytes at a time, like the cache lines that they are.
    lines: Vec<Line>,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; MAX_ALIGNMENT]);

impl Payload {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut lines = vec![Line([0; 64]); bytes.len().div_ceil(64)];
        for (line, chunk) in lines.iter_mut().zip(bytes.chunks(64)) {
            line.0[..chunk.len()].copy_from_slice(chunk);
        }
        Self {
            lines,
            len: bytes.len(),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `lines` are `repr(C)` arrays of 64 initialized bytes without
        // padding, one after the other, and hold at least `len`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// Opens the payload and lends the view.
    pub(crate) fn read<C: Codec<T>, T: ?Sized, R>(
        &self,
        read: impl FnOnce(&C::View) -> R,
    ) -> Result<R, Invalid> {
        read_bytes::<C, T, R>(self.bytes(), read)
    }
}

/// Opens `payload` wherever it lies and lends the view.
pub(crate) fn read_bytes<C: Codec<T>, T: ?Sized, R>(
    payload: &[u8],
    read: impl FnOnce(&C::View) -> R,
) -> Result<R, Invalid> {
    let held = C::open(payload)?;
    // SAFETY: `open` accepted this payload, which is borrowed until we return.
    Ok(read(unsafe { C::view(&held, payload) }))
}

/// Encodes into a slot of exactly `room` bytes, which held other things before.
pub(crate) fn encode_into<C: Codec<T>, T: ?Sized>(
    value: &T,
    room: usize,
) -> Result<Payload, EncodeError> {
    let mut memory = vec![MaybeUninit::new(0xd5); room];
    let mut slot = SlotWriter::new(&mut memory);
    C::encode(value, &mut slot)?;
    assert!(!slot.overflowed());
    Ok(Payload::new(slot.written()))
}

/// Encodes with room to spare.
pub(crate) fn encode<C: Codec<T>, T: ?Sized>(value: &T) -> Payload {
    encode_into::<C, T>(value, 64 * 1024).expect("64 KiB suffice for a test value")
}
