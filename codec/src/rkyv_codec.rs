//! Messages as rkyv archives: written where they will travel, checked once and
//! read where they arrived.
//!
//! This module differs from rkyv's defaults in four ways:
//!
//! - **Errors.** [`EncodeError`] and [`Invalid`] are rkyv's error types here, so
//!   an overflow stays an overflow and is no allocation, and a refusal keeps its
//!   text (`rancor::Error` drops it in release builds).
//! - **Depth.** Checking an archive recurses where the type does. A peer that
//!   sends a list of a million links would end the process by its stack, so
//!   the check stops at [`MAX_NESTING`]. The sender of a recursive type runs the same check, so
//!   that it gets the error, and not the receiver.
//! - **Loss.** rkyv cuts `usize` and `isize` to 32 bits: see `message_part.rs`.
//! - **Scratch space.** It is prepared on request and not for every message: see `rkyv_scratch.rs`.

use std::any;
use std::error::Error;
use std::fmt;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;

use rkyv::api::high::HighValidator;
use rkyv::api::{access_with_context, serialize_using};
use rkyv::bytecheck::CheckBytes;
use rkyv::primitive::{ArchivedU64, ArchivedUsize};
use rkyv::rancor::{Source, Trace};
use rkyv::ser::{Positional, Serializer, Writer};
use rkyv::util::AlignedVec;
use rkyv::validation::Validator;
use rkyv::validation::archive::ArchiveValidator;
use rkyv::validation::shared::SharedValidator;
use rkyv::{Archive, Serialize, access_unchecked};

use crate::rkyv_scratch::{RkyvSerializer, ThreadArena, WrittenPointers};
use crate::{
    Codec, EncodeError, Invalid, MAX_ALIGNMENT, MessagePart, Overflow, Schema, SchemaInfo,
    SlotWriter,
};

/// The default codec: any type marked `#[ibex::message]`, read in place.
///
/// The receiver sees the archived type, for example `ArchivedEntry` for `Entry`:
/// numbers are converted when read (`entry.offset.to_native()`), a `Vec<u8>`
/// derefs to the bytes where they arrived. `rkyv::deserialize` makes an owned
/// value of it.
///
/// # Costs
///
/// No allocation per message in the steady state: rkyv's scratch space is one arena per thread that
/// grows to the largest message seen. The exception is `Rc` and `Arc`: writing or checking them
/// keeps a map of the shared ones, which is allocated again for each message.
///
/// # Limits
///
/// - **Alignment** is 16, or more if the archived root asks for it. The root's alignment alone
///   would not do, because the data behind a pointer may be stricter than the root: a `Vec<u128>`
///   is aligned to 4 and its elements to 16. If something nested asks for more than 16, give the
///   root the same alignment (`#[rkyv(attr(repr(align(32))))]`). Otherwise its messages are
///   rejected as invalid wherever they happen to be misaligned. Above 32 rkyv cannot pad: such a
///   root is refused, such a nested type panics in `encode`.
/// - **Nesting**: pointers (boxes, vectors, strings) within pointers, at most 254 deep. A sender
///   refuses a deeper message. To know the depth, it checks each message of a type that contains
///   itself, as its receiver does.
/// - **Types**: no `usize` and `isize`, see [`MessagePart`], and no lists whose elements take no
///   bytes.
/// - **Size**: below 2 GiB, the reach of rkyv's 32-bit offsets.
#[derive(Debug, Clone, Copy)]
pub enum Rkyv {}

// A type that rkyv does not know may be meant for another codec. The message at `Codec` names the
// codecs. Without this attribute, the compiler's error about rkyv's missing trait would hide it.
#[diagnostic::do_not_recommend]
impl<T> Codec<T> for Rkyv
where
    T: Schema + MessagePart + Archive + for<'w, 's, 'a> Serialize<RkyvSerializer<'w, 's, 'a>>,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Invalid>>,
{
    type View = T::Archived;
    type Held = ();

    fn alignment() -> usize {
        align_of::<T::Archived>().max(NESTED_ALIGNMENT)
    }

    fn schema() -> SchemaInfo {
        SchemaInfo::of::<T>("rkyv 0.8", &format_features())
    }

    #[inline]
    fn size(_: &T) -> Option<usize> {
        // A type whose archive is a copy of its memory points nowhere, so the
        // root is all there is.
        T::COPY_OPTIMIZATION
            .is_enabled()
            .then_some(size_of::<T::Archived>())
    }

    #[inline]
    fn encode(value: &T, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        if const { align_of::<T::Archived>() > MAX_PADDED_ALIGNMENT } {
            return Err(over_aligned(align_of::<T::Archived>()));
        }
        let mut arena = ThreadArena::default();
        let mut serializer =
            Serializer::new(&mut *slot, arena.scratch(), WrittenPointers::default());
        let result = serialize_using::<_, EncodeError>(value, &mut serializer);
        // The slot is asked, not the error: an implementation of `Serialize` may have wrapped the
        // overflow, or passed over it.
        if slot.overflowed() {
            return Err(Overflow.into());
        }
        result?;
        if T::IS_RECURSIVE {
            check_as_receiver::<T>(slot)?;
        }
        Ok(())
    }

    #[inline]
    fn open(payload: &[u8]) -> Result<(), Invalid> {
        // Evaluated for its assertions: a receiver may never encode a `T`.
        const { T::IS_RECURSIVE };
        let archive = ArchiveValidator::with_max_depth(payload, Some(MAX_NESTING));
        let mut validator = Validator::new(archive, SharedValidator::new());
        access_with_context::<T::Archived, _, Invalid>(payload, &mut validator)?;
        Ok(())
    }

    #[inline]
    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a T::Archived {
        // SAFETY: `access_unchecked` asks for a valid archive of `T::Archived`
        // at the default root position.
        // 1. `open` had rkyv check exactly that, at this address, so alignment
        //    and every relative pointer were checked too.
        // 2. The bytes are still those: promised by our caller.
        unsafe { access_unchecked::<T::Archived>(payload) }
    }
}

impl Positional for SlotWriter<'_> {
    #[inline]
    fn pos(&self) -> usize {
        self.len()
    }
}

impl Writer<EncodeError> for SlotWriter<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        Ok(SlotWriter::write(self, bytes)?)
    }
}

impl Source for EncodeError {
    fn new<E: Error + Send + Sync + 'static>(source: E) -> Self {
        Self::Failed(Box::new(source))
    }
}

impl Trace for EncodeError {
    fn trace<R: fmt::Debug + fmt::Display + Send + Sync + 'static>(self, trace: R) -> Self {
        match self {
            Self::Overflow(_) => self,
            Self::Failed(cause) => Self::Failed(traced(cause, &trace)),
        }
    }
}

impl Source for Invalid {
    fn new<E: Error + Send + Sync + 'static>(source: E) -> Self {
        Self::new(source)
    }
}

impl Trace for Invalid {
    fn trace<R: fmt::Debug + fmt::Display + Send + Sync + 'static>(self, trace: R) -> Self {
        Self(traced(self.0, &trace))
    }
}

/// Adds where an error was met to its text. Every level of nesting may add that. The innermost levels
/// say where the error is.
#[cold]
fn traced(
    cause: Box<dyn Error + Send + Sync>,
    trace: &dyn fmt::Display,
) -> Box<dyn Error + Send + Sync> {
    let text = cause.to_string();
    match text.len() < MAX_TRACE_BYTES {
        true => format!("{text} ({trace})").into(),
        false => cause,
    }
}

/// Names rkyv's format features, by their effects in the types that they change.
fn format_features() -> [&'static str; 3] {
    let offsets = ["16-bit offsets", "32-bit offsets", "64-bit offsets"];
    let choose = |is_first, first, second| if is_first { first } else { second };
    [
        choose(is_little_endian(), "little-endian", "big-endian"),
        offsets[size_of::<ArchivedUsize>() / 4],
        choose(align_of::<ArchivedU64>() > 1, "aligned", "unaligned"),
    ]
}

/// Returns whether rkyv was built to archive numbers in little-endian order. The codec itself is
/// asked, since rkyv's cargo features are not visible here.
fn is_little_endian() -> bool {
    let mut memory = [MaybeUninit::uninit(); size_of::<u16>()];
    let mut slot = SlotWriter::new(&mut memory);
    Rkyv::encode(&1_u16, &mut slot).is_ok() && slot.written() == [1, 0]
}

/// Refuses a message that its receiver would refuse.
#[inline(never)]
fn check_as_receiver<T>(slot: &SlotWriter<'_>) -> Result<(), EncodeError>
where
    Rkyv: Codec<T>,
{
    let payload = slot.written();
    let is_aligned = payload.as_ptr().addr().is_multiple_of(Rkyv::alignment());
    let checked = if is_aligned {
        Rkyv::open(payload).map(drop)
    } else {
        // A channel's slots are aligned; the memory of another caller need not be.
        let mut copy = AlignedVec::<MAX_ALIGNMENT>::with_capacity(payload.len());
        copy.extend_from_slice(payload);
        Rkyv::open(&copy).map(drop)
    };
    checked.map_err(|invalid| {
        let name = any::type_name::<T>();
        let cause = match invalid.to_string() {
            text if text.contains(TOO_DEEP) => {
                format!(
                    "its pointers are nested deeper than {} levels",
                    MAX_NESTING.get() - 2
                )
            }
            text => text,
        };
        let text = format!("the receiver would refuse this {name}: {cause}");
        EncodeError::Failed(text.into())
    })
}

#[cold]
fn over_aligned(alignment: usize) -> EncodeError {
    EncodeError::Failed(
        format!(
            "the archived message is aligned to {alignment} bytes and rkyv pads to at most \
             {MAX_PADDED_ALIGNMENT}; lower its `repr(align)`, or send its plain data with the \
             codec `Pod`"
        )
        .into(),
    )
}

/// The strictest alignment among rkyv's own archived types (`u128_le`), and so of nearly everything
/// that a root may point to.
const NESTED_ALIGNMENT: usize = 16;

/// `rkyv::ser::WriterExt::pad` writes from an array of 32 zeros and panics
/// beyond.
const MAX_PADDED_ALIGNMENT: usize = 32;

/// The depth to which a check may recurse: deeper than any message written for the wire. One level
/// takes 1 to 2 KiB of stack without optimization (measured), so the limit takes a quarter of the 2
/// MiB that a thread has.
const MAX_NESTING: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Part of rkyv's text about a depth beyond the limit; its error types are private.
const TOO_DEEP: &str = "maximum subtree depth";

/// Bounds the text of an [`Invalid`]: no error message needs more.
const MAX_TRACE_BYTES: usize = 512;
