//! TLS 1.3 for ibex, as pure state: bytes come in, bytes and plaintext go out. The crate uses no
//! sockets. Only `Security` reads files, when it is made and when certificates are reloaded.
//!
//! - `Security`: a builder for a node's proof of its identity and its choice of peers.
//! - [`Credentials`]: the material that a node makes of that, from which each connection makes a
//!   [`Tls`].
//! - [`Tls`]: one connection. The bootstrap drives it through its handshake, the transport seals
//!   frames with it.
//! - [`SecurityStats`]: counts of a node's handshakes.
//! - [`AuthenticatedAs`], [`AuthenticationError`]: the identity of a peer, or the reason why it has
//!   none.
//!
//! The cryptography is that of rustls and its providers, and all of it is behind the feature
//! `rustls`. Without the feature, [`Credentials`] and [`Tls`] are types without values, so that
//! other crates need no conditions.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub use ibex_base::tls::{
    AuthenticatedAs, AuthenticationError, Cause, Encryption, Method, RefusedBy, SecurityStats,
    TlsError,
};

#[cfg(feature = "rustls")]
mod buffers;
#[cfg(feature = "rustls")]
mod certificate_names;
#[cfg(feature = "rustls")]
mod certificates;
#[cfg(feature = "rustls")]
mod credentials;
#[cfg(feature = "rustls")]
mod exposure;
#[cfg(feature = "rustls")]
mod identity_slot;
#[cfg(feature = "rustls")]
mod own_certificate;
#[cfg(feature = "rustls")]
mod own_key;
#[cfg(feature = "rustls")]
mod pinned;
#[cfg(feature = "rustls")]
mod provider;
#[cfg(feature = "rustls")]
mod security;
#[cfg(feature = "rustls")]
mod security_error;
#[cfg(feature = "rustls")]
mod shared_secret;
#[cfg(feature = "rustls")]
mod tls;

#[cfg(feature = "rustls")]
pub use {
    credentials::Credentials, rustls, security::Security, security_error::SecurityError,
    shared_secret::SharedSecret, tls::Tls,
};

#[cfg(not(feature = "rustls"))]
mod absent;
#[cfg(not(feature = "rustls"))]
pub use absent::{Credentials, Tls};

#[cfg(all(test, feature = "graviola"))]
mod tests;
