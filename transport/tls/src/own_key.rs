//! The key that a node presents.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The one key of a node, with its certificates or, by RFC 7250, alone.
#[derive(Clone, Debug)]
pub(crate) struct OwnKey {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) is_raw: bool,
}

impl ResolvesServerCert for OwnKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.clone())
    }

    fn only_raw_public_keys(&self) -> bool {
        self.is_raw
    }
}

impl ResolvesClientCert for OwnKey {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.key.clone())
    }

    fn only_raw_public_keys(&self) -> bool {
        self.is_raw
    }

    fn has_certs(&self) -> bool {
        true
    }
}
