//! Messages that are plain old data: their memory is their encoding.

use std::any;
use std::mem;

use bytemuck::{AnyBitPattern, NoUninit};

use crate::{Codec, EncodeError, Invalid, MIN_ALIGNMENT, Schema, SchemaInfo, SlotWriter};

/// The codec of plain old data, and of slices of it: a copy of the memory at
/// the sender, a reference into the payload at the receiver.
///
/// `NoUninit` says that every byte of a value may be sent (no padding),
/// `AnyBitPattern` that every received pattern is a value; `bytemuck::Pod`
/// implies both. The bytes are in the sender's order, so the fingerprint covers
/// endianness, size and alignment.
///
/// The derives come from the crate `bytemuck` in your own manifest, or from
/// `ibex::bytemuck` with `#[bytemuck(crate = "ibex::bytemuck")]` on the type.
///
/// ```
/// use bytemuck::{Pod as PlainOldData, Zeroable};
/// use ibex_codec::{Codec, Pod, SlotWriter};
/// use std::mem::MaybeUninit;
/// # mod ibex { pub use ibex_codec::Schema; pub use ibex_codec as codec; }
///
/// #[derive(Clone, Copy, PlainOldData, Zeroable, ibex::Schema)]
/// # #[ibex(crate = ibex)]
/// #[repr(C)]
/// struct Tick {
///     instrument: u64,
///     price: f64,
/// }
///
/// let tick = Tick { instrument: 7, price: 1.5 };
/// let mut memory = [MaybeUninit::uninit(); 16];
/// Pod::encode(&tick, &mut SlotWriter::new(&mut memory))?;
/// # Ok::<(), ibex_codec::EncodeError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Pod {}

impl<T: AnyBitPattern + NoUninit + Schema> Codec<T> for Pod {
    type View = T;
    type Held = ();

    fn alignment() -> usize {
        alignment_of::<T>()
    }

    fn schema() -> SchemaInfo {
        schema_of::<T, T>()
    }

    #[inline]
    fn size(_: &T) -> Option<usize> {
        Some(size_of::<T>())
    }

    #[inline]
    fn encode(value: &T, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        Ok(slot.write(bytemuck::bytes_of(value))?)
    }

    #[inline]
    fn open(payload: &[u8]) -> Result<(), Invalid> {
        match bytemuck::try_from_bytes::<T>(payload) {
            Ok(_) => Ok(()),
            Err(_) => Err(misfit::<T>(payload, "exactly")),
        }
    }

    #[inline]
    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a T {
        // SAFETY: a `&T` needs a pointer that is aligned, has `size_of::<T>()`
        // readable bytes, holds a valid `T` and does not change under it.
        // 1. Aligned and long enough: `open` accepted this very payload, and
        //    `try_from_bytes` checks both.
        // 2. Valid: every bit pattern is (`AnyBitPattern`).
        // 3. Unchanged for `'a`: the caller lends the payload for it.
        unsafe { &*payload.as_ptr().cast::<T>() }
    }
}

impl<T: AnyBitPattern + NoUninit + Schema> Codec<[T]> for Pod {
    type View = [T];
    type Held = ();

    fn alignment() -> usize {
        alignment_of::<T>()
    }

    fn schema() -> SchemaInfo {
        schema_of::<[T], T>()
    }

    #[inline]
    fn size(value: &[T]) -> Option<usize> {
        Some(mem::size_of_val(value))
    }

    #[inline]
    fn encode(value: &[T], slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        const {
            assert!(
                size_of::<T>() > 0,
                "a slice of a type without size cannot be sent: its length is not in its bytes"
            );
        }
        Ok(slot.write(bytemuck::cast_slice(value))?)
    }

    #[inline]
    fn open(payload: &[u8]) -> Result<(), Invalid> {
        match bytemuck::try_cast_slice::<u8, T>(payload) {
            Ok(_) => Ok(()),
            Err(_) => Err(misfit::<T>(payload, "a multiple of")),
        }
    }

    #[inline]
    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [T] {
        // The check in here is two comparisons, and the length needs a division by a constant
        // anyway: going unchecked gains nothing.
        bytemuck::cast_slice(payload)
    }
}

fn alignment_of<T>() -> usize {
    align_of::<T>().max(MIN_ALIGNMENT)
}

fn schema_of<M: Schema + ?Sized, T>() -> SchemaInfo {
    let endianness = if cfg!(target_endian = "little") {
        "little-endian"
    } else {
        "big-endian"
    };
    let size = format!("size {}", size_of::<T>());
    let alignment = format!("alignment {}", align_of::<T>());
    SchemaInfo::of::<M>("pod", &[endianness, &size, &alignment])
}

#[cold]
fn misfit<T>(payload: &[u8], quantity: &str) -> Invalid {
    let name = any::type_name::<T>();
    Invalid::new(format!(
        "expected {quantity} {} bytes aligned to {} for {name}, got {} bytes at an address that is {} modulo 64",
        size_of::<T>(),
        align_of::<T>(),
        payload.len(),
        payload.as_ptr().addr() % 64,
    ))
}
