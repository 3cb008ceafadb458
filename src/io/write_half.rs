//! The writing half of a byte stream.

use std::{
    fmt, io,
    mem::MaybeUninit,
    task::{Poll, Waker, ready},
    time::Duration,
};

use ibex_codec::{Raw, SlotWriter};
use ibex_ring::parking::Patience;
use ibex_transport::channel::{Abort, SendHandle};

use super::{announcement::Side, error};
use crate::{CloseReason, Peer, Sender};

/// The half of a [`Stream`](super::Stream) that writes; see
/// [`Stream::into_split`](super::Stream::into_split).
///
/// The half has the stream's writing traits. The waker of a pending write stays until there is
/// room, whatever is called in the meantime, including a flush.
///
/// Dropping the half ends this direction in order, as [`finish`](Self::finish) does. A drop by a
/// panic breaks it off, as [`abort`](Self::abort) does.
pub struct WriteHalf {
    /// There until the direction is ended.
    handle: Option<SendHandle>,

    /// Time that a blocking write waits at most.
    timeout: Option<Duration>,

    // Identity of the stream.
    peer: Peer,
    id: (Side, u64),
}

impl WriteHalf {
    pub(super) fn new(sender: Sender<[u8], Raw>, peer: Peer, id: (Side, u64)) -> Self {
        Self {
            handle: Some(sender.handle),
            timeout: None,
            peer,
            id,
        }
    }

    /// The node at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(super) fn id(&self) -> (Side, u64) {
        self.id
    }

    /// Ends this direction in order, without waiting. The peer reads what was written, and then the
    /// end. Later writes fail by [`BrokenPipe`](io::ErrorKind::BrokenPipe).
    ///
    /// `poll_shutdown` of tokio's `AsyncWrite` and `poll_close` of futures-io's do the same, and
    /// are ready at once.
    pub fn finish(&mut self) {
        if let Some(mut handle) = self.handle.take() {
            handle.close();
        }
    }

    /// Breaks this direction off. The peer reads what was written, and then
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset) in place of an orderly end.
    pub fn abort(mut self) {
        if let Some(handle) = &mut self.handle {
            handle.break_off(CloseReason::Aborted);
        }
    }

    /// Limits how long a blocking write waits; see
    /// [`Stream::set_write_timeout`](super::Stream::set_write_timeout).
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Writes the beginning of the slices in a task: as much as goes in one piece.
    pub(super) fn poll_write(
        &mut self,
        from: &[io::IoSlice<'_>],
        waker: &Waker,
    ) -> Poll<io::Result<usize>> {
        let handle = self.handle.as_mut().ok_or_else(is_finished)?;
        let bytes = piece(handle, from);
        if bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let encode = |slot: &mut [_]| put(from, bytes, slot);
        let waited = handle.leave_room();
        let sent = ready!(handle.poll_send(waker, Some(bytes), encode));
        if waited {
            // A caller may have put other work aside behind the pending write, and resumes it when
            // it is woken, as hyper's HTTP/2 does. A socket would wake it.
            waker.wake_by_ref();
        }
        Poll::Ready(sent.map(|_| bytes).map_err(error::of_send))
    }

    /// Writes as much as goes in one piece, for a thread.
    fn write_piece(&mut self, from: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let handle = self.handle.as_mut().ok_or_else(is_finished)?;
        handle.leave_room();
        let bytes = piece(handle, from);
        if bytes == 0 {
            return Ok(0);
        }
        let patience = self.timeout.map_or(Patience::FOREVER, Patience::at_most);
        let sent = handle.send(Some(bytes), patience, |slot| put(from, bytes, slot));
        sent.map(|_| bytes).map_err(error::of_send)
    }

    /// Sends the written bytes now, if the program turns the engine.
    pub(super) fn let_out(&self) {
        if let Some(handle) = &self.handle {
            handle.let_out();
        }
    }
}

/// The number of bytes that go next.
fn piece(handle: &SendHandle, from: &[io::IoSlice<'_>]) -> usize {
    let most = PIECE_BYTES.min(handle.eager_bytes());
    let mut bytes = 0;
    for slice in from {
        bytes += slice.len();
        if bytes >= most {
            return most;
        }
    }
    bytes
}

/// Copies the first `bytes` of the slices into the slot.
fn put(
    from: &[io::IoSlice<'_>],
    bytes: usize,
    slot: &mut [MaybeUninit<u8>],
) -> Result<usize, Abort> {
    let mut writer = SlotWriter::new(slot);
    for slice in from {
        let left = bytes - writer.len();
        let part = &slice[..slice.len().min(left)];
        writer.write(part).map_err(|_| Abort::Overflow)?;
    }
    Ok(writer.len())
}

fn is_finished() -> io::Error {
    io::Error::new(
        io::ErrorKind::BrokenPipe,
        "this end of the stream was finished: nothing can be written behind it",
    )
}

impl io::Write for WriteHalf {
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_piece(&[io::IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.write_piece(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.let_out();
        Ok(())
    }
}

impl fmt::Debug for WriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteHalf")
            .field("peer", &self.peer.at())
            .finish_non_exhaustive()
    }
}

/// The longest piece of a write.
const PIECE_BYTES: usize = 64 << 10;
