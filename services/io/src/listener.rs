//! A listener, which accepts incoming streams.

use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ibex_core::{
    FanIn, FanInEvent, Message, Node, OpenErrorKind, PeerAt,
    extend::{self, TakenName},
};

use super::{
    Stream,
    announcement::{Announced, Announcement, StreamEnds},
    connecting::check_name,
    side::Side,
};

use futures_core::{FusedStream, Stream as FuturesStream};

/// Accepts byte streams of all present and future peers. It is the counterpart of a `TcpListener`,
/// with a name in place of a port.
///
/// Peers [`connect`](Stream::connect) to it, and wait until it accepts. Up to 128 streams of each
/// peer lie in its backlog, and more wait at the peer. Dropping the listener refuses the streams
/// that it has not accepted; the others go on.
///
/// A node has one listener of a name at a time. The listener owns its name, and all names that
/// begin with it and a slash, so do not use such names for channels of messages.
///
/// The listener is also a stream of streams, for servers that take one. It ends when the node is
/// closed.
///
/// ```
/// use std::{io, thread};
/// use ibex::{Node, io::Listener};
///
/// /// Sends back what comes.
/// fn echo(node: &Node) -> io::Result<()> {
///     let mut listener = Listener::bind(node, "echo")?;
///     loop {
///         let (stream, peer) = listener.accept()?;
///         println!("{peer} has come");
///         thread::spawn(move || {
///             let (mut from, mut to) = stream.into_split();
///             io::copy(&mut from, &mut to)
///         });
///     }
/// }
/// ```
pub struct Listener {
    name: TakenName,
    requests: FanIn<Announced, Announcement>,
    /// A request whose ends could not be opened, to be tried again. It is dropped behind `requests`:
    /// its peer then learns that the listener is gone, and leaves the request to the next one.
    held: Option<PendingAnnouncement>,
    is_over: bool,
}

/// An announcement that is being answered.
struct PendingAnnouncement {
    message: Message<Announced, Announcement>,
    peer: PeerAt,
    opening: StreamEnds,
}

impl Listener {
    /// Listens for streams of that name.
    ///
    /// The listener and its peers learn of each other once the listener is asked to accept.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the name is empty, or longer than 228
    /// bytes. [`AddrInUse`](io::ErrorKind::AddrInUse): the node has a listener of that name.
    pub fn bind(node: &Node, name: &str) -> io::Result<Self> {
        check_name(name)?;
        let taken = || {
            let text = format!(
                "this node listens for streams named \"{name}\" already; drop that listener, or \
                 choose another name"
            );
            io::Error::new(io::ErrorKind::AddrInUse, text)
        };
        let name = extend::runtime(node).state().take_name(NAMES, name);
        let name = name.ok_or_else(taken)?;
        let requests = node.channel(name.name()).codec::<Announcement>();
        let requests = requests
            .window_messages(BACKLOG)
            .window_bytes(BACKLOG_BYTES);
        let requests = extend::with_label(requests, &crate::label::LISTENER).fan_in();
        Ok(Self {
            name,
            requests: requests
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
            held: None,
            is_over: false,
        })
    }

    /// Returns the next stream, and the peer that it comes from. Waits while there is none.
    ///
    /// # Errors
    ///
    /// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted): the node was closed, and nothing
    /// more comes. [`AddrInUse`](io::ErrorKind::AddrInUse): this node has a receiver or a service
    /// of this name with some peer. Otherwise the ends of the stream could not be opened, and the
    /// [`OpenError`](ibex_core::OpenError) within tells why. The peer waits, and the next call tries
    /// again.
    pub fn accept(&mut self) -> io::Result<(Stream, PeerAt)> {
        loop {
            if let Some(accepted) = self.answer()? {
                return Ok(accepted);
            }
            let event = self.requests.next();
            self.take(event)?;
        }
    }

    /// Accepts the next stream in a task. Dropping the future loses no stream: a stream that had
    /// come is there for the next call.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
    pub fn accept_async(&mut self) -> impl Future<Output = io::Result<(Stream, PeerAt)>> {
        poll_fn(|context| self.poll_accept(context))
    }

    /// Polls for the next stream. While it is pending, only the waker of the last poll is kept.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(Stream, PeerAt)>> {
        loop {
            if let Some(accepted) = self.answer()? {
                return Poll::Ready(Ok(accepted));
            }
            let event = ready!(self.requests.poll_next(context));
            self.take(event)?;
        }
    }

    /// Returns the name that peers connect to.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.name()
    }

    /// Takes in an event of a peer.
    fn take(
        &mut self,
        event: Option<FanInEvent<Message<Announced, Announcement>>>,
    ) -> io::Result<()> {
        match event.ok_or_else(|| self.end())? {
            FanInEvent::Message(who, message) => match self.requests.peer(who) {
                Some(peer) => {
                    let opening =
                        StreamEnds::new(peer, self.name.name(), *message, Side::Listening);
                    self.held = Some(PendingAnnouncement {
                        message,
                        peer: who,
                        opening,
                    });
                }
                // The peer has gone since it announced the stream.
                None => message.ack(),
            },
            FanInEvent::Lost(peer, error) => match error.into_open_error() {
                Ok(error) => return Err(error.into()),
                Err(error) => {
                    tracing::debug!(%peer, %error, listener = self.name(), "a peer connects no more");
                }
            },
            FanInEvent::Joined(_) | FanInEvent::Ended(_) => {}
        }
        Ok(())
    }

    /// Opens the ends of the stream that was announced last.
    fn answer(&mut self) -> io::Result<Option<(Stream, PeerAt)>> {
        let Some(mut held) = self.held.take() else {
            return Ok(None);
        };
        match held.opening.open() {
            Ok(mut stream) => {
                held.message.ack();
                // Sends the acknowledgement to the connecting peer now, if callers turn the engine.
                extend::session(held.opening.peer())
                    .runtime()
                    .poll_in_passing();
                let is_withdrawn = stream.read.is_empty();
                Ok((!is_withdrawn).then_some((stream, held.peer)))
            }
            // The peer is gone, or announced a number twice.
            Err(error) if error.is_end() || error.kind() == OpenErrorKind::AlreadyOpen => {
                held.message.ack();
                Ok(None)
            }
            Err(error) => {
                self.held = Some(held);
                Err(error.into())
            }
        }
    }

    fn end(&mut self) -> io::Error {
        self.is_over = true;
        let closed = extend::errors::not_accepted();
        io::Error::new(io::ErrorKind::ConnectionAborted, closed)
    }
}

impl FuturesStream for Listener {
    type Item = io::Result<Stream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        let accepted = ready!(this.poll_accept(context));
        Poll::Ready(match accepted {
            Ok((stream, _)) => Some(Ok(stream)),
            Err(_) if this.is_over => None,
            Err(error) => Some(Err(error)),
        })
    }
}

impl FusedStream for Listener {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

ibex_core::extend::debug_fields!([] Listener: |listener| name = listener.name());

/// The kind of names that listeners of a node take.
const NAMES: &str = "listener";

/// Limit of the requests of each peer that are sent and not yet accepted.
const BACKLOG: u64 = 128;
/// Bytes that these requests fit into.
const BACKLOG_BYTES: u64 = 64 << 10;
