//! Why a node's own security settings cannot be used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error in a node's own security settings. No peer can cause it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        r#source: io::Error,
    },
    /// A file is not PEM, or not PEM of that kind.
    #[error("{} has no {what} in PEM: {why}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The kind of item that it lacks.
        what: &'static str,
        /// The defect, in the words of the parser.
        why: String,
    },
    /// A file has nothing of the kind that it has to have.
    #[error("{} has no {what} in PEM", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
        /// The kind of item that it lacks.
        what: &'static str,
    },
    /// The private key is of a kind that the cryptography does not have.
    #[error(
        "the private key in {} cannot be used: {source}; use ECDSA on P-256 or P-384, Ed25519, \
         or RSA", path.display()
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// The error of rustls.
        r#source: rustls::Error,
    },
    /// The private key is not that of the certificate.
    #[error(
        "the private key in {} is not that of the first certificate in {}",
        key.display(), chain.display()
    )]
    KeyOfAnother {
        /// The file of the certificates.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// No peer would accept the node's own certificate.
    #[error(
        "the first certificate in {} cannot be a node's: {why}; have it issued with one URI or with \
         DNS names as subject alternative names, for both client and server authentication",
        path.display()
    )]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The defect, in words.
        why: String,
    },
    /// The trusted authorities, or the revocation lists, cannot be used.
    #[error("the authorities in {} cannot be used: {why}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The defect, in the words of the parser.
        why: String,
    },
    /// A secret file has another length.
    #[error(
        "{} has {bytes} bytes, and a shared secret is 32 random bytes or 64 hexadecimal digits; \
         make one with `openssl rand -out FILE 32`", path.display()
    )]
    SecretLength {
        /// The file.
        path: PathBuf,
        /// The length of the file.
        bytes: usize,
    },
    /// The bytes of a secret are text or repeat themselves.
    #[error(
        "the shared secret is not random, and a passphrase can be guessed by whoever connects \
         once; make one with `openssl rand -out FILE 32`"
    )]
    NotRandom,
    /// The cryptography does not have Ed25519.
    #[error("the provider of cryptography has no Ed25519, which a shared secret needs: {0}")]
    Ed25519(rustls::Error),
    /// The cryptography does not give out public keys.
    #[error("the provider of cryptography has no raw public keys, which a shared secret needs")]
    RawKeys,
    /// `authorize` or `revocation_list` beside a shared secret, whose holders have no names.
    #[error("{setting} needs certificates: holders of a shared secret have no names to decide by")]
    NeedsCertificates {
        /// The setting.
        setting: &'static str,
    },
    /// The largest age of sessions is too small.
    #[error("max_session_age is {given:?}, and has to be {least:?} or more")]
    SessionAge {
        /// The age that was given.
        given: Duration,
        /// The least one.
        least: Duration,
    },
    /// No cryptography is compiled in, and the program gives none.
    #[error(
        "this build has no cryptography: enable the feature `tls-graviola` or `tls-ring`, or give a \
         rustls provider"
    )]
    NoProvider,
    /// The processor lacks instructions that graviola needs.
    #[error(
        "this processor lacks instructions that graviola needs (AES, PCLMULQDQ, BMI, ADX and \
         AVX2 on x86-64); build with the feature `tls-ring` as well"
    )]
    Processor,
    /// TLS cannot be set up with this provider.
    #[error("TLS 1.3 cannot be set up with this provider of cryptography: {0}")]
    Provider(String),
}

/// Keeps the error within. The kind is that of a file that cannot be read, or `InvalidInput`.
impl From<SecurityError> for io::Error {
    fn from(error: SecurityError) -> Self {
        let kind = match &error {
            SecurityError::Read { source, .. } => source.kind(),
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}
