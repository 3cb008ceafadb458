//! The keys and authorities that a node's connections are made from.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ibex_base::tls::{
    Encryption, HandshakeCounts, HandshakeResult, Method, SecurityStats, TlsConnection,
    TlsCredentials, TlsError,
};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use crate::certificates::{Certificates, Judge};
use crate::identity_slot::IdentitySlot;
use crate::own_certificate::Validity;
use crate::own_key::OwnKey;
use crate::pinned::Pinned;
use crate::security::{KeySource, Security};
use crate::shared_secret::RoleKeys;
use crate::tls::Tls;
use crate::{SecurityError, provider};

/// A node's keys, certificates and trusted authorities, ready for connections.
///
/// Each connection has a configuration of its own, so that its verifier can report the identity
/// that it saw. Nothing is kept for later connections: there are no tickets, and certificates are
/// checked each time.
#[derive(Debug)]
pub struct Credentials {
    security: Security,
    provider: Arc<CryptoProvider>,
    /// The material for connections that begin from now on.
    material: Mutex<Arc<Material>>,
    counts: Arc<HandshakeCounts>,
}

#[derive(Debug)]
enum Material {
    Certificates(Certificates),
    Secret(RoleKeys),
}

impl Security {
    /// Reads the files and derives the keys, for the crate `ibex`.
    ///
    /// # Errors
    /// [`SecurityError`], with the file that is wrong.
    #[doc(hidden)]
    pub fn open(self) -> Result<Credentials, SecurityError> {
        match self.max_session_age {
            Some(given) if given < LEAST_SESSION_AGE => {
                return Err(SecurityError::SessionAge {
                    given,
                    least: LEAST_SESSION_AGE,
                });
            }
            _ => {}
        }
        let provider = match &self.provider {
            Some(given) => given.clone(),
            None => provider::of_features()?,
        };
        let material = Mutex::new(Arc::new(Material::of(&self, &provider)?));
        let credentials = Credentials {
            security: self,
            provider,
            material,
            counts: Arc::default(),
        };
        // A feature that the provider lacks is reported now, and not when the first peer connects.
        credentials.dialer(None).map_err(provider_error)?;
        credentials.acceptor().map_err(provider_error)?;
        Ok(credentials)
    }
}

impl Credentials {
    /// Tells whether an authenticated peer may write into this node's memory.
    #[must_use]
    pub fn trusts_authenticated(&self) -> bool {
        self.security.trusts_authenticated
    }

    /// Returns when this node's certificate is valid; `None` with a shared secret, which does not
    /// expire.
    fn validity(&self) -> Option<Validity> {
        match &**self.lock() {
            Material::Certificates(certificates) => {
                Validity::of(certificates.own.key.cert.first()?)
            }
            Material::Secret(_) => None,
        }
    }

    /// Reads the certificates once more, for the connections that begin from now on. Existing
    /// connections keep theirs. If something is wrong, nothing changes.
    ///
    /// # Errors
    /// [`SecurityError`], with the file that is wrong.
    pub fn reload(&self) -> Result<(), SecurityError> {
        let material = Material::of(&self.security, &self.provider)?;
        *self.lock() = Arc::new(material);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<Material>> {
        self.material.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pinned(&self, of_peer: &OwnKey, slot: &Arc<IdentitySlot>) -> Pinned {
        let key: CertificateDer<'static> = of_peer.key.cert[0].clone();
        Pinned {
            key,
            algorithms: self.provider.signature_verification_algorithms,
            slot: slot.clone(),
        }
    }
}

impl TlsCredentials for Credentials {
    fn method(&self) -> Method {
        match self.security.source {
            KeySource::Files(_) => Method::Certificates,
            KeySource::Secret(_) => Method::SharedSecret,
        }
    }

    fn encryption(&self) -> Encryption {
        self.security.encryption
    }

    fn max_session_age(&self) -> Option<Duration> {
        self.security.max_session_age
    }

    fn stats(&self) -> SecurityStats {
        let validity = self.validity();
        let since_1970 = validity.map(|validity| Duration::from_secs(validity.not_after));
        let expires = since_1970.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
        self.counts.snapshot(expires)
    }

    fn note_other_mode(&self) {
        self.counts.note(HandshakeResult::OtherMode);
    }

    fn warnings(&self, now: SystemTime) -> Vec<String> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        let expiry = self.validity().and_then(|validity| validity.warning(now));
        let exposed = match &**self.lock() {
            Material::Certificates(certificates) => certificates.exposed.clone(),
            Material::Secret(_) => None,
        };
        let of_secret = match &self.security.source {
            KeySource::Secret(secret) => secret.exposed().map(str::to_owned),
            KeySource::Files(_) => None,
        };
        [expiry, exposed, of_secret].into_iter().flatten().collect()
    }

    fn dialer(&self, dialed: Option<Arc<str>>) -> Result<Box<dyn TlsConnection>, TlsError> {
        let slot = Arc::<IdentitySlot>::default();
        let material = self.lock().clone();
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(incompatible)?
            .dangerous();
        let mut config = match &*material {
            Material::Certificates(certificates) => {
                let expect = self.security.expect.clone();
                let judge = Judge {
                    authorize: self.security.authorize.clone(),
                    expect: expect.zip(dialed),
                };
                let verifier = certificates.verifier(judge, slot.clone());
                builder
                    .with_custom_certificate_verifier(Arc::new(verifier))
                    .with_client_cert_resolver(Arc::new(certificates.own.clone()))
            }
            Material::Secret(keys) => builder
                .with_custom_certificate_verifier(Arc::new(self.pinned(&keys.acceptor, &slot)))
                .with_client_cert_resolver(Arc::new(keys.dialer.clone())),
        };
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        let (method, counts) = (self.method(), self.counts.clone());
        let tls = Tls::dialer(Arc::new(config), server_name(), method, slot, counts)?;
        Ok(Box::new(tls))
    }

    fn acceptor(&self) -> Result<Box<dyn TlsConnection>, TlsError> {
        let slot = Arc::<IdentitySlot>::default();
        let material = self.lock().clone();
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(incompatible)?;
        let mut config = match &*material {
            Material::Certificates(certificates) => {
                let judge = Judge {
                    authorize: self.security.authorize.clone(),
                    expect: None,
                };
                let verifier = certificates.verifier(judge, slot.clone());
                builder
                    .with_client_cert_verifier(Arc::new(verifier))
                    .with_cert_resolver(Arc::new(certificates.own.clone()))
            }
            Material::Secret(keys) => builder
                .with_client_cert_verifier(Arc::new(self.pinned(&keys.dialer, &slot)))
                .with_cert_resolver(Arc::new(keys.acceptor.clone())),
        };
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        let tls = Tls::acceptor(Arc::new(config), self.method(), slot, self.counts.clone())?;
        Ok(Box::new(tls))
    }
}

#[cfg(test)]
impl Credentials {
    /// Presents another certificate, without a check that peers can accept it.
    pub(crate) fn presenting(self, own: OwnKey) -> Credentials {
        let mut material = self.lock();
        let given = match &**material {
            Material::Certificates(certificates) => certificates.presenting(own),
            Material::Secret(_) => panic!("a secret has no certificates"),
        };
        *material = Arc::new(Material::Certificates(given));
        drop(material);
        self
    }

    /// Returns the node's own certificate.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        match &**self.lock() {
            Material::Certificates(certificates) => certificates.own.key.cert[0].to_vec(),
            Material::Secret(_) => panic!("a secret has no certificates"),
        }
    }
}

impl Material {
    fn of(security: &Security, provider: &Arc<CryptoProvider>) -> Result<Material, SecurityError> {
        match &security.source {
            KeySource::Files(files) => files
                .read(&security.revocation_lists, provider)
                .map(Material::Certificates),
            KeySource::Secret(secret) => {
                let settings = [
                    ("`authorize`", security.authorize.is_some()),
                    ("`expect`", security.expect.is_some()),
                    ("`revocation_list`", !security.revocation_lists.is_empty()),
                ];
                match settings.into_iter().find(|(_, is_set)| *is_set) {
                    Some((setting, _)) => Err(SecurityError::NeedsCertificates { setting }),
                    None => secret.keys(provider).map(Material::Secret),
                }
            }
        }
    }
}

/// Returns a name of no node. rustls requires a name, which is neither sent nor compared.
fn server_name() -> ServerName<'static> {
    let name = DnsName::try_from("ibex.invalid").expect("a DNS name");
    ServerName::DnsName(name)
}

fn incompatible(error: rustls::Error) -> TlsError {
    TlsError::Incompatible(error.to_string())
}

fn provider_error(error: TlsError) -> SecurityError {
    SecurityError::Provider(error.to_string())
}

/// The protocol inside (RFC 7301), so that connections of other services that share a certificate
/// cannot be passed off as connections of ibex.
const PROTOCOL: &[u8] = b"ibex/1";

/// The least age, because a session that is authenticated more often sends little else.
const LEAST_SESSION_AGE: Duration = Duration::from_millis(100);
