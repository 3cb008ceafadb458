//! The traits by which nodes, peers and channels open what stands on channels: `use
//! ibex::prelude::*`.
//!
//! | with | call | opens |
//! |---|---|---|
//! | a peer, or kept peers | [`caller`](OpenCaller::caller) | a [`Caller`](crate::calls::Caller) or [`PeersCaller`](crate::calls::PeersCaller) of a service |
//! | a node, or a peer | [`service`](OpenService::service) | a [`Service`](crate::calls::Service) |
//! | a [`ChannelBuilder`](crate::ChannelBuilder) | [`caller`](CallerSettings::caller), [`service`](ServiceSettings::service) | the same, with settings |
//! | a [`NodeBuilder`](crate::NodeBuilder) | [`inspect`](InspectSettings::inspect), [`inspect_at`](InspectSettings::inspect_at) | a socket for `ibex top`, at [`inspect::path_of`](crate::inspect::path_of) the node |
//! | a node | [`keep_connected`](KeepConnected::keep_connected) | [`Peers`](crate::discovery::Peers) that stay connected |

#[cfg(feature = "calls")]
#[doc(inline)]
pub use ibex_calls::{CallerSettings, OpenCaller, OpenService, ServiceSettings};
#[cfg(feature = "inspect")]
#[doc(inline)]
pub use ibex_inspect::InspectSettings;
#[cfg(feature = "peers")]
#[doc(inline)]
pub use ibex_peers::KeepConnected;
