//! gRPC by tonic over ibex's byte streams: shared memory between processes of one host, RDMA
//! between hosts that have it, and tcp elsewhere.
//!
//! Generated clients and servers stay as they are. A client changes the way in which its channel
//! connects, and a server the source of its connections:
//!
//! ```
//! use ibex::{Driver, Node};
//! use ibex_tonic::{Connector, Incoming};
//! use tonic::transport::{Endpoint, Server};
//! use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Runtime::new()?;
//! # runtime.block_on(async {
//! let server = Node::builder().driver(Driver::Tasks).listen("127.0.0.1:0").build()?;
//! let address = server.local_addr().unwrap();
//! let (_, health) = tonic_health::server::health_reporter();
//! let serving = tokio::spawn(
//!     Server::builder()
//!         .add_service(health)
//!         .serve_with_incoming(Incoming::bind(&server)?),         // was: .serve(address)
//! );
//!
//! let node = Node::builder().driver(Driver::Tasks).build()?;
//! let channel = Endpoint::from_shared(format!("http://{address}"))?
//!     .connect_with_connector(Connector::new(node))               // was: .connect()
//!     .await?;
//! let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await?;
//! assert_eq!(answer.into_inner().status, 1);
//! # serving.abort();
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # The choice of a fabric
//!
//! Each pair of nodes chooses by itself: shared memory if both are processes of one user on one
//! host, verbs if both have an RDMA device and the feature `verbs` of ibex is on, else tcp.
//! [`NodeBuilder::fabric`](ibex::NodeBuilder::fabric) forces or forbids one, and
//! [`Peer::fabric_reason`](ibex::Peer::fabric_reason) gives the reason for the choice.
//!
//! # Connections
//!
//! The host and port of the endpoint are the address of the server's [`Node`](ibex::Node). One
//! session carries the connections of all channels of a [`Connector`]. The request's extensions
//! name the caller, as [`CalledBy`].
//!
//! A server may listen on loopback without further settings; for other addresses,
//! [`insecure_network`](ibex::NodeBuilder::insecure_network) states that the network is isolated.
//!
//! When a session's connection breaks, calls wait until it is back, and continue. A channel sees an
//! error only when the session is over; the next call then connects again.
#![forbid(unsafe_code)]

mod connection;
mod incoming;

pub use connection::{CalledBy, Connection};
pub use ibex_hyper::{ConnectFuture, Connector, NAME};
pub use incoming::Incoming;
