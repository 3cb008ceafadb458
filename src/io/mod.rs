//! Byte streams between nodes: what a program puts in the place of its `TcpStream`s.
//!
//! A [`Listener`] accepts streams by name, and peers [`connect`](connect()) to it (tasks by
//! [`accept_async`](Listener::accept_async) and [`connect_async`]). A [`Stream`] is a pair of
//! channels, so it goes over the session's fabric: over shared memory between processes of one
//! host, over tcp or verbs between hosts. A stream has two ends of the
//! [`max_channels`](crate::NodeBuilder::max_channels) that a session may have open at a node: 1024
//! by default.
//!
//! ```
//! use std::io::{Read, Write};
//! use ibex::{Node, io::Listener};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let server = Node::listen("127.0.0.1:0")?;
//! let address = server.local_addr().unwrap();
//! let serving = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (mut stream, _peer) = Listener::bind(&server, "greetings")?.accept()?;
//!     let mut name = String::new();
//!     stream.read_to_string(&mut name)?;         // up to the end
//!     write!(stream, "hello, {name}")
//! });
//!
//! let client = Node::client()?;
//! let mut stream = ibex::io::connect(&client.connect(address)?, "greetings")?;
//! stream.write_all(b"world")?;
//! stream.finish();                               // half of it is closed
//! let mut greeting = String::new();
//! stream.read_to_string(&mut greeting)?;
//! assert_eq!(greeting, "hello, world");
//! serving.join().unwrap()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! What a socket promises: bytes arrive in order and once, each direction ends on its own, a
//! writer waits for a reader that is slow, and nobody is told anything between. More than that, a
//! stream [outlives its connection](crate::Node#when-a-connection-breaks): when that breaks, reads
//! and writes wait, and go on where they were, without a byte lost or doubled.
//!
//! *Writing.* A write copies its bytes once, into the memory that is sent from or shared, and is on
//! its way when it returns: there is no buffer of the stream's own, and `flush` has nothing to wait
//! for. Under [`Driver::Caller`](crate::Driver::Caller), where what is sent waits for a turn,
//! `flush` runs one. Up to 64 KiB go in one piece, of several slices too; a longer write
//! answers, as a socket's may, how many bytes it took. A write of a few bytes is a message of its
//! own: it costs the writer a tenth of a microsecond, and readers get as many of them at a time
//! as have come.
//!
//! *Reading.* A read takes what is there, up to its buffer's length, and waits only if nothing is.
//! `BufRead` and `AsyncBufRead` give the bytes where they arrived, and need no buffer around them.
//!
//! *Waiting.* A channel's `window_bytes` is how far a writer may be ahead of its reader. A
//! pending read and a pending write of one stream may be of different tasks. Each waker is
//! called once there is news for it, whatever else is polled meanwhile: a flush that is ready takes
//! back no waker of a write, and a call that gets through wakes who had to wait before it, as a
//! socket does. All futures and polls may be dropped or given up at any time; a read
//! that is pending has taken nothing, and a write that is pending has written nothing.
//!
//! *Ending.* [`finish`](Stream::finish), `poll_shutdown`, dropping, and closing the node end a
//! direction in order: the peer reads what was written, and then the end, as it does of a socket
//! whose process exits. A protocol whose messages may be cut off there has to say where each ends.
//! A panic that drops a stream, and [`abort`](Stream::abort), do not end it in order: the peer
//! reads [`ConnectionReset`](std::io::ErrorKind).
//!
//! # Errors
//!
//! An error has the kind that a socket's would have, and within it
//! ([`get_ref`](std::io::Error::get_ref)) the [`RecvError`](crate::RecvError),
//! [`SendError`](crate::SendError) or other error of ibex, which names the peer, what happened and
//! how far the channel came.
//!
//! | kind | when |
//! |---|---|
//! | `ConnectionReset` | the peer is gone, aborted the stream, or panicked |
//! | `BrokenPipe` | writing: the peer reads no more, or this end was finished |
//! | `ConnectionAborted` | this node was closed, or lost its device |
//! | `TimedOut` | the time of a blocking call is up |
//! | `ConnectionRefused` | connecting: the listener went before it accepted |
//! | `AddrInUse` | the node has a listener of that name, or a receiver with that peer |
//! | `OutOfMemory` | the kernel refuses memory; a later call may succeed |
//!
//! Everything that arrived before an error is read before it.

mod announcement;
mod connecting;
mod error;
mod listener;
mod read_half;
mod stream;
mod tasks;
#[cfg(feature = "tokio")]
mod tokio;
mod write_half;

pub use connecting::{connect, connect_async};
pub use listener::Listener;
pub(crate) use listener::ListenerNames;
pub use read_half::{ReadHalf, ReuniteError};
pub use stream::Stream;
pub use write_half::WriteHalf;
