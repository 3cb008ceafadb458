//! Who a peer is, how TLS fails, and what a connection needs of TLS. The crate ibex-tls does it,
//! in builds that have TLS.

mod authenticated_as;
mod authentication_error;
mod connection;
mod counts;
mod method;
mod security_stats;
mod tls_error;
mod utc;

pub use authenticated_as::AuthenticatedAs;
pub use authentication_error::{AuthenticationError, Cause, RefusedBy};
pub use connection::{TlsConnection, TlsCredentials};
pub use counts::{HandshakeCounts, HandshakeResult};
pub use method::{Encryption, Method};
pub use security_stats::SecurityStats;
pub use tls_error::TlsError;
pub use utc::Utc;
