//! The writing half of a byte stream.

use std::{
    future::{Future, poll_fn},
    io,
    task::{Context, Poll, ready},
    time::Duration,
};

use ibex_core::{Loan, Peer, RegionSlice, Sender, codec::Raw, extend::Untyped};

use super::side::{MOST_PIECE_BYTES, Side};

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
    sender: Option<Sender<[u8], Raw>>,

    /// Time that a blocking write waits at most.
    timeout: Option<Duration>,

    // Identity of the stream.
    peer: Peer,
    id: (Side, u64),
}

impl WriteHalf {
    pub(super) fn new(sender: Sender<[u8], Raw>, peer: Peer, id: (Side, u64)) -> Self {
        Self {
            sender: Some(sender),
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
        if let Some(mut sender) = self.sender.take() {
            sender.untyped_mut().close();
        }
    }

    /// Breaks this direction off. The peer reads what was written, and then
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset) in place of an orderly end.
    pub fn abort(mut self) {
        if let Some(sender) = self.sender.take() {
            sender.abort();
        }
    }

    /// Limits how long a blocking write waits; see
    /// [`Stream::set_write_timeout`](super::Stream::set_write_timeout).
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Writes all bytes of a slice, behind what was written before, and from where they lie if
    /// [`send_region`](ibex_core::Sender::send_region) can. The peer reads them as any other bytes.
    ///
    /// The slice goes in pieces of up to 1 MiB, each of which waits for room as long as
    /// [`set_timeout`](Self::set_timeout) says. The peer reads a piece when all of it has come.
    /// Until the last piece has left the slice, the node holds a clone of it:
    /// [`Region::wait_free`](ibex_core::Region::wait_free) tells when the bytes are the program's alone.
    ///
    /// ```
    /// use std::io::{self, Write};
    /// use ibex::{Region, io::WriteHalf};
    ///
    /// /// Answers with a length and a part of a file that is mapped.
    /// fn answer(to: &mut WriteHalf, file: &Region) -> io::Result<()> {
    ///     let part = file.slice(4096..file.len().min(4 << 20));
    ///     to.write_all(&(part.len() as u64).to_le_bytes())?;
    ///     to.write_region(&part)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of a [write](super#errors). As with [`write_all`](io::Write::write_all), the beginning
    /// of the slice may have been written then.
    pub fn write_region(&mut self, slice: &RegionSlice) -> io::Result<()> {
        let sender = self.sender.as_mut().ok_or_else(is_finished)?;
        sender.drop_wakers();
        for piece in pieces(slice, 0) {
            match self.timeout {
                None => sender.send_region(&piece)?,
                Some(timeout) => sender.send_region_timeout(&piece, timeout)?,
            };
        }
        Ok(())
    }

    /// Writes all bytes of a slice in a task, as [`write_region`](Self::write_region) does, and
    /// without a time-out.
    ///
    /// If the future is dropped before it is ready, the beginning of the slice may have been
    /// written.
    ///
    /// # Errors
    ///
    /// Those of [`write_region`](Self::write_region).
    pub fn write_region_async<'a>(
        &'a mut self,
        slice: &'a RegionSlice,
    ) -> impl Future<Output = io::Result<()>> + Send + 'a {
        let (mut written, mut waited) = (0, None);
        poll_fn(move |context| {
            let sender = self.sender.as_mut().ok_or_else(is_finished)?;
            // Whether a write was pending before: the first poll takes its waker back.
            let waited = *waited.get_or_insert_with(|| sender.drop_wakers());
            let mut rest = pieces(slice, written);
            let done = loop {
                let Some(piece) = rest.next() else {
                    break Ok(());
                };
                match ready!(sender.poll_send_region(context, &piece)) {
                    Ok(_) => written += piece.len(),
                    Err(error) => break Err(error.into()),
                }
            };
            if waited {
                // As in `poll_write`.
                context.waker().wake_by_ref();
            }
            Poll::Ready(done)
        })
    }

    /// Writes the beginning of the slices in a task: as much as goes in one piece.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sender = self.sender.as_mut().ok_or_else(is_finished)?;
        let bytes = piece(sender, from);
        if bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let waited = sender.drop_wakers();
        let room = ready!(sender.poll_loan(context, bytes)).map_err(io::Error::from);
        let written = room.and_then(|room| send(room, from));
        if waited {
            // A caller may have put other work aside behind the pending write, and resumes it when
            // it is woken, as hyper's HTTP/2 does. A socket would wake it.
            context.waker().wake_by_ref();
        }
        Poll::Ready(written)
    }

    /// Writes as much as goes in one piece, for a thread.
    pub(super) fn write_piece(&mut self, from: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let sender = self.sender.as_mut().ok_or_else(is_finished)?;
        sender.drop_wakers();
        let bytes = piece(sender, from);
        if bytes == 0 {
            return Ok(0);
        }
        let room = match self.timeout {
            None => sender.loan(bytes),
            Some(timeout) => sender.loan_timeout(bytes, timeout),
        };
        send(room?, from)
    }

    /// Sends the written bytes now, if the program turns the engine.
    pub(super) fn let_out(&self) {
        if let Some(sender) = &self.sender {
            sender.untyped().let_out();
        }
    }
}

/// Cuts a slice from byte `written` on into messages that every reader takes.
fn pieces(slice: &RegionSlice, written: usize) -> impl Iterator<Item = RegionSlice> {
    let starts = (written..slice.len()).step_by(MOST_PIECE_BYTES);
    starts.map(|start| slice.slice(start..slice.len().min(start + MOST_PIECE_BYTES)))
}

/// The number of bytes that go next.
fn piece(sender: &Sender<[u8], Raw>, from: &[io::IoSlice<'_>]) -> usize {
    let most = PIECE_BYTES.min(sender.untyped().eager_bytes());
    let mut bytes = 0;
    for slice in from {
        bytes += slice.len();
        if bytes >= most {
            return most;
        }
    }
    bytes
}

/// Sends the beginning of the slices, as much as there is room for.
fn send(mut room: Loan<'_>, from: &[io::IoSlice<'_>]) -> io::Result<usize> {
    let mut rest = &mut room[..];
    for slice in from {
        let part = &slice[..slice.len().min(rest.len())];
        let (now, later) = rest.split_at_mut(part.len());
        now.copy_from_slice(part);
        rest = later;
    }
    let bytes = room.len();
    Ok(room.send().map(|_| bytes)?)
}

fn is_finished() -> io::Error {
    io::Error::new(
        io::ErrorKind::BrokenPipe,
        "this end of the stream was finished: nothing can be written behind it",
    )
}

ibex_core::extend::debug_fields!([] WriteHalf: |half| peer = half.peer.at());

/// The longest piece of a write.
const PIECE_BYTES: usize = 64 << 10;
