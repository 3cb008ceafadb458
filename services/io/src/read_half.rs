//! The reading half of a byte stream.

use std::{
    io, mem,
    task::{Poll, Waker, ready},
    time::Duration,
};

use ibex_core::{
    Peer, Receiver, RecvError,
    codec::Raw,
    extend::{ChannelError, RawMessage, ReceiveHandle, Untyped, parking::Patience},
};

use super::side::Side;

/// The half of a [`Stream`](super::Stream) that reads. See [`Stream::into_split`](super::Stream::into_split).
///
/// The half has the stream's reading traits. The waker of a pending read stays until there is
/// something to read, whatever is called on the other half in the meantime.
///
/// Dropping the half ends this direction: later writes of the peer fail by
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe).
pub struct ReadHalf {
    handle: ReceiveHandle,

    // Progress of reading.
    /// The message that is being read, never at its end.
    current: Option<RawMessage>,
    /// Bytes of the message that were read.
    position: usize,
    /// The peer has ended this direction, and everything before was read.
    is_over: bool,
    /// An error that was found behind bytes that were read. The next read returns it.
    failed: Option<ChannelError>,

    /// Time that a blocking read waits at most.
    timeout: Option<Duration>,

    // Identity of the stream.
    peer: Peer,
    id: (Side, u64),
}

impl ReadHalf {
    pub(super) fn new(receiver: Receiver<[u8], Raw>, peer: Peer, id: (Side, u64)) -> Self {
        Self {
            handle: receiver.into_untyped(),
            current: None,
            position: 0,
            is_over: false,
            failed: None,
            timeout: None,
            peer,
            id,
        }
    }

    pub(super) fn id(&self) -> (Side, u64) {
        self.id
    }

    /// The node at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Sets how long a blocking read waits, like [`Stream::set_read_timeout`](super::Stream::set_read_timeout).
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Returns whether the peer has ended the direction without a byte, as far as is known here.
    pub(super) fn is_empty(&mut self) -> bool {
        self.take_what_is_there();
        self.is_over && self.current.is_none()
    }

    // ---- Reading ---------------------------------------------------------------------

    /// Returns the bytes that can be read in place, behind a call that filled; none at the end.
    #[inline]
    pub(super) fn rest(&self) -> &[u8] {
        self.current
            .as_ref()
            .map_or(&[], |message| &message.bytes()[self.position..])
    }

    /// Moves on by this many bytes of the rest.
    #[inline]
    pub(super) fn go_on(&mut self, bytes: usize) {
        let rest = self.rest().len();
        self.position += bytes.min(rest);
        if bytes >= rest
            && let Some(message) = self.current.take()
        {
            message.acknowledge();
        }
    }

    /// Hands up to `room` bytes to `put`, of as many messages as are there, and returns their
    /// number.
    #[inline]
    pub(super) fn read_into(&mut self, room: usize, mut put: impl FnMut(&[u8])) -> usize {
        let mut read = 0;
        loop {
            let rest = self.rest();
            let part = &rest[..rest.len().min(room - read)];
            put(part);
            let bytes = part.len();
            self.go_on(bytes);
            read += bytes;
            if read == room {
                return read;
            }
            self.take_what_is_there();
            if self.current.is_none() {
                return read;
            }
        }
    }

    /// Looks for the next message without waiting, unless one is being read.
    fn take_what_is_there(&mut self) {
        while self.current.is_none() && !self.is_over && self.failed.is_none() {
            match self.handle.poll() {
                Ok(Some(message)) => self.begin(message),
                Ok(None) => return,
                Err(ChannelError::Ended) => self.is_over = true,
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// An empty message is neither a part of a stream nor its end. Peers do not send empty
    /// messages.
    fn begin(&mut self, message: RawMessage) {
        self.position = 0;
        match message.bytes() {
            [] => message.acknowledge(),
            _ => self.current = Some(message),
        }
    }

    /// Makes sure that there is something to read, or the end, for a task.
    pub(super) fn poll_fill(&mut self, waker: &Waker) -> Poll<io::Result<()>> {
        while self.has_to_wait()? {
            let received = ready!(self.handle.poll_receive_waking(waker));
            self.take_in(received)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Makes sure that there is something to read, or the end, for a thread.
    pub(super) fn fill(&mut self) -> io::Result<()> {
        if !self.has_to_wait()? {
            return Ok(());
        }
        let patience = self.timeout.map_or(Patience::FOREVER, Patience::at_most);
        while self.has_to_wait()? {
            let received = self.handle.receive(patience);
            self.take_in(received)?;
        }
        Ok(())
    }

    #[inline]
    fn has_to_wait(&mut self) -> io::Result<bool> {
        match mem::take(&mut self.failed) {
            None => Ok(self.current.is_none() && !self.is_over),
            Some(error) => Err(RecvError::from(error).into()),
        }
    }

    fn take_in(&mut self, received: Result<RawMessage, ChannelError>) -> io::Result<()> {
        match received {
            Ok(message) => self.begin(message),
            Err(ChannelError::Ended) => self.is_over = true,
            Err(error) => return Err(RecvError::from(error).into()),
        }
        Ok(())
    }
}

/// Returns what copies bytes one part after the other into a buffer that has room for all.
pub(super) fn filling(mut to: &mut [u8]) -> impl FnMut(&[u8]) {
    move |bytes| {
        let (now, later) = mem::take(&mut to).split_at_mut(bytes.len());
        now.copy_from_slice(bytes);
        to = later;
    }
}

ibex_core::extend::debug_fields!([] ReadHalf: |half| peer = half.peer.at());
