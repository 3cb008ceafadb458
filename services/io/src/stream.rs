//! A byte stream: what both of its halves are together.

use std::{io, time::Duration};

use ibex_core::{Peer, RegionSlice};

use super::{ReadHalf, WriteHalf};

/// A byte stream between two nodes: the counterpart of a `TcpStream`, over the session's fabric.
///
/// Blocking programs use it by [`std::io::Read`], [`Write`](std::io::Write) and
/// [`BufRead`](std::io::BufRead). Tasks use `AsyncRead`, `AsyncWrite` and `AsyncBufRead` of
/// futures-io or, with the feature `tokio`, of tokio. [`connect`](Self::connect),
/// [`connect_async`](Self::connect_async) and a [`Listener`](super::Listener) return streams. The
/// [module](super) says what a stream promises.
///
/// Dropping it ends both directions. The peer reads what was written, and then the end; its later
/// writes fail by [`BrokenPipe`](std::io::ErrorKind::BrokenPipe). A drop by a panic is an
/// [`abort`](Self::abort).
pub struct Stream {
    pub(super) read: ReadHalf,
    pub(super) write: WriteHalf,
}

impl Stream {
    /// Returns the node at the other end: its identity, its address, and the fabric.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        self.read.peer()
    }

    /// Borrows both halves, for example for two threads of a scope, one that reads and one that
    /// writes.
    pub fn split(&mut self) -> (&mut ReadHalf, &mut WriteHalf) {
        (&mut self.read, &mut self.write)
    }

    /// Splits the stream into two halves, to be moved to threads or tasks. Each ends its direction
    /// when it is dropped. [`ReadHalf::reunite`] makes a stream of them again.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }

    /// Writes all bytes of a slice of the program's memory; see [`WriteHalf::write_region`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteHalf::write_region`].
    pub fn write_region(&mut self, slice: &RegionSlice) -> io::Result<()> {
        self.write.write_region(slice)
    }

    /// Writes all bytes of a slice of the program's memory, for a task; see
    /// [`WriteHalf::write_region_async`].
    ///
    /// # Errors
    ///
    /// Those of [`WriteHalf::write_region`].
    pub fn write_region_async<'a>(
        &'a mut self,
        slice: &'a RegionSlice,
    ) -> impl Future<Output = io::Result<()>> + Send + 'a {
        self.write.write_region_async(slice)
    }

    /// Ends the writing direction in order, without waiting. The peer reads what was written, and
    /// then the end. Reading goes on; see [`WriteHalf::finish`].
    pub fn finish(&mut self) {
        self.write.finish();
    }

    /// Breaks the stream off. The peer reads what was written, and then
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset) in place of an orderly end.
    pub fn abort(self) {
        self.write.abort();
    }

    /// Limits how long a blocking read waits. `None`, the default, means no limit. When the time is
    /// up, the read fails by [`TimedOut`](io::ErrorKind::TimedOut), and a later one goes on. Tasks
    /// use the time-outs of their executor.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read.set_timeout(timeout);
    }

    /// Limits how long a blocking write waits, in the same way. A write that fails by it has
    /// written nothing.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.write.set_timeout(timeout);
    }
}

ibex_core::extend::debug_fields! {
    [] Stream: |stream|
        peer = stream.peer().at(), fabric = stream.peer().fabric()
}

impl ReadHalf {
    /// The stream that both halves are of.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] with both halves, if they are of different streams.
    #[allow(clippy::result_large_err, reason = "the error gives both halves back")]
    pub fn reunite(self, write: WriteHalf) -> Result<Stream, ReuniteError> {
        let of_one = self.id() == write.id() && self.peer().is_same_session(write.peer());
        match of_one {
            true => Ok(Stream { read: self, write }),
            false => Err(ReuniteError(self, write)),
        }
    }
}

/// Two halves that are not of one stream. See [`ReadHalf::reunite`].
#[derive(thiserror::Error)]
#[error("the two halves are not of one stream")]
pub struct ReuniteError(
    /// The reading half, as it was given.
    pub ReadHalf,
    /// The writing half, as it was given.
    pub WriteHalf,
);

ibex_core::extend::debug_as_display!(ReuniteError);
