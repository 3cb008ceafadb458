//! Who a peer is and how TLS fails, in the words that all crates share. The cryptography is in the
//! crate ibex-tls.

mod authenticated_as;
mod authentication_error;
mod counts;
mod method;
mod security_stats;
mod tls_error;
mod utc;

pub use authenticated_as::AuthenticatedAs;
pub use authentication_error::{AuthenticationError, Cause, RefusedBy};
pub use counts::{HandshakeCounts, HandshakeResult};
pub use method::{Encryption, Method};
pub use security_stats::SecurityStats;
pub use tls_error::TlsError;
pub use utc::Utc;
