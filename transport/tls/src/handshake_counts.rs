//! Counts of a node's authenticated handshakes, and of those that failed, by kind.

/// A snapshot of what a node's handshakes came to, at both of its ends and for new sessions and
/// resumed ones alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// Handshakes in which the peer has proven who it is.
    pub completed: u64,
    /// Peers that authenticate otherwise, or not at all.
    pub other_mode: u64,
    /// Peers with another secret.
    pub wrong_secret: u64,
    /// Certificates, of either end, of an authority that the other end does not trust.
    pub unknown_issuer: u64,
    /// Certificates, of either end, that have expired or are not valid yet.
    pub expired: u64,
    /// Certificates, of either end, that are revoked, or of which no revocation list tells.
    pub revoked: u64,
    /// Peers that `authorize` refused, at either end.
    pub not_authorized: u64,
    /// Handshakes that failed otherwise: certificates that cannot be used, no cipher in common,
    /// bytes that are not TLS, or not those that were sent.
    pub other_failures: u64,
}
