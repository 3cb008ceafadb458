//! Connecting to a peer's listener.
//!
//! A connecting end opens both channels of a stream and announces its number on the listener's
//! channel, in one step. A stream that was opened is therefore always announced, so that the
//! listener accepts or refuses it. There is one channel of announcements for each peer and name,
//! and it stays open until the listener is dropped. A listener accepts a stream by acknowledging its
//! announcement. An announcement that a dropped listener had not accepted is made again, for the
//! next listener of that name.

use std::{
    future::{Future, poll_fn},
    io,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use ibex_core::{CloseReason, EndCause, OpenError, Peer, SendError, Sender, WaitError, extend};

use super::{
    Stream,
    announcement::{Announced, Announcement, MOST_NAME_BYTES, StreamEnds, is_name, next_number},
    error,
    side::Side,
};

impl Stream {
    /// Connects to the [`Listener`](super::Listener) of that name at a peer, and waits until it has
    /// accepted the stream.
    ///
    /// ```
    /// use std::io::{BufRead, Write};
    ///
    /// fn ask(peer: &ibex::Peer, question: &str) -> std::io::Result<String> {
    ///     let mut stream = ibex::io::Stream::connect(peer, "questions")?;
    ///     writeln!(stream, "{question}")?;
    ///     let mut answer = String::new();
    ///     stream.read_line(&mut answer)?;
    ///     Ok(answer)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut): there is no listener of that name, or it does not
    /// accept, within the [`open_timeout`](ibex_core::NodeBuilder::open_timeout) of this node. A
    /// listener that is dropped leaves requests that it has not accepted to the next listener of
    /// that name. [`ConnectionRefused`](io::ErrorKind::ConnectionRefused): the listener failed. [`InvalidData`](io::ErrorKind::InvalidData): the peer has a channel of messages of
    /// that name. [`InvalidInput`](io::ErrorKind::InvalidInput): the name is empty, or longer than
    /// 228 bytes. [`ConnectionReset`](io::ErrorKind::ConnectionReset) and
    /// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted): the session has ended, there or
    /// here. Otherwise the stream's channels cannot be opened, and the
    /// [`OpenError`](ibex_core::OpenError) within tells why.
    pub fn connect(peer: &Peer, name: &str) -> io::Result<Self> {
        let timeout = extend::parts(&peer.channel(name)).1.wait_for_open();
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let mut request = StreamRequest::new(peer, name)?;
            match request.wait(deadline) {
                Err(failure) if failure.is_left() => {}
                accepted => return accepted.map_err(RequestFailure::into),
            }
        }
    }

    /// Connects as [`connect`](Self::connect) does, for a task.
    ///
    /// The future waits without limit until the listener has accepted the stream. Dropping the
    /// future takes the request back. A listener that has already accepted it reads the end.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect), except that no time-out ends the wait.
    pub fn connect_async(
        peer: &Peer,
        name: &str,
    ) -> impl Future<Output = io::Result<Self>> + use<> {
        let (peer, name) = (peer.clone(), name.to_owned());
        async move {
            loop {
                let mut request = StreamRequest::new(&peer, &name)?;
                match poll_fn(|context| request.poll(context)).await {
                    Err(failure) if failure.is_left() => {}
                    accepted => return accepted.map_err(RequestFailure::into),
                }
            }
        }
    }
}

/// A stream that is to be taken in.
struct StreamRequest {
    announcer: Sender<Announced, Announcement>,
    announced: Announced,
    sequence: Option<u64>,
}

impl StreamRequest {
    fn new(peer: &Peer, name: &str) -> io::Result<Self> {
        check_name(name)?;
        let channel = peer.channel(name).codec::<Announcement>();
        let channel = extend::with_label(channel, &crate::label::LISTENER);
        let ends = StreamEnds::new(peer.clone(), name, next_number(), Side::Connecting);
        Ok(Self {
            announcer: extend::shared_sender(&channel)?,
            announced: Announced::new(ends),
            sequence: None,
        })
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Result<Stream, RequestFailure> {
        let left = || {
            deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            })
        };
        let sent = self.announcer.send_timeout(&self.announced, left());
        let sequence = sent.map_err(|error| self.unsent(error))?;
        let accepted = self.announcer.wait_acked_timeout(sequence, left());
        accepted.map_err(RequestFailure::Unaccepted)?;
        Ok(self.stream())
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Stream, RequestFailure>> {
        let sequence = match self.sequence {
            Some(sequence) => sequence,
            None => {
                let sent = ready!(self.announcer.poll_send(context, &self.announced));
                let sequence = sent.map_err(|error| self.unsent(error))?;
                *self.sequence.insert(sequence)
            }
        };
        let accepted = ready!(self.announcer.poll_acked(context, sequence));
        accepted.map_err(RequestFailure::Unaccepted)?;
        Poll::Ready(Ok(self.stream()))
    }

    fn stream(&self) -> Stream {
        match self.announced.take() {
            Some(Ok(stream)) => stream,
            _ => unreachable!("what is announced was opened"),
        }
    }

    /// Returns the failure of an announcement that was not sent. It was not, too, if the stream's
    /// ends cannot be opened.
    fn unsent(&self, error: SendError) -> RequestFailure {
        match self.announced.take() {
            Some(Err(error)) => RequestFailure::Unopened(error),
            _ => RequestFailure::Unsent(error),
        }
    }
}

/// A request that failed.
enum RequestFailure {
    /// The stream's ends cannot be opened.
    Unopened(OpenError),
    /// The request was not sent.
    Unsent(SendError),
    /// The request was not accepted.
    Unaccepted(WaitError),
}

impl RequestFailure {
    /// Returns whether the listener was dropped. This end may learn of that later than the program
    /// that connects, which knows the next listener already.
    fn is_left(&self) -> bool {
        let cause = match self {
            RequestFailure::Unopened(_) => None,
            RequestFailure::Unsent(error) => error.cause(),
            RequestFailure::Unaccepted(error) => error.cause(),
        };
        cause == Some(&EndCause::PeerClosed(CloseReason::Dropped))
    }
}

impl From<RequestFailure> for io::Error {
    fn from(failure: RequestFailure) -> Self {
        match failure {
            RequestFailure::Unopened(error) => error.into(),
            RequestFailure::Unsent(error) => error::of_connect(error),
            RequestFailure::Unaccepted(error) => error::of_acceptance(error),
        }
    }
}

/// Checks that a listener can have the name.
pub(super) fn check_name(name: &str) -> io::Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "a listener's name has {} bytes; it may have 1 to {MOST_NAME_BYTES}",
            name.len()
        ),
    ))
}
