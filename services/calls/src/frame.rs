//! Frames: a [`Header`], and a payload that the user's codec writes straight into the channel and
//! reads in place.

use std::{marker::PhantomData, mem::MaybeUninit, ops::Deref};

use ibex_core::{
    RegionSlice,
    codec::{
        Codec, EncodeError, Invalid, Raw, SlotWriter,
        bytemuck::{self, Pod, Zeroable},
    },
    extend::{Abort, RawMessage, readable_bytes},
};

use crate::call_extension::{CallExtension, MalformedExtension, WrittenExtension};
use crate::header::{Header, Kind, MalformedCallFrame};

/// What a frame that is sent has behind its header.
pub(super) trait Content: Copy {
    /// The frame's kind, where that of the same frame without extension is `plain`.
    #[inline]
    fn kind(&self, plain: Kind) -> Kind {
        plain
    }

    /// The offset of the content in the frame.
    fn offset() -> usize;

    /// The content's length, where it is known without encoding.
    fn size(&self) -> Option<usize>;

    /// Writes the content into a slot that is empty.
    fn write(&self, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError>;

    /// The slice that is all of the content, if it is one. A long one is sent from where it lies.
    #[inline]
    fn slice(&self) -> Option<&RegionSlice> {
        None
    }
}

/// A payload that the user's codec writes.
pub(super) struct Value<'a, T: ?Sized, C> {
    value: &'a T,
    _codec: PhantomData<fn() -> C>,
}

impl<'a, T: ?Sized, C> Value<'a, T, C> {
    #[inline]
    pub(super) fn new(value: &'a T) -> Self {
        Self {
            value,
            _codec: PhantomData,
        }
    }
}

impl<T: ?Sized, C> Clone for Value<'_, T, C> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized, C> Copy for Value<'_, T, C> {}

impl<T: ?Sized, C: Codec<T>> Content for Value<'_, T, C> {
    #[inline]
    fn offset() -> usize {
        payload_offset::<T, C>()
    }

    #[inline]
    fn size(&self) -> Option<usize> {
        C::size(self.value)
    }

    #[inline]
    fn write(&self, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        C::encode(self.value, slot)
    }
}

/// A payload of bytes that lie in memory of the program's own.
#[derive(Clone, Copy)]
pub(super) struct SliceContent<'a>(pub(super) &'a RegionSlice);

impl Content for SliceContent<'_> {
    fn offset() -> usize {
        payload_offset::<[u8], Raw>()
    }

    fn size(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn write(&self, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        let bytes = readable_bytes(self.0).map_err(|why| EncodeError::Failed(why.into()))?;
        Ok(slot.write(&bytes)?)
    }

    fn slice(&self) -> Option<&RegionSlice> {
        Some(self.0)
    }
}

/// Bytes that no codec wrote, such as a text. A frame without a payload has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct BytesContent<'a>(pub(super) &'a [u8]);

impl Content for BytesContent<'_> {
    fn offset() -> usize {
        Header::BYTES
    }

    fn size(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn write(&self, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        Ok(slot.write(self.0)?)
    }
}

/// A request's payload with an extension behind it.
#[derive(Clone, Copy)]
pub(super) struct Extended<'a, V> {
    pub(super) value: V,
    pub(super) extension: WrittenExtension<'a>,
}

impl<V: Content> Content for Extended<'_, V> {
    fn kind(&self, plain: Kind) -> Kind {
        plain.extended()
    }

    fn offset() -> usize {
        V::offset()
    }

    fn size(&self) -> Option<usize> {
        Some(self.value.size()? + self.extension.bytes())
    }

    fn write(&self, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        self.value.write(slot)?;
        Ok(self.extension.write(|part| slot.write(part))?)
    }
}

/// Returns the offset of the payload in a frame: behind the header, at the codec's alignment.
#[inline]
pub(super) fn payload_offset<T: ?Sized, C: Codec<T>>() -> usize {
    C::alignment().max(Header::BYTES)
}

/// The length of a frame, where the codec knows it.
#[inline]
pub(super) fn frame_size<P: Content>(content: P) -> Option<usize> {
    Some(P::offset() + content.size()?)
}

/// Writes a frame into the slot that a channel gives.
#[inline]
pub(super) fn encode_frame<P: Content>(
    header: Header,
    content: P,
    slot: &mut [MaybeUninit<u8>],
) -> Result<usize, Abort> {
    let offset = P::offset();
    if slot.len() < offset {
        return Err(Abort::Overflow);
    }
    let header = Header {
        kind: content.kind(header.kind),
        ..header
    };
    let (head, payload) = slot.split_at_mut(offset);
    let mut head = SlotWriter::new(head);
    let mut payload = SlotWriter::new(payload);
    let mut write = || {
        head.write(&header.to_bytes())?;
        head.pad_to(offset)?;
        content.write(&mut payload)
    };
    match write() {
        Ok(()) => Ok(offset + payload.len()),
        Err(EncodeError::Overflow(_)) => Err(Abort::Overflow),
        Err(EncodeError::Failed(error)) => Err(Abort::Failed(error)),
    }
}

/// Reads a frame's header: the message's header, if there is one, and otherwise its first bytes.
#[inline]
pub(super) fn header_of(raw: &RawMessage) -> Result<Header, MalformedCallFrame> {
    match raw.has_header() {
        false => Header::parse(raw.bytes()),
        true => header_beside(raw.header()),
    }
}

/// Reads the header of a frame that has it beside its payload.
#[cold]
fn header_beside(beside: &[u8]) -> Result<Header, MalformedCallFrame> {
    let header = Header::parse(beside)?;
    match header.kind {
        _ if beside.len() != Header::BYTES => Err(MalformedCallFrame::Beside),
        Kind::Call | Kind::Stream | Kind::Reply | Kind::Item => Ok(header),
        _ => Err(MalformedCallFrame::Beside),
    }
}

/// The bytes of a frame that came, either where they arrived or copied out.
#[derive(Debug)]
pub(super) enum FrameBody {
    InPlace(RawMessage),
    Other(OtherBody),
}

/// The bytes of few frames. They are a type of their own, so that the others find by one check that
/// they are not among these.
#[derive(Debug)]
pub(super) enum OtherBody {
    Copied(Copied),
    /// Without the extension that the frame had.
    Cut(Box<CutBody>),
}

const _: () = assert!(size_of::<FrameBody>() == size_of::<RawMessage>());

/// A frame's bytes up to its extension, and the extension.
#[derive(Debug)]
pub(super) struct CutBody {
    body: FrameBody,
    /// The bytes before the extension; 0 if that is malformed.
    length: usize,
    extension: Result<CallExtension, MalformedExtension>,
}

impl FrameBody {
    /// Takes the extension off a frame that has one. A frame whose extension is malformed has no
    /// payload any more, so that it is a request that is not valid.
    #[cold]
    pub(super) fn cut(raw: RawMessage) -> Self {
        let (length, extension) = match CallExtension::split(raw.bytes()) {
            Ok((before, extension)) => (before.len(), Ok(extension)),
            Err(malformed) => (0, Err(malformed)),
        };
        Self::Other(OtherBody::Cut(Box::new(CutBody {
            body: Self::InPlace(raw),
            length,
            extension,
        })))
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::InPlace(raw) => raw.bytes(),
            Self::Other(OtherBody::Copied(copied)) => copied.bytes(),
            Self::Other(OtherBody::Cut(cut)) => &cut.body.bytes()[..cut.length],
        }
    }

    /// Returns the payload, which begins at `offset` of a frame. `None` if the frame ends before.
    #[inline]
    pub(super) fn payload(&self, offset: usize) -> Option<&[u8]> {
        let is_payload = match self {
            Self::InPlace(raw) => raw.has_header(),
            Self::Other(OtherBody::Copied(copied)) => copied.is_payload,
            Self::Other(OtherBody::Cut(_)) => false,
        };
        self.bytes().get(if is_payload { 0 } else { offset }..)
    }

    /// Copies the bytes out of the channel, so that they no longer hold it up.
    pub(super) fn copy_out(&mut self) {
        match self {
            Self::InPlace(raw) => {
                let copied = Copied::of(raw);
                *self = Self::Other(OtherBody::Copied(copied));
            }
            Self::Other(OtherBody::Copied(_)) => {}
            Self::Other(OtherBody::Cut(cut)) => cut.body.copy_out(),
        }
    }

    /// Says why there is no payload.
    #[cold]
    fn without_payload(&self) -> Invalid {
        let malformed = match self {
            Self::Other(OtherBody::Cut(cut)) => cut.extension.as_ref().err(),
            _ => None,
        };
        match malformed {
            Some(malformed) => Invalid::new(*malformed),
            None => Invalid::new("the frame ends before its payload"),
        }
    }
}

/// A frame's bytes in memory of their own, aligned as those of a channel.
#[derive(Debug)]
pub(super) struct Copied {
    blocks: Box<[AlignedBlock]>,
    length: usize,
    /// They are the payload alone: the call's header came beside them.
    is_payload: bool,
}

/// A block with the largest alignment that a payload may need.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[bytemuck(crate = "ibex_core::codec::bytemuck")]
#[repr(C, align(64))]
struct AlignedBlock([u8; 64]);

const _: () = assert!(align_of::<AlignedBlock>() == ibex_core::codec::MAX_ALIGNMENT);

impl Copied {
    fn of(raw: &RawMessage) -> Self {
        let bytes = raw.bytes();
        let count = bytes.len().div_ceil(size_of::<AlignedBlock>());
        let mut blocks = vec![AlignedBlock::zeroed(); count].into_boxed_slice();
        bytemuck::cast_slice_mut(&mut blocks)[..bytes.len()].copy_from_slice(bytes);
        Self {
            blocks,
            length: bytes.len(),
            is_payload: raw.has_header(),
        }
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.blocks)[..self.length]
    }
}

/// A payload that its codec has accepted.
pub(super) struct DecodedPayload<T: ?Sized, C: Codec<T>> {
    held: C::Held,
    body: FrameBody,
}

impl<T: ?Sized, C: Codec<T>> DecodedPayload<T, C> {
    /// Checks the payload of a frame.
    pub(super) fn of(body: FrameBody) -> Result<Self, Invalid> {
        let offset = payload_offset::<T, C>();
        let payload = body.payload(offset);
        let payload = payload.ok_or_else(|| body.without_payload())?;
        let held = C::open(payload)?;
        Ok(Self { held, body })
    }

    /// The payload as it was sent.
    pub(super) fn payload(&self) -> &[u8] {
        let payload = self.body.payload(payload_offset::<T, C>());
        payload.expect("the frame had a payload when it came")
    }

    /// See [`FrameBody::copy_out`].
    pub(super) fn copy_out(&mut self) {
        self.body.copy_out();
    }

    /// The extension of the frame, if it had one.
    pub(super) fn extension(&self) -> Option<&CallExtension> {
        match &self.body {
            FrameBody::Other(OtherBody::Cut(cut)) => cut.extension.as_ref().ok(),
            _ => None,
        }
    }
}

impl<T: ?Sized, C: Codec<T>> Deref for DecodedPayload<T, C> {
    type Target = C::View;

    #[inline]
    fn deref(&self) -> &C::View {
        // SAFETY: `held` is what `C::open` gave for this payload (`of`), and no code writes the
        // bytes while the body is held; `copy_out` keeps their content and an alignment of 64,
        // which the payload's offset is a multiple of its alignment from.
        unsafe { C::view(&self.held, self.payload()) }
    }
}
