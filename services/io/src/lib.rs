//! Byte streams between nodes, in place of a program's `TcpStream`s.
//!
//! A [`Listener`] accepts streams by name, and peers [`connect`](Stream::connect) to it. Tasks use
//! [`accept_async`](Listener::accept_async) and [`connect_async`](Stream::connect_async). A
//! [`Stream`] is a pair of channels, so it uses the session's fabric: shared memory between
//! processes of one host, TCP or verbs between hosts. It counts as two of the channel ends that a
//! session may have open at a node ([`max_channels`](ibex_core::NodeBuilder::max_channels), 1024 by
//! default).
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
//! let mut stream = ibex::io::Stream::connect(&client.connect(address)?, "greetings")?;
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
//! A stream promises what a socket promises: bytes arrive in order and once, each direction ends on
//! its own, and a writer waits for a slow reader. Moreover, a stream [outlives its
//! connection](ibex_core::Node#when-a-connection-breaks). When that breaks, reads and writes wait, and
//! go on where they were, without a byte lost or doubled.
//!
//! *Writing.* A write copies its bytes once, into the memory that is sent from or shared. They go out
//! without a further call: at once, or [within 2 to 8 ms](https://docs.rs/ibex/latest/ibex/guide/which_driver/index.html#threads) over TCP
//! or RDMA where no thread or task waits for the node. The stream has no buffer of its own, so `flush`
//! has nothing to wait for. Only under [`Driver::Caller`](ibex_core::Driver::Caller), where sending waits for a turn,
//! `flush` runs one. Up to 64 KiB go in one piece, of several slices too. A longer write returns
//! how many bytes it took, as a socket's may. A write of a few bytes is a message of its own: it
//! costs the writer a tenth of a microsecond, and readers get as many of them at a time as have
//! come. [`write_region`](Stream::write_region) writes memory of the program from where it lies.
//!
//! *Reading.* A read takes what is there, up to its buffer's length, and waits only if nothing is
//! there. `BufRead` and `AsyncBufRead` return the bytes where they arrived, and need no buffer
//! around them.
//!
//! *Waiting.* A writer may be ahead of its reader by a channel's `window_bytes`. A pending read and
//! a pending write of one stream may belong to different tasks. Each waker is called once there is
//! events for it, whatever else is polled meanwhile, as with a socket: a flush that is ready takes
//! back no waker of a write, and a call that gets through wakes the task that had to wait before
//! it. Futures and polls may be dropped at any time. A pending read has taken nothing, and a
//! pending write has written nothing, except that of a region, which goes in pieces.
//!
//! *Ending.* [`finish`](Stream::finish), `poll_shutdown`, dropping, and closing the node end a
//! direction in order. The peer reads what was written, and then the end, as with a socket whose
//! process exits. If messages of your protocol may be cut off there, the protocol has to say where
//! each ends. A panic that drops a stream, and [`abort`](Stream::abort), do not end it in order:
//! the peer reads [`ConnectionReset`](std::io::ErrorKind).
//!
//! # Errors
//!
//! An error has the kind that a socket's would have. Within it
//! ([`get_ref`](std::io::Error::get_ref)) is the [`RecvError`](ibex_core::RecvError),
//! [`SendError`](ibex_core::SendError) or other error of ibex, which names the peer, the event, and the
//! channel's progress.
//!
//! | kind | when |
//! |---|---|
//! | `ConnectionReset` | the peer is gone, aborted the stream, or panicked |
//! | `BrokenPipe` | writing: the peer reads no more, or this end was finished |
//! | `ConnectionAborted` | this node was closed, or lost its device |
//! | `TimedOut` | the time of a blocking call is up |
//! | `ConnectionRefused` | connecting: the listener failed before it accepted |
//! | `AddrInUse` | the node has a listener of that name, or a receiver with that peer |
//! | `OutOfMemory` | the kernel refuses memory; a later call may succeed |
//!
//! Everything that arrived before an error is read before it.

mod announcement;
mod connecting;
mod error;
mod label;
mod listener;
mod read_half;
mod side;
mod stream;
#[cfg(feature = "tokio")]
mod tokio;
mod traits;
mod write_half;

pub use listener::Listener;
pub use read_half::ReadHalf;
pub use stream::{ReuniteError, Stream};
pub use write_half::WriteHalf;
