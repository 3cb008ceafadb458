//! hyper, and libraries built on it, over ibex's byte streams: shared memory between processes of
//! one host, RDMA between hosts that have it, and tcp elsewhere.
//!
//! A client that is made by hyper-util takes a [`Connector`] instead of its `HttpConnector`: no
//! other line changes. The connector reads the host and port of a URI as the address of a node,
//! keeps one session for each such address, and opens a byte stream for each connection.
//!
//! ```
//! use bytes::Bytes;
//! use http_body_util::Empty;
//! use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//! use ibex::{Driver, Node};
//! use ibex_hyper::Connector;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Runtime::new()?;
//! # runtime.block_on(async {
//! let node = Node::builder().driver(Driver::Tasks).build()?;
//! let client = Client::builder(TokioExecutor::new())
//!     .build::<_, Empty<Bytes>>(Connector::new(node));   // was: .build_http()
//! # drop(client);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! A server accepts connections from [`Incoming`] instead of a `TcpListener`. axum takes it
//! unchanged, with the feature `axum`; a loop over hyper's own server reads
//!
//! ```
//! use hyper::service::service_fn;
//! use hyper_util::{rt::{TokioExecutor, TokioIo}, server::conn::auto};
//! use ibex::Node;
//! use ibex_hyper::Incoming;
//! # use http_body_util::Full;
//! # use bytes::Bytes;
//! # async fn hello(_: hyper::Request<hyper::body::Incoming>)
//! #     -> Result<hyper::Response<Full<Bytes>>, std::convert::Infallible>
//! # { Ok(hyper::Response::new(Full::default())) }
//!
//! async fn serve(node: &Node) -> std::io::Result<()> {
//!     let mut incoming = Incoming::bind(node)?;      // was: TcpListener::bind(address).await?
//!     loop {
//!         let (stream, _peer) = incoming.accept().await?;
//!         tokio::spawn(async move {
//!             let connection = auto::Builder::new(TokioExecutor::new());
//!             connection.serve_connection(TokioIo::new(stream), service_fn(hello)).await
//!         });
//!     }
//! }
//! ```
//!
//! TLS goes inside, as over a socket: rustls takes the stream for its socket, and hyper-rustls
//! wraps the connector.
#![forbid(unsafe_code)]

#[cfg(feature = "axum")]
mod axum;
mod connection;
mod connector;
mod incoming;

pub use connection::Connection;
pub use connector::{ConnectFuture, Connector};
pub use incoming::Incoming;

/// The name of the listener on which a [`Connector`] and an [`Incoming`] agree if the program gives
/// no other: it corresponds to port 80 of a host.
pub const NAME: &str = "http";
