//! The contract between a channel and the format of its messages.
//!
//! The channel calls, in this order:
//!
//! 1. [`alignment`](Codec::alignment) and [`schema`](Codec::schema) once per
//!    open, at both ends; the peers compare what they got.
//! 2. [`size`](Codec::size), then [`encode`](Codec::encode) per message, into
//!    an empty writer whose first byte has the agreed alignment. A slot that is
//!    too small is rolled back and encoded again with more room, so `encode`
//!    must not depend on being called once.
//! 3. [`open`](Codec::open) once per message at the receiver: bytes from a peer
//!    are hostile until this accepted them.
//! 4. [`view`](Codec::view) at every dereference of the message: step 3 has paid for the check.

use crate::{EncodeError, Invalid, SchemaInfo, SlotWriter};

/// A message format: how a `T` becomes bytes, and what its receiver sees.
///
/// A codec is a name and never a value; channels carry it as a type parameter. The trait is safe to
/// implement: an implementation whose `view` relies on what its own `open` checked can harm only
/// itself.
///
/// # Example
///
/// A codec for `u32` in big-endian order, whose receiver gets a native `u32`:
///
/// ```
/// use ibex_codec::{Codec, EncodeError, Invalid, SchemaInfo, SlotWriter};
///
/// enum BigEndian {}
///
/// impl Codec<u32> for BigEndian {
///     type View = u32;
///     type Held = u32;
///
///     fn alignment() -> usize {
///         8
///     }
///     fn schema() -> SchemaInfo {
///         SchemaInfo::of::<u32>("example/u32", &["big-endian"])
///     }
///     fn size(_: &u32) -> Option<usize> {
///         Some(4)
///     }
///     fn encode(value: &u32, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
///         Ok(slot.write(&value.to_be_bytes())?)
///     }
///     fn open(payload: &[u8]) -> Result<u32, Invalid> {
///         let bytes = payload.try_into().map_err(Invalid::new)?;
///         Ok(u32::from_be_bytes(bytes))
///     }
///     unsafe fn view<'a>(held: &'a u32, _: &'a [u8]) -> &'a u32 {
///         held
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` cannot carry messages of type `{T}`",
    note = "the default codec `Rkyv` carries types marked `#[ibex::message]`, and `u64` and `i64` in \
            place of `usize` and `isize`",
    note = "`Serde` carries types with serde's derives and `#[derive(ibex::Schema)]`",
    note = "`Pod` carries plain old data with `#[derive(ibex::Schema)]`, `Raw` carries `[u8]`",
    note = "a channel is given another codec when it is opened: \
            `peer.channel(name).codec::<ibex::Serde>()`"
)]
pub trait Codec<T: ?Sized>: Send + Sync + 'static {
    /// The type that a received message dereferences to.
    type View: ?Sized;

    /// The value that a received message keeps beside its bytes: `()` for a codec that reads in
    /// place, the decoded value for one that cannot.
    type Held: Send + 'static;

    /// Alignment of the payload's first byte: a power of two from
    /// [`MIN_ALIGNMENT`] to [`MAX_ALIGNMENT`]. Opening a channel with any other
    /// fails.
    fn alignment() -> usize;

    /// Returns the schema that both ends compare when they open the channel. Includes the codec's
    /// name and every property of the build that changes the bytes.
    fn schema() -> SchemaInfo;

    /// Returns the exact encoded size if it is known without encoding. The size saves the channel a
    /// guess, and a second encoding when the guess was short.
    fn size(value: &T) -> Option<usize>;

    /// Writes `value` into `slot`, which is empty.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Overflow`] asks for the same call with more room; [`EncodeError::Failed`] is
    /// final for this value. In both cases, and when this panics, the caller rolls back what was
    /// written.
    fn encode(value: &T, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError>;

    /// Checks bytes that a peer sent, and decodes them if this codec does not
    /// read in place.
    ///
    /// # Errors
    ///
    /// [`Invalid`] says why the bytes are not a `T`. No bytes, however chosen,
    /// may make this panic, overflow the stack or run without bound.
    fn open(payload: &[u8]) -> Result<Self::Held, Invalid>;

    /// The message as its receiver sees it.
    ///
    /// # Safety
    ///
    /// `held` was returned by a successful [`open`](Self::open) of this codec
    /// for `T`, on these bytes at this address, and the bytes have not changed
    /// since and do not change while the view is borrowed.
    unsafe fn view<'a>(held: &'a Self::Held, payload: &'a [u8]) -> &'a Self::View;
}

/// The least [`Codec::alignment`]: every record starts on a word.
pub const MIN_ALIGNMENT: usize = 8;

/// The greatest [`Codec::alignment`]: rings and arrival blocks promise one
/// cache line and no more.
pub const MAX_ALIGNMENT: usize = 64;

const _: () = assert!(MIN_ALIGNMENT.is_power_of_two() && MAX_ALIGNMENT.is_power_of_two());
