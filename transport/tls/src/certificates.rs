//! Certificates: what a node reads from its files, and the verifier of its peers'.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ibex_base::call_foreign;
use ibex_base::tls::{AuthenticatedAs, AuthenticationError, Cause, Method, RefusedBy};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use zeroize::Zeroizing;

use crate::certificate_names::names_of;
use crate::identity_slot::IdentitySlot;
use crate::own_key::OwnKey;
use crate::{SecurityError, exposure, own_certificate};

/// The files of a node's certificates.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFiles {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) authorities: PathBuf,
}

/// The program's own decision about a peer whose certificate is good.
pub(crate) type Authorize = Arc<dyn Fn(&AuthenticatedAs) -> bool + Send + Sync>;

/// The name that the program expects at an address, if it expects one.
pub(crate) type Expect = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The program's part in the verdict on a peer whose certificate is good.
pub(crate) struct Judge {
    pub(crate) authorize: Option<Authorize>,
    /// The function that names the expected peer, and the address that was dialed.
    pub(crate) expect: Option<(Expect, Arc<str>)>,
}

/// The content of the files when they were read last.
pub(crate) struct Certificates {
    pub(crate) own: OwnKey,
    /// The warning about the key's file, if others can read it.
    pub(crate) exposed: Option<String>,
    dialed: Arc<WebPkiServerVerifier>,
    dialers: Arc<dyn ClientCertVerifier>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates(***)")
    }
}

impl CertificateFiles {
    /// Checks that each file has the required items, as far as that is known without cryptography.
    pub(crate) fn check(&self) -> Result<(), SecurityError> {
        all_of::<CertificateDer<'static>>(&self.chain, "certificate")?;
        self.private_key()?;
        all_of::<CertificateDer<'static>>(&self.authorities, "certificate")?;
        Ok(())
    }

    /// Reads the certificate and the key.
    fn own(&self, provider: &CryptoProvider) -> Result<CertifiedKey, SecurityError> {
        let chain: Vec<CertificateDer<'static>> = all_of(&self.chain, "certificate")?;
        let key = provider.key_provider.load_private_key(self.private_key()?);
        let key = key.map_err(|r#source| SecurityError::Key {
            path: self.key.clone(),
            r#source,
        })?;
        let own = CertifiedKey::new(chain, key);
        match own.keys_match() {
            Err(Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
                Err(SecurityError::KeyOfAnother {
                    chain: self.chain.clone(),
                    key: self.key.clone(),
                })
            }
            // Another error is about the certificate, which `own_certificate::check` looks at.
            _ => Ok(own),
        }
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, SecurityError> {
        let bytes = Zeroizing::new(read(&self.key)?);
        PrivateKeyDer::from_pem_slice(&bytes)
            .map_err(|error| not_pem(&self.key, "private key", &error))
    }

    /// Reads all of the files, and these revocation lists.
    pub(crate) fn read(
        &self,
        revocation_lists: &[PathBuf],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Certificates, SecurityError> {
        let own = self.own(provider)?;
        own_certificate::check(own.cert.first().expect("`all_of` returns no empty list")).map_err(
            |why| SecurityError::Certificate {
                path: self.chain.clone(),
                why,
            },
        )?;
        let unusable = |why: &dyn fmt::Display| SecurityError::Authorities {
            path: self.authorities.clone(),
            why: why.to_string(),
        };
        let mut roots = RootCertStore::empty();
        for authority in all_of::<CertificateDer<'static>>(&self.authorities, "certificate")? {
            roots.add(authority).map_err(|error| unusable(&error))?;
        }
        let roots = Arc::new(roots);
        let mut lists: Vec<CertificateRevocationListDer<'static>> = Vec::new();
        for path in revocation_lists {
            lists.extend(all_of(path, "revocation list")?);
        }
        let dialed = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
            .with_crls(lists.clone())
            .only_check_end_entity_revocation()
            .build()
            .map_err(|error| unusable(&error))?;
        let dialers = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .with_crls(lists)
            .only_check_end_entity_revocation()
            .build()
            .map_err(|error| unusable(&error))?;
        let key = Arc::new(own);
        let is_raw = false;
        Ok(Certificates {
            own: OwnKey { key, is_raw },
            exposed: exposure::warning(&self.key, "private key"),
            dialed,
            dialers,
        })
    }
}

#[cfg(test)]
impl CertificateFiles {
    /// Reads the certificate and the key, whatever they say.
    pub(crate) fn unchecked(&self, provider: &CryptoProvider) -> OwnKey {
        let key = Arc::new(self.own(provider).unwrap());
        OwnKey { key, is_raw: false }
    }
}

#[cfg(test)]
impl Certificates {
    /// The same, with another certificate of the node's own.
    pub(crate) fn presenting(&self, own: OwnKey) -> Certificates {
        Certificates {
            own,
            exposed: None,
            dialed: self.dialed.clone(),
            dialers: self.dialers.clone(),
        }
    }
}

impl Certificates {
    /// A verifier for one connection.
    pub(crate) fn verifier(&self, judge: Judge, slot: Arc<IdentitySlot>) -> CertificateVerifier {
        CertificateVerifier {
            dialed: self.dialed.clone(),
            dialers: self.dialers.clone(),
            judge,
            slot,
        }
    }
}

/// Judges a peer by its certificate, at either end.
///
/// rustls checks authorities, times, purposes and revocation. A peer is identified by the identity
/// that it proves and not by its host name. So the dialer lets any name pass there. The program's
/// `authorize` decides at both ends, and at the dialer its `expect` as well.
pub(crate) struct CertificateVerifier {
    dialed: Arc<WebPkiServerVerifier>,
    dialers: Arc<dyn ClientCertVerifier>,
    judge: Judge,
    slot: Arc<IdentitySlot>,
}

impl fmt::Debug for CertificateVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateVerifier")
    }
}

impl CertificateVerifier {
    /// Decides about a certificate, given the verdict of rustls.
    fn decide(
        &self,
        certificate: &CertificateDer<'_>,
        found: Result<(), Error>,
    ) -> Result<(), Error> {
        let names = names_of(certificate);
        let name = names.as_ref().ok().map(ToString::to_string);
        let judged = match (found, names) {
            (Err(error), _) => match cause_of(&error) {
                // Named as what it is: by its own alert, the peer would look for damaged bytes.
                cause @ Cause::OtherAuthority => {
                    Err((cause, CertificateError::UnknownIssuer.into()))
                }
                cause => Err((cause, error)),
            },
            (Ok(()), Ok(peer)) => match self.judge.verdict(&peer) {
                Ok(()) => Ok(peer),
                Err(cause) => Err((cause, refused())),
            },
            (Ok(()), Err(cause)) => Err((cause, refused())),
        };
        let (outcome, answer) = match judged {
            Ok(peer) => (Ok(peer), Ok(())),
            Err((cause, error)) => {
                let refusal = AuthenticationError {
                    by: RefusedBy::ThisNode,
                    method: Method::Certificates,
                    name,
                    cause,
                };
                (Err(refusal), Err(error))
            }
        };
        self.slot.set(outcome);
        answer
    }
}

impl Judge {
    /// Asks the program's functions. This may be the thread of an engine, which has other sessions.
    fn verdict(&self, peer: &AuthenticatedAs) -> Result<(), Cause> {
        if let Some((expect, address)) = &self.expect {
            let expected = call_foreign(|| expect(address)).map_err(|panic| {
                let panic = panic.into();
                Cause::ExpectPanicked { panic }
            })?;
            if let Some(expected) = expected.filter(|expected| !is_named(peer, expected)) {
                let expected = expected.into();
                return Err(Cause::NotExpected { expected });
            }
        }
        match &self.authorize {
            Some(authorize) => match call_foreign(|| authorize(peer)) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Cause::NotAuthorized),
                Err(panic) => {
                    let panic = panic.into();
                    Err(Cause::AuthorizePanicked { panic })
                }
            },
            None => Ok(()),
        }
    }
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = self.dialed.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        let found = match found {
            // rustls checks the name last.
            Ok(_)
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(()),
            Err(error) => Err(error),
        };
        self.decide(end_entity, found)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.dialed
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.dialed
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.dialed.supported_verify_schemes()
    }
}

impl ClientCertVerifier for CertificateVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let found = self
            .dialers
            .verify_client_cert(end_entity, intermediates, now);
        self.decide(end_entity, found.map(|_| ()))
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.dialers
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.dialers
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.dialers.supported_verify_schemes()
    }
}

/// Returns whether the peer has this name. Upper and lower case are alike in a DNS name (RFC 4343).
fn is_named(peer: &AuthenticatedAs, name: &str) -> bool {
    let mut dns_names = peer.dns_names().iter();
    peer.uri() == Some(name) || dns_names.any(|dns_name| dns_name.eq_ignore_ascii_case(name))
}

fn refused() -> Error {
    CertificateError::ApplicationVerificationFailure.into()
}

fn cause_of(error: &Error) -> Cause {
    let Error::InvalidCertificate(error) = error else {
        return Cause::Unusable(error.to_string());
    };
    match error {
        CertificateError::UnknownIssuer => Cause::UnknownIssuer,
        // Authorities are found by their names: the key of the one that was found did not sign.
        CertificateError::BadSignature => Cause::OtherAuthority,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Cause::Unusable(format!(
                "{error}; have it issued for both client and server authentication"
            ))
        }
        CertificateError::ExpiredContext { not_after, .. } => Cause::Expired {
            since: Some(not_after.as_secs()),
        },
        CertificateError::NotValidYetContext { not_before, .. } => Cause::NotYetValid {
            from: not_before.as_secs(),
        },
        CertificateError::Revoked => Cause::Revoked,
        CertificateError::UnknownRevocationStatus => Cause::UnknownRevocation,
        error => Cause::Unusable(error.to_string()),
    }
}

fn all_of<T: PemObject>(path: &Path, what: &'static str) -> Result<Vec<T>, SecurityError> {
    let bytes = read(path)?;
    let items: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    let items = items.map_err(|error| not_pem(path, what, &error))?;
    match items.is_empty() {
        true => Err(SecurityError::Nothing {
            path: path.to_owned(),
            what,
        }),
        false => Ok(items),
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SecurityError> {
    fs::read(path).map_err(|r#source| SecurityError::Read {
        path: path.to_owned(),
        r#source,
    })
}

fn not_pem(
    path: &Path,
    what: &'static str,
    error: &rustls::pki_types::pem::Error,
) -> SecurityError {
    SecurityError::Pem {
        path: path.to_owned(),
        what,
        why: error.to_string(),
    }
}
