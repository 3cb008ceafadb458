//! Frames: a [`Header`], and a payload that the user's codec writes straight into the channel and
//! reads in place.

use std::{mem::MaybeUninit, ops::Deref};

use ibex_codec::{
    Codec, EncodeError, Invalid, SlotWriter,
    bytemuck::{self, Pod, Zeroable},
};
use ibex_transport::channel::{Abort, RawMessage};

use super::header::Header;

/// Payload of a frame that is sent; a frame that has none has an empty text.
#[derive(Debug)]
pub(super) enum Content<'a, T: ?Sized> {
    Value(&'a T),
    Text(&'a str),
}

impl<T: ?Sized> Clone for Content<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Content<'_, T> {}

/// Returns the offset of the payload in a frame: behind the header, at the codec's alignment.
#[inline]
pub(super) fn payload_offset<T: ?Sized, C: Codec<T>>() -> usize {
    C::alignment().max(Header::BYTES)
}

/// The length of a frame, where the codec knows it.
#[inline]
pub(super) fn frame_size<T: ?Sized, C: Codec<T>>(content: Content<'_, T>) -> Option<usize> {
    match content {
        Content::Value(value) => Some(payload_offset::<T, C>() + C::size(value)?),
        Content::Text(text) => Some(Header::BYTES + text.len()),
    }
}

/// Writes a frame into the slot that a channel gives.
#[inline]
pub(super) fn encode_frame<T: ?Sized, C: Codec<T>>(
    header: Header,
    content: Content<'_, T>,
    slot: &mut [MaybeUninit<u8>],
) -> Result<usize, Abort> {
    let offset = match content {
        Content::Value(_) => payload_offset::<T, C>(),
        Content::Text(_) => Header::BYTES,
    };
    if slot.len() < offset {
        return Err(Abort::Overflow);
    }
    let (head, payload) = slot.split_at_mut(offset);
    let mut head = SlotWriter::new(head);
    let mut payload = SlotWriter::new(payload);
    let mut write = || {
        head.write(&header.to_bytes())?;
        head.pad_to(offset)?;
        match content {
            Content::Value(value) => C::encode(value, &mut payload),
            Content::Text(text) => Ok(payload.write(text.as_bytes())?),
        }
    };
    match write() {
        Ok(()) => Ok(offset + payload.len()),
        Err(EncodeError::Overflow(_)) => Err(Abort::Overflow),
        Err(EncodeError::Failed(error)) => Err(Abort::Failed(error)),
    }
}

/// The bytes of a frame that came, either where they arrived or copied out.
#[derive(Debug)]
pub(super) enum Body {
    InPlace(RawMessage),
    Copied(Copied),
}

impl Body {
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::InPlace(raw) => raw.bytes(),
            Self::Copied(copied) => copied.bytes(),
        }
    }

    /// Copies the bytes out of the channel, so that they no longer hold it up.
    pub(super) fn copy_out(&mut self) {
        if let Self::InPlace(raw) = self {
            *self = Self::Copied(Copied::of(raw.bytes()));
        }
    }
}

/// A frame's bytes in memory of their own, aligned as those of a channel.
#[derive(Debug)]
pub(super) struct Copied {
    lines: Box<[Line]>,
    length: usize,
}

/// A block with the largest alignment that a payload may need.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[bytemuck(crate = "ibex_codec::bytemuck")]
#[repr(C, align(64))]
struct Line([u8; 64]);

const _: () = assert!(align_of::<Line>() == ibex_codec::MAX_ALIGNMENT);

impl Copied {
    fn of(bytes: &[u8]) -> Self {
        let count = bytes.len().div_ceil(size_of::<Line>());
        let mut lines = vec![Line::zeroed(); count].into_boxed_slice();
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Self {
            lines,
            length: bytes.len(),
        }
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.length]
    }
}

/// A payload that its codec has accepted.
pub(super) struct Opened<T: ?Sized, C: Codec<T>> {
    held: C::Held,
    body: Body,
}

impl<T: ?Sized, C: Codec<T>> Opened<T, C> {
    /// Checks the payload of a frame.
    pub(super) fn of(body: Body) -> Result<Self, Invalid> {
        let offset = payload_offset::<T, C>();
        let payload = body.bytes().get(offset..);
        let payload = payload.ok_or_else(|| Invalid::new("the frame ends before its payload"))?;
        let held = C::open(payload)?;
        Ok(Self { held, body })
    }

    /// The payload as it was sent.
    pub(super) fn payload(&self) -> &[u8] {
        &self.body.bytes()[payload_offset::<T, C>()..]
    }

    /// See [`Body::copy_out`].
    pub(super) fn copy_out(&mut self) {
        self.body.copy_out();
    }
}

impl<T: ?Sized, C: Codec<T>> Deref for Opened<T, C> {
    type Target = C::View;

    #[inline]
    fn deref(&self) -> &C::View {
        // SAFETY: `held` is what `C::open` gave for this payload (`of`), and no code writes the
        // bytes while the body is held; `copy_out` keeps their content and an alignment of 64,
        // which the payload's offset is a multiple of its alignment from.
        unsafe { C::view(&self.held, self.payload()) }
    }
}
