//! What a connection needs of TLS, wherever its cryptography is.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{AuthenticatedAs, Encryption, Method, SecurityStats, TlsError};

/// The keys and authorities of a node, from which each of its connections makes its
/// [`TlsConnection`].
pub trait TlsCredentials: Debug + Send + Sync {
    /// Returns the method by which nodes with these credentials authenticate each other.
    fn method(&self) -> Method;

    /// Returns the wish for encryption.
    fn encryption(&self) -> Encryption;

    /// Returns how long a session goes on before both ends authenticate each other again.
    fn max_session_age(&self) -> Option<Duration>;

    /// Returns the counts of the node's handshakes so far.
    fn stats(&self) -> SecurityStats;

    /// Counts a peer that authenticates otherwise, or not at all.
    fn note_other_mode(&self);

    /// Returns what the program's operator should know at the time `now`: a certificate that expires
    /// soon, a file that other users can read.
    fn warnings(&self, now: SystemTime) -> Vec<String>;

    /// Begins a connection at the end that dialed. With the address that was `dialed`, the program
    /// is asked whom it expects there.
    ///
    /// # Errors
    /// [`TlsError::Incompatible`]: TLS 1.3 cannot be had with the provider.
    fn dialer(&self, dialed: Option<Arc<str>>) -> Result<Box<dyn TlsConnection>, TlsError>;

    /// Begins a connection at the end that listened.
    ///
    /// # Errors
    /// The errors of [`dialer`](Self::dialer).
    fn acceptor(&self) -> Result<Box<dyn TlsConnection>, TlsError>;
}

/// An end of a TLS connection: sealed bytes come in by [`receive`](Self::receive) or
/// [`room`](Self::room), plaintext by [`seal`](Self::seal), and the bytes to send are
/// [`outgoing`](Self::outgoing).
pub trait TlsConnection: Debug + Send + Sync {
    /// Tells whether the peer is still to be authenticated, so that nothing can be sealed yet.
    fn is_handshaking(&self) -> bool;

    /// Returns the identity that the peer has proven; `None` during the handshake.
    fn authenticated_as(&self) -> Option<AuthenticatedAs>;

    // Input from the peer.

    /// Takes `bytes` in, and gives to `sink` the plaintext of the records that are whole.
    ///
    /// # Errors
    /// The reason why the connection has ended. [`outgoing`](Self::outgoing) may have an alert that
    /// tells the peer.
    fn receive(&mut self, bytes: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<(), TlsError>;

    /// Returns where bytes from the peer are to be put: room for `least` of them or more.
    fn room(&mut self, least: usize) -> &mut [u8];

    /// Notes that `bytes` more are in [`room`](Self::room).
    fn arrived(&mut self, bytes: usize);

    /// Opens up to `most` of the records that are here whole, and gives their plaintext to `sink`.
    /// Returns the number of records opened; if it is `most`, others may be here.
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive).
    fn process_records(
        &mut self,
        most: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TlsError>;

    /// Returns the number of bytes that are here of a record whose end is missing.
    fn part_bytes(&self) -> usize;

    /// Returns the error that has ended the connection, if one has.
    fn failed(&self) -> Option<&TlsError>;

    /// Tells whether the peer has announced the end of its stream.
    fn is_ended(&self) -> bool;

    // Output to the peer.

    /// Seals `plaintext` behind what is in [`outgoing`](Self::outgoing), as records of up to
    /// 16 KiB. Keys are updated before their limit.
    ///
    /// # Errors
    /// The reason why the connection has ended.
    fn seal(&mut self, plaintext: &[u8]) -> Result<(), TlsError>;

    /// Seals the announcement that nothing follows.
    ///
    /// # Errors
    /// The reason why the connection has ended.
    fn end(&mut self) -> Result<(), TlsError>;

    /// Returns the sealed bytes that are to be sent.
    fn outgoing(&self) -> &[u8];

    /// Notes that `bytes` of [`outgoing`](Self::outgoing) were sent.
    fn sent(&mut self, bytes: usize);

    /// Gives back what buffers are empty.
    fn rest(&mut self);
}
