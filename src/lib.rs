//! Typed message channels between processes: over shared memory on one host, over TCP
//! between hosts, and (with the feature `verbs`) over RDMA.
//!
//! A [`Node`] is a process's endpoint. Nodes [`connect`](Node::connect) to each other, and each
//! sees the other as a [`Peer`]. A peer has named, typed, one-way channels, each with a [`Sender`]
//! at one end and a [`Receiver`] at the other. The sender encodes a message once, into the memory that
//! is sent from or shared, and the receiver reads it where it arrived.
//!
//! ```
//! #[ibex::message]
//! struct Entry { offset: u64, data: Vec<u8> }
//!
//! fn replica(node: ibex::Node) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
//!     let mut log = node.accept()?.receiver::<Entry>("wal")?;
//!     let mut bytes = 0;
//!     while let Some(entry) = log.next()? {      // None: the sender closed in order
//!         bytes += entry.data.len() as u64;      // read in place, nothing copied
//!         entry.ack();                           // tell the sender: done with it
//!     }
//!     Ok(bytes)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let node = ibex::Node::listen("127.0.0.1:0")?;
//! let address = node.local_addr().unwrap();
//! let replica = std::thread::spawn(move || replica(node));
//!
//! let node = ibex::Node::client()?;
//! let mut log = node.connect(address)?.sender::<Entry>("wal")?;
//! let last = log.send(&Entry { offset: 0, data: vec![1, 2, 3] })?;
//! log.wait_acked(last)?;                         // the application there said so
//! log.close()?;
//! assert_eq!(replica.join().unwrap()?, 3);
//! # Ok(())
//! # }
//! ```
//!
//! The first page of the guide, [`getting_started`](guide::getting_started), explains this program.
//!
//! | for | there is |
//! |---|---|
//! | a receiver of all peers of a node | [`FanIn`] |
//! | a sender to several peers, and quorums | [`group::Group`] |
//! | a sender to all peers that subscribe | [`Publisher`] |
//! | waiting for several receivers | [`Select`] |
//! | tasks: futures, streams and sinks | [`asynchronous`] |
//! | requests and replies | [`calls`] |
//! | byte streams in place of sockets | [`io`] |
//! | peers that come and go | [`keep_connected`](prelude::KeepConnected::keep_connected), [`discovery`] |
//! | a log that survives restarts | [`log`] |
//! | two releases of a message type | [`Versions`] |
//! | events of sessions and channels, and their counters | [`Node::events`], [`Node::stats`], [`stats`] |
//! | a look at a running node from outside: `ibex top` | [`NodeBuilder::inspect`](prelude::InspectSettings::inspect), [`inspect`] |
//! | settings, memory and `IBEX_*` variables | [`NodeBuilder`], [`ChannelBuilder`] |
//!
//! # Questions
//!
//! | question | answer |
//! |---|---|
//! | How do I bound memory? | [`guide::memory`] |
//! | What happens to messages when the peer is killed? | [`guide::semantics`], [`guide::acknowledgement`] |
//! | How do I wait for two of three replicas? | [`Group::wait_acked`](group::Group::wait_acked), [`guide::groups`] |
//! | How do I stop a blocked receive? | [`Receiver`, Stopping a blocked receive](Receiver#stopping-a-blocked-receive) |
//! | Which fabric do I get, and why? | [`guide::which_fabric`], [`Peer::fabric_reason`] |
//! | How do I go on after a restart? | [`guide::restarting`](guide::restarting#resuming-channels) |
//! | What does an acknowledgement cost? | [`guide::acknowledgement`](guide::acknowledgement#price) |
//! | How do I send 1 GiB without a copy? | [`guide::memory`](guide::memory#large-payloads) |
//! | How do I send from memory of my own, and write there again? | [`guide::memory`](guide::memory#large-payloads), [`Region`] |
//! | How do I run it in tokio? | [`guide::which_driver`](guide::which_driver#tokio) |
//! | How do I authenticate peers, and encrypt? | [`guide::security`] |
//! | How do I renew certificates while the program runs? | [`guide::security`](guide::security#renewing-and-revoking) |
//! | When and how do I use several I/O threads? | [`guide::which_driver`](guide::which_driver#several-io-threads) |
//! | How do I know that RDMA is used? | [`guide::rdma_setup`](guide::rdma_setup#is-it-used) |
//! | How do I trace a call from process to process? | [`guide::request_and_reply`](guide::request_and_reply#metadata-and-traces) |
//! | What does this error mean? | [`guide::troubleshooting`] |
//!
//! # Messages and codecs
//!
//! A codec is a type, chosen when a channel is opened:
//! [`peer.channel(name).codec::<C>()`](ChannelBuilder::codec). The default is `Rkyv`. How a program reads
//! what it receives: [`guide::getting_started`](guide::getting_started#what-the-receiver-sees).
//!
//! | codec | messages | the receiver sees | cost beside the bytes |
//! |---|---|---|---|
//! | `Rkyv` (default) | any type with `#[ibex::message]` | the archived value, in place | a check |
//! | [`Raw`] | `[u8]` | the bytes, in place | none |
//! | [`Pod`] | plain old data and slices of it | the value or slice, in place | none |
//! | `Serde` | serde's derives and [`Schema`](derive@Schema) | the value | decoding, an allocation per `Vec` and `String` |
//! | `SerdeBorrowed` | the same with `&str` and `&[u8]` | the value, borrowing from the message | decoding, twice |
//! | [one of your own](codec::Codec) | | | |
//!
//! Before the first message, both ends compare a fingerprint of the codec and of the type's
//! structure: names, order and types of fields all the way down, but never module paths or names of
//! types. A type of another crate has no schema. Mark the [field](derive@Schema) that holds it by
//! `#[ibex(schema_name = "openraft-0.10")]`; both ends then compare that name, so let it name the
//! release.
//!
//! # What is promised
//!
//! Messages of a channel arrive in order and exactly once while the session lives. An error that
//! ends a channel comes after everything that arrived was handed out, and carries
//! [counters](Counts): *sent* is exact, *received* and *acknowledged* are lower bounds.
//!
//! Dropping a sender ends its channel in order, unless a panic drops it. [`abort`](Sender::abort) ends
//! it by an error. A session [outlives its connection](Node#when-a-connection-breaks), and ends with
//! the process at either end. A [`LogSender`](log::LogSender) goes on with the peer's next process,
//! from the position that this process tells.
//!
//! # Errors
//!
//! Each kind of call has one error type. Its text names the channel and peer, says what happened and
//! what follows, and what to do. Programs decide by `kind()`, and methods return the facts: `peer()`,
//! `channel()`, `counts()`, `cause()` and others. `is_transient()` says that the same call may succeed
//! later without any change. Each of them becomes a [`std::io::Error`], whose kind is that of a socket's
//! error, so `?` works in functions that return [`std::io::Result`].
//!
//! | to | error | kinds |
//! |---|---|---|
//! | make a node | [`ListenError`] | [`ListenErrorKind`] |
//! | connect, accept | [`ConnectError`] | [`ConnectErrorKind`] |
//! | open an end | [`OpenError`] | [`OpenErrorKind`] |
//! | send, answer a call | [`SendError`] | [`SendErrorKind`] |
//! | receive | [`RecvError`] | [`RecvErrorKind`] |
//! | wait for what was sent | [`WaitError`] | [`WaitErrorKind`] |
//! | call | [`CallError`](calls::CallError) | [`CallErrorKind`](calls::CallErrorKind) |
//! | send a log | [`LogError`](log::LogError) | [`LogErrorKind`](log::LogErrorKind) |
//! | read and write a byte stream | [`std::io::Error`] | [`std::io::ErrorKind`], with one of the above within |
//!
//! # Cargo features
//!
//! Shared memory and TCP are in every build.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `rkyv` | yes | `Rkyv` and `#[ibex::message]`; without it `Raw` is the default codec |
//! | `calls`, `peers`, `log`, `io` | yes | requests and replies, peers that stay connected, logs, byte streams |
//! | `inspect` | no | a look at a running node from outside, for `ibex top` |
//! | `serde` | yes | `Serde` and `SerdeBorrowed`; statistics can be serialized |
//! | `bytes` | no | messages of bytes become `bytes::Bytes` without a copy |
//! | `tokio` | no | [`Driver::Tasks`], and tokio's traits on byte streams |
//! | `tower` | no | a [`Caller`](calls::Caller) and a [`PeersCaller`](calls::PeersCaller) are a `tower::Service` |
//! | `tls-graviola` or `tls-ring` | no | `NodeBuilder::security`: who may connect, and encryption over TCP; `tls` alone leaves the provider of cryptography to the program |
//! | `verbs` | no | the fabric over RDMA and `ibex::rdma`; libibverbs is looked for when the program runs |
//!
//! # Without a thread
//!
//! By default a node has an I/O thread. Under [`Driver::Tasks`] a tokio runtime drives the node, and
//! under [`Driver::Caller`] a node runs only in the program's calls. An event loop calls it when the
//! node's descriptor is readable, in the three steps of [`Node::as_fd`]. The guide says [which
//! driver](guide::which_driver) suits which program.
//!
//! ```
//! use ibex::{Driver, Node, Raw};
//! use rustix::event::{PollFd, PollFlags, poll};
//!
//! fn event_loop(address: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     let node = Node::builder().driver(Driver::Caller).build()?;
//!     let peer = node.connect(address)?;
//!     let mut bytes = peer.channel("bytes").codec::<Raw>().receiver::<[u8]>()?;
//!     loop {
//!         let ready = PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN);
//!         while node.poll() {}
//!         loop {
//!             match bytes.try_recv() {
//!                 Ok(message) => message.ack(),
//!                 Err(nothing) if nothing.is_transient() => break,
//!                 Err(over) => return Err(over.into()),
//!             }
//!         }
//!         poll(&mut [ready], None)?;
//!     }
//! }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod guide;
pub mod prelude;

#[cfg(feature = "calls")]
#[doc(inline)]
pub use ibex_calls as calls;
#[cfg(feature = "verbs")]
#[doc(inline)]
pub use ibex_core::rdma;
#[doc(inline)]
pub use ibex_core::{
    Address, AuthenticatedAs, ChannelBuilder, CloseReason, CloseReport, ConnectError,
    ConnectErrorKind, Counts, DrainReport, Driver, EndCause, Event, Events, Fabric, FanIn,
    FanInEvent, Integrity, InvalidTraceContext, ListenError, ListenErrorKind, Loan, Message, Node,
    NodeBuilder, NotOpened, OpenError, OpenErrorKind, Peer, PeerAt, PeerId, PeerNames, Permit,
    Policy, Publisher, Receiver, RecvError, RecvErrorKind, Region, RegionMessage, RegionSlice,
    Role, Select, Selectable, SendError, SendErrorKind, Sender, Suspension, ToAddress,
    TraceContext, Undelivered, VersionedReceiver, VersionedSender, Versions, Wait, WaitError,
    WaitErrorKind, WeakNode, asynchronous, group, shared_memory, stats,
};
#[cfg(feature = "tls")]
#[doc(inline)]
pub use ibex_core::{Encryption, Security, SecurityError, SharedSecret, rustls};
#[cfg(feature = "inspect")]
#[doc(inline)]
pub use ibex_inspect as inspect;
#[cfg(feature = "io")]
#[doc(inline)]
pub use ibex_io as io;
#[cfg(feature = "log")]
#[doc(inline)]
pub use ibex_log as log;
#[cfg(feature = "peers")]
#[doc(inline)]
pub use ibex_peers::discovery;

#[doc(no_inline)]
pub use ibex_codec as codec;
#[doc(inline)]
pub use ibex_codec::{Codec, Pod, Raw, Schema, bytemuck};
#[cfg(feature = "rkyv")]
#[doc(inline)]
pub use ibex_codec::{Rkyv, message, rkyv};
#[cfg(feature = "serde")]
#[doc(inline)]
pub use ibex_codec::{Serde, SerdeBorrowed, serde, serde_bytes};

/// The README, whose code is compiled.
#[cfg(all(doctest, feature = "rkyv"))]
#[doc = include_str!("../README.md")]
struct Readme;
