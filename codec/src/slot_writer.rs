//! A bounded, append-only writer over the free bytes of a ring: a codec's view of the memory from
//! which a message is sent.
//!
//! Rules:
//!
//! 1. `len <= limit <= slot.len()`.
//! 2. `slot[..len]` is initialized, by this writer; the rest may hold anything
//!    and is never read.
//! 3. The first write that does not fit moves `limit` down to `len`. So nothing is written behind a
//!    gap: a codec that continues after an [`Overflow`] is refused too, at no cost to the writes
//!    that fit.

use std::mem::MaybeUninit;
use std::slice;

use crate::Overflow;

/// Appends bytes to a slot of fixed size, all or nothing per write.
///
/// ```
/// use ibex_codec::{Overflow, SlotWriter};
/// use std::mem::MaybeUninit;
///
/// let mut memory = [MaybeUninit::uninit(); 8];
/// let mut slot = SlotWriter::new(&mut memory);
/// slot.write(b"ibex")?;
/// assert_eq!((slot.len(), slot.remaining()), (4, 4));
///
/// assert_eq!(slot.write(b"chamois"), Err(Overflow));
/// assert_eq!(slot.written(), b"ibex");
/// assert!(slot.overflowed());
/// # Ok::<(), Overflow>(())
/// ```
#[derive(Debug)]
pub struct SlotWriter<'a> {
    slot: &'a mut [MaybeUninit<u8>],
    len: usize,
    limit: usize,
    overflowed: bool,
}

impl<'a> SlotWriter<'a> {
    /// An empty writer over all of `slot`, whose first byte is the payload's
    /// first.
    #[inline]
    pub fn new(slot: &'a mut [MaybeUninit<u8>]) -> Self {
        let limit = slot.len();
        Self {
            slot,
            len: 0,
            limit,
            overflowed: false,
        }
    }

    /// Appends all of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Overflow`] if the bytes do not fit: none is written then, and the writer refuses every
    /// later byte.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Overflow> {
        if bytes.len() > self.remaining() {
            return Err(self.overflow());
        }
        // SAFETY:
        // 1. The source is a live slice of `bytes.len()` bytes.
        // 2. The target is in bounds: the check above and rule 1 give
        //    `len + bytes.len() <= limit <= slot.len()`.
        // 3. They do not overlap: `slot` is borrowed mutably for `'a`, so
        //    `bytes` cannot point into it.
        // 4. `u8` has no alignment and no drop.
        unsafe {
            self.slot
                .as_mut_ptr()
                .add(self.len)
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.len += bytes.len();
        Ok(())
    }

    /// Appends zeros up to the next multiple of `align`, counted from the start of the payload.
    /// Padding is written and not skipped, so that the ring's earlier content never reaches a peer.
    ///
    /// # Errors
    ///
    /// [`Overflow`], as for [`write`](Self::write).
    ///
    /// # Panics
    ///
    /// If `align` is 0.
    #[inline]
    pub fn pad_to(&mut self, align: usize) -> Result<(), Overflow> {
        let padded = self.len.next_multiple_of(align);
        if padded > self.limit {
            return Err(self.overflow());
        }
        // The range is in bounds by the check above and rule 1.
        self.slot[self.len..padded].fill(MaybeUninit::new(0));
        self.len = padded;
        Ok(())
    }

    /// Bytes written so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing has been written yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that may still be written: 0 after an overflow.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.limit - self.len
    }

    /// Returns whether a write has been refused. The bytes in the slot are then no payload, even
    /// if the codec took no notice.
    #[inline]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns the bytes that were written so far.
    #[inline]
    pub fn written(&self) -> &[u8] {
        // SAFETY: `len` bytes from the start of `slot` are in bounds (rule 1)
        // and initialized (rule 2), and `&self` keeps them from changing while
        // the result lives.
        unsafe { slice::from_raw_parts(self.slot.as_ptr().cast::<u8>(), self.len) }
    }

    #[cold]
    fn overflow(&mut self) -> Overflow {
        self.limit = self.len; // rule 3
        self.overflowed = true;
        Overflow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fills_the_slot_fits_and_one_byte_more_does_not() {
        let mut memory = [MaybeUninit::uninit(); 4];
        let mut slot = SlotWriter::new(&mut memory);
        assert_eq!(slot.write(b"1234"), Ok(()));
        assert_eq!(slot.write(b""), Ok(()));
        assert!(!slot.overflowed());
        assert_eq!(slot.write(b"5"), Err(Overflow));
        assert_eq!(slot.written(), b"1234");
    }

    #[test]
    fn after_an_overflow_a_shorter_write_is_refused_too() {
        let mut memory = [MaybeUninit::uninit(); 4];
        let mut slot = SlotWriter::new(&mut memory);
        assert_eq!(slot.write(b"12345"), Err(Overflow));
        assert_eq!(slot.write(b"1"), Err(Overflow));
        assert_eq!((slot.len(), slot.remaining()), (0, 0));
        assert!(slot.is_empty() && slot.overflowed());
    }

    #[test]
    fn padding_is_zero_and_counts_from_the_start_of_the_payload() {
        // The slot begins at an odd address and holds bytes of an earlier message: neither may
        // show.
        let mut memory = [MaybeUninit::new(0xee); 18];
        let mut slot = SlotWriter::new(&mut memory[1..]);
        slot.pad_to(8).unwrap();
        assert!(slot.is_empty());
        slot.write(b"abc").unwrap();
        slot.pad_to(8).unwrap();
        slot.write(b"d").unwrap();
        assert_eq!(slot.written(), b"abc\0\0\0\0\0d");
        assert_eq!(slot.pad_to(32), Err(Overflow));
        assert_eq!(slot.len(), 9);
    }
}
