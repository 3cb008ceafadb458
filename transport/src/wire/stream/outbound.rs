//! Frames to be written to the socket: heads that the session built, and bodies that stay in place
//! until the kernel has taken them. Only a short body goes inline, after its head, because a system
//! call with one buffer takes a shorter way through the kernel than one with a list. That is worth
//! more than the copy.
//!
//! A batch is built and written completely before the next is built: messages that a channel queues
//! meanwhile go into longer frames.

use std::{io, io::IoSlice, mem, net::TcpStream, ptr::NonNull, slice};

use ibex_protocol::format::{
    frame::{BLOCK_ALIGNMENT, FRAME_ALIGNMENT, FrameHeader, HEAD_BYTES},
    frame_check::{self, CHECK_BYTES, Coverage},
};
use ibex_ring::memory::read_by_kernel;

use super::{io_fault::is_unreadable, record_layer::RecordLayer};

/// A batch of frames. It has [`Lists`] while it is not empty.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    /// Heads of the batch's frames, one after the other.
    pub(crate) heads: Vec<u8>,
    /// Offset in `heads` up to which pieces were made.
    heads_used: usize,
    pieces: Vec<BatchPiece>,
    /// The first piece that is not completely written, and the number of its written bytes.
    next: usize,
    next_written: usize,
    /// Bytes of the batch that are still to be written.
    bytes: usize,
    /// Total bytes of the frames so far.
    position: u64,
    /// Number of all frames so far.
    frames: u64,
    /// Bodies of the batch that are copies; see [`stage`](Self::stage).
    staged: Vec<Vec<u8>>,
}

/// Lists that a batch is built in, with room for the longest batch. An engine lends them to a
/// connection from the building of a batch until it is written.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    heads: Vec<u8>,
    pieces: Vec<BatchPiece>,
}

#[derive(Clone, Copy, Debug)]
enum BatchPiece {
    /// `heads[start..start + length]`.
    Head { start: usize, length: usize },
    /// Bytes that their owner keeps until the batch is written.
    Memory { base: NonNull<u8>, length: usize },
    /// Zeros that pad a frame.
    Fill { length: usize },
}

// SAFETY: the pointers are to memory that the wire keeps alive and that no thread writes until the
// batch is written; the wire moves between threads as a whole.
unsafe impl Send for Outbound {}
// SAFETY: lists that are not lent are empty.
unsafe impl Send for Lists {}

/// Size at which a batch is complete: enough to keep the kernel busy, and small enough that control
/// frames do not wait long.
const BATCH_BYTES: usize = 256 << 10;
/// The longest body that goes inline.
const INLINE_BYTES: usize = 256;
/// Most pieces of one system call.
const PIECES: usize = 64;
/// Pieces of a frame or two.
const FEW_PIECES: usize = 6;

impl Lists {
    #[cold]
    fn make(&mut self) {
        self.heads
            .reserve_exact(PIECES * (HEAD_BYTES + INLINE_BYTES));
        self.pieces.reserve_exact(PIECES);
    }
}

impl Outbound {
    /// Borrows lists to build a batch in, unless this connection has some.
    #[inline]
    pub(crate) fn borrow(&mut self, lists: &mut Lists) {
        if self.pieces.capacity() == 0 {
            if lists.pieces.capacity() == 0 {
                lists.make();
            }
            self.swap(lists);
        }
    }

    /// Gives the lists back, if nothing waits to be written.
    #[inline]
    pub(crate) fn give_back(&mut self, lists: &mut Lists) {
        if self.is_empty() && self.pieces.capacity() != 0 {
            self.swap(lists);
            if self.pieces.capacity() != 0 {
                self.free();
            }
        }
    }

    #[inline]
    fn swap(&mut self, lists: &mut Lists) {
        mem::swap(&mut self.heads, &mut lists.heads);
        mem::swap(&mut self.pieces, &mut lists.pieces);
    }

    /// Drops the lists, because the engine has made others by now.
    #[cold]
    fn free(&mut self) {
        (self.heads, self.pieces) = (Vec::new(), Vec::new());
    }

    /// Returns the place of the next frame's header in the peer's arrival memory, modulo 64.
    #[inline]
    pub(crate) fn arrival_offset(&self) -> usize {
        (self.position as usize + CHECK_BYTES) % BLOCK_ALIGNMENT
    }

    /// Makes room for the checks of the next frame. The caller then appends its head to `heads`,
    /// and [`push`](Self::push) makes the frame.
    pub(crate) fn begin(&mut self) {
        self.heads.extend_from_slice(&[0; CHECK_BYTES]);
    }

    /// Number of all frames so far.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Takes back the room for a frame that the session did not have.
    pub(crate) fn take_back(&mut self) {
        self.heads.truncate(self.heads_used);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.pieces.len() + 3 > PIECES
    }

    /// Makes a frame of the bytes that were appended to `heads` since the last frame, and of
    /// `body`, whose check has the given coverage. Returns whether the body goes inline.
    ///
    /// # Safety
    ///
    /// The body's bytes stay valid and unchanged until the batch is written or dropped.
    pub(crate) unsafe fn push(
        &mut self,
        body: Option<(NonNull<u8>, usize)>,
        coverage: Coverage,
    ) -> bool {
        // SAFETY: valid, by the contract.
        let apart =
            body.map(|(base, length)| unsafe { slice::from_raw_parts(base.as_ptr(), length) });
        let head = &mut self.heads[self.heads_used..];
        frame_check::write_checks(self.frames, head, apart, coverage);
        self.frames += 1;
        match body {
            // Bytes that no check covers are read by the kernel alone, which reports those that cannot
            // be read.
            Some((base, length)) if length > INLINE_BYTES || coverage == Coverage::Nothing => {
                self.push_head();
                self.add(BatchPiece::Memory { base, length }, length);
                let fill = length.next_multiple_of(FRAME_ALIGNMENT) - length;
                if fill > 0 {
                    self.add(BatchPiece::Fill { length: fill }, fill);
                }
                false
            }
            Some((base, length)) => {
                // SAFETY: valid, by the contract.
                self.push_inline(unsafe { slice::from_raw_parts(base.as_ptr(), length) });
                true
            }
            None => {
                self.push_head();
                false
            }
        }
    }

    /// Copies a body that may be of a mapped file, by the kernel, which reports bytes that cannot be
    /// read. The copy lasts as long as the batch.
    ///
    /// # Errors
    /// The first byte that cannot be read.
    ///
    /// # Safety
    ///
    /// The body's bytes are valid but for what their file lacks.
    pub(crate) unsafe fn stage(
        &mut self,
        (base, length): (NonNull<u8>, usize),
    ) -> Result<(NonNull<u8>, usize), NonNull<u8>> {
        // SAFETY: valid, by the contract, and the kernel alone reads them.
        let body = unsafe { slice::from_raw_parts(base.as_ptr(), length) };
        // SAFETY: fewer bytes were read than the body has.
        let copy = read_by_kernel(body).map_err(|read| unsafe { base.add(read) })?;
        let place = NonNull::from(&copy[..]).cast();
        self.staged.push(copy);
        Ok((place, length))
    }

    /// Makes a frame of a control message that was built by itself.
    pub(crate) fn push_control(&mut self, frame: &[u8]) {
        self.begin();
        self.heads.extend_from_slice(frame);
        // SAFETY: there is no body.
        unsafe { self.push(None, Coverage::Whole) };
    }

    /// Makes a frame of one record, which goes inline.
    #[inline]
    pub(crate) fn push_lone(&mut self, header: &FrameHeader, record: &[u8], payloads: bool) {
        let head = frame_check::head_of_lone(self.frames, header, record, payloads);
        self.frames += 1;
        self.heads.extend_from_slice(&head);
        if header.pad > 0 {
            let padded = self.heads.len() + usize::from(header.pad);
            self.heads.resize(padded, 0);
        }
        self.push_inline(record);
    }

    #[inline]
    fn push_inline(&mut self, body: &[u8]) {
        debug_assert!(body.len() <= INLINE_BYTES);
        self.heads.extend_from_slice(body);
        let fill = body.len().next_multiple_of(FRAME_ALIGNMENT) - body.len();
        if fill > 0 {
            self.heads.extend_from_slice(&[0; FRAME_ALIGNMENT][..fill]);
        }
        self.push_head();
    }

    #[inline]
    fn push_head(&mut self) {
        let start = self.heads_used;
        let length = self.heads.len() - start;
        self.heads_used = self.heads.len();
        self.add(BatchPiece::Head { start, length }, length);
    }

    fn add(&mut self, piece: BatchPiece, length: usize) {
        self.pieces.push(piece);
        self.bytes += length;
        self.position += length as u64;
    }

    /// Writes until the batch is written or the socket is full. Returns the bytes written and the
    /// system calls made.
    ///
    /// # Errors
    /// The kernel's error. After `EFAULT`, the memory that it could not read is
    /// [`next_memory`](Self::next_memory).
    pub(crate) fn write(
        &mut self,
        layer: &mut impl RecordLayer,
        socket: &TcpStream,
    ) -> io::Result<(usize, u64)> {
        let (mut total, mut calls) = (0, 0);
        let mut is_split = false;
        if layer.has_backlog() {
            calls += 1;
            if !layer.flush(socket)? {
                return Ok((total, calls));
            }
        }
        while self.bytes > 0 {
            calls += 1;
            // Clearing a long list costs as much as building a short frame.
            let written = if is_split {
                self.write_once::<1>(layer, socket)
            } else if self.pieces.len() - self.next <= FEW_PIECES {
                self.write_once::<FEW_PIECES>(layer, socket)
            } else {
                self.write_once::<PIECES>(layer, socket)
            };
            match written {
                Ok(written) => {
                    total += written;
                    self.written(written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The kernel does not say which of several pieces it cannot read.
                Err(error) if is_unreadable(&error) && !is_split => is_split = true,
                Err(error) => return Err(error),
            }
        }
        Ok((total, calls))
    }

    /// Returns where the next byte to be written lies, if it is in memory of a message.
    pub(super) fn next_memory(&self) -> Option<NonNull<u8>> {
        match *self.pieces.get(self.next)? {
            // SAFETY: fewer bytes are written than the piece has.
            BatchPiece::Memory { base, .. } => Some(unsafe { base.add(self.next_written) }),
            BatchPiece::Head { .. } | BatchPiece::Fill { .. } => None,
        }
    }

    /// Makes one system call with up to `MOST` pieces.
    fn write_once<const MOST: usize>(
        &self,
        layer: &mut impl RecordLayer,
        socket: &TcpStream,
    ) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); MOST];
        let count = self.slices(&mut slices);
        layer.write(socket, &slices[..count])
    }

    fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.next_written;
        let pieces = &self.pieces[self.next..];
        for (slice, piece) in into.iter_mut().zip(pieces) {
            let bytes: &[u8] = match *piece {
                BatchPiece::Head { start, length } => &self.heads[start..start + length],
                // SAFETY: valid and unchanged until written, by the contract of `push`.
                BatchPiece::Memory { base, length } => unsafe {
                    slice::from_raw_parts(base.as_ptr(), length)
                },
                BatchPiece::Fill { length } => &[0; FRAME_ALIGNMENT][..length],
            };
            *slice = IoSlice::new(&bytes[skip..]);
            skip = 0;
        }
        pieces.len().min(into.len())
    }

    fn written(&mut self, mut count: usize) {
        self.bytes -= count;
        while count > 0 {
            let length = match self.pieces[self.next] {
                BatchPiece::Head { length, .. }
                | BatchPiece::Memory { length, .. }
                | BatchPiece::Fill { length } => length,
            };
            let rest = length - self.next_written;
            if count < rest {
                self.next_written += count;
                return;
            }
            count -= rest;
            self.next += 1;
            self.next_written = 0;
        }
        if self.bytes == 0 {
            self.pieces.clear();
            self.staged.clear();
            self.heads.clear();
            self.heads_used = 0;
            self.next = 0;
        }
    }
}
