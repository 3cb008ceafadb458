//! The errors that end a TLS connection.

use super::AuthenticationError;

/// The end of a TLS connection by an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A refusal of one end by the other.
    #[error(transparent)]
    Refused(#[from] AuthenticationError),
    /// The two ends have no cipher, key exchange or version in common.
    #[error(
        "the two nodes' TLS does not go together: {0}; let both use a provider of the same kind"
    )]
    Incompatible(String),
    /// The bytes differ from what the other end sealed: they changed, went missing, came twice or
    /// in another order.
    #[error("TLS found bytes that differ from those that the other end sent ({0})")]
    Broken(String),
    /// The other end says that what it received is not what this one sealed.
    #[error("the peer's TLS found bytes that differ from those that this node sent ({0})")]
    BrokenAtPeer(String),
    /// The stream ended without the word that ends it, so its last bytes may be missing.
    #[error("the encrypted stream was cut off: its end was not announced")]
    Truncated,
}
