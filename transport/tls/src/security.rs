//! A node's security settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ibex_base::tls::{AuthenticatedAs, Encryption};
use rustls::crypto::CryptoProvider;

use crate::certificates::{Authorize, CertificateFiles, Expect};
use crate::{SecurityError, SharedSecret};

/// Security settings of a node: its own keys, and the peers that it accepts.
///
/// Both nodes of a session need the same kind of security. They authenticate each other by TLS 1.3
/// before they exchange anything else, and again each time the session is resumed. Everything over
/// TCP is encrypted; [`Encryption`] tells which data is not.
#[derive(Clone)]
#[must_use = "settings do nothing until a node is made with them"]
pub struct Security {
    pub(crate) source: KeySource,
    pub(crate) revocation_lists: Vec<PathBuf>,
    pub(crate) provider: Option<Arc<CryptoProvider>>,
    pub(crate) authorize: Option<Authorize>,
    pub(crate) expect: Option<Expect>,
    pub(crate) encryption: Encryption,
    pub(crate) trusts_authenticated: bool,
    pub(crate) max_session_age: Option<Duration>,
}

/// The source of a node's keys.
#[derive(Clone, Debug)]
pub(crate) enum KeySource {
    Files(CertificateFiles),
    Secret(SharedSecret),
}

impl Security {
    /// Authenticates by X.509 certificates in three PEM files: `chain` has this node's certificate
    /// first, `key` has its private key, and `authorities` has the certificates of the authorities
    /// that may issue peers' certificates.
    ///
    /// A node both dials and listens, so its certificate must be valid for client and server
    /// authentication. It must name the node by one URI or by DNS names, which are not compared
    /// with the address that was dialed unless [`expect`](Self::expect) says so. Every holder of a certificate of these authorities is a
    /// peer, unless [`authorize`](Self::authorize) refuses it.
    ///
    /// The files are read again when the node is made, and by `Node::reload_certificates`. Both refuse
    /// a certificate that no peer could accept, and warn in the log of one that expires soon and of
    /// a private key that every user of the host can read.
    ///
    /// # Errors
    /// A file cannot be read, or lacks in PEM what it must have.
    pub fn certificates(
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
        authorities: impl AsRef<Path>,
    ) -> Result<Security, SecurityError> {
        let files = CertificateFiles {
            chain: chain.as_ref().to_owned(),
            key: key.as_ref().to_owned(),
            authorities: authorities.as_ref().to_owned(),
        };
        files.check()?;
        Ok(Security::new(KeySource::Files(files)))
    }

    /// Authenticates by a secret that all nodes have. The secret shows that a peer is one of them,
    /// but not which one.
    pub fn shared_secret(secret: SharedSecret) -> Security {
        Security::new(KeySource::Secret(secret))
    }

    fn new(source: KeySource) -> Security {
        Security {
            source,
            revocation_lists: Vec::new(),
            provider: None,
            authorize: None,
            expect: None,
            encryption: Encryption::default(),
            trusts_authenticated: false,
            max_session_age: None,
        }
    }

    /// Sets a function that decides about each peer whose certificate is valid. Default: all are
    /// accepted.
    ///
    /// The function is called in the middle of a handshake, on the thread that turns the node's
    /// engine, so it must not block. A peer that it refuses is told so. A peer for which it panics is
    /// refused as well.
    pub fn authorize(
        mut self,
        authorize: impl Fn(&AuthenticatedAs) -> bool + Send + Sync + 'static,
    ) -> Security {
        self.authorize = Some(Arc::new(authorize));
        self
    }

    /// Sets a function that names the peer that this node expects at an address. Default: any peer
    /// that [`authorize`](Self::authorize) accepts may answer at any address.
    ///
    /// The function gets each address that the node dials for a new session, as the program or its
    /// discovery gave it. It returns the URI of the peer's certificate, or one of its DNS names, or
    /// `None` for an address where any peer may answer. A peer of another name is refused before
    /// this node has told it anything of itself, and the error has both names. The function is
    /// called as `authorize` is: it must not block, and if it panics, the peer is refused. A session
    /// resumes only with the peer that it began with, so the function is not asked again.
    ///
    /// ```no_run
    /// # use ibex_tls as ibex;
    /// # fn main() -> Result<(), ibex::SecurityError> {
    /// // A DNS name of the certificate has to be the host name that is dialed.
    /// let security = ibex::Security::certificates("node.pem", "node.key", "ca.pem")?
    ///     .expect(|address| address.rsplit_once(':').map(|(host, _)| host.to_owned()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn expect(
        mut self,
        expect: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Security {
        self.expect = Some(Arc::new(expect));
        self
    }

    /// Adds a file of certificate revocation lists in PEM. Default: none, so revoked certificates
    /// are accepted. With a list, a certificate of an authority that no list covers is refused.
    pub fn revocation_list(mut self, path: impl AsRef<Path>) -> Security {
        self.revocation_lists.push(path.as_ref().to_owned());
        self
    }

    /// Sets whether sessions may use RDMA, which does not encrypt. Default:
    /// [`Encryption::WherePossible`].
    pub fn encryption(mut self, encryption: Encryption) -> Security {
        self.encryption = encryption;
        self
    }

    /// Lets peers write into this node's memory over verbs, as the RDMA setting `trust_peers`
    /// does, since all of them are authenticated. Default: no.
    pub fn trust_authenticated(mut self) -> Security {
        self.trusts_authenticated = true;
        self
    }

    /// Limits the time for which a proof of identity holds. After that time both ends of a session
    /// authenticate each other again, with their present certificates, authorities and revocation
    /// lists. Default: no limit, so a session outlives the certificate that it began with.
    ///
    /// The session goes on over a new connection, and nothing is lost; each time costs as much as
    /// the loss of a connection. A peer that no longer passes is gone after `session_timeout`.
    /// Range: from 100 ms. For certificates that last hours, choose minutes.
    pub fn max_session_age(mut self, age: Duration) -> Security {
        self.max_session_age = Some(age);
        self
    }

    /// Takes the cryptography from this rustls provider. Default: that of the cargo feature
    /// `tls-graviola` where the processor has the instructions that it needs, else `tls-ring`.
    pub fn provider(mut self, provider: Arc<CryptoProvider>) -> Security {
        self.provider = Some(provider);
        self
    }
}

// Omits secrets.
ibex_base::debug_fields! {
    [] Security: |security|
        source = security.source,
        authorize = security.authorize.is_some(),
        expect = security.expect.is_some(),
        encryption = security.encryption,
        trusts_authenticated = security.trusts_authenticated,
        max_session_age = security.max_session_age,
}
