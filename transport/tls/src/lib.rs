//! TLS 1.3 for ibex, as pure state: bytes come in, bytes and plaintext go out. The crate uses no
//! sockets. Only [`Security`] reads files, when it is made and when certificates are reloaded.
//!
//! - [`Security`]: a builder for a node's proof of its identity and its choice of peers.
//! - [`Credentials`]: the material that a node makes of that, from which each connection makes a
//!   [`TlsConnection`](ibex_base::tls::TlsConnection). The bootstrap drives that through its
//!   handshake, the transport seals frames with it.
//!
//! The cryptography is that of rustls and its providers. A build without TLS does not have this
//! crate: the others know the traits and plain values of [`ibex_base::tls`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod buffers;
mod certificate_names;
mod certificates;
mod credentials;
mod exposure;
mod identity_slot;
mod own_certificate;
mod own_key;
mod pinned;
mod provider;
mod security;
mod security_error;
mod shared_secret;
#[cfg(all(test, feature = "graviola"))]
mod tests;
mod tls;

pub use credentials::Credentials;
pub use rustls;
pub use security::Security;
pub use security_error::SecurityError;
pub use shared_secret::SharedSecret;
