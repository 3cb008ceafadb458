//! A node's identity, its incarnation, the host it runs on, and the secrets that two nodes share.
//! Plain values; nothing here does I/O.
#![forbid(unsafe_code)]

use std::fmt;

use zeroize::Zeroize;

/// The identity of a node. It survives restarts if the application or a key sets it; otherwise it
/// is 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIdentity(pub [u8; 16]);

/// The identity of one run of a node: 64 random bits drawn when the node is made.
///
/// The same identity with another incarnation is a restarted node, and the earlier run is gone.
pub type Incarnation = u64;

impl fmt::Display for NodeIdentity {
    /// The first 4 bytes in hex, as `git` shortens a commit: enough for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0[..4])
    }
}

impl fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeIdentity(")?;
        write_hex(f, &self.0)?;
        f.write_str(")")
    }
}

/// A node's own view of the host it runs on and of its process.
///
/// A peer is sent [hashes](crate::message::HostTags) of the host. They decide whether shared memory
/// is tried, and the attempt decides the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostHint {
    /// The kernel's `boot_id`; all zero when it could not be read, and then no
    /// host counts as the same. It is never sent.
    pub boot_id: [u8; 16],
    /// The process, as it sees itself. Only a peer in the same namespaces is sent it.
    pub pid: u32,
    /// The effective user, as the process sees it; [`HostHint::NO_USER`] where the process cannot
    /// see which user that is.
    pub uid: u32,
    /// The inode of the namespace in which `pid` counts; 0 when it could not be read.
    pub pid_namespace: u64,
    /// The inode of the network namespace, where both addresses of the connection belong to it;
    /// 0 where the connection leads elsewhere, and where it could not be read.
    pub network_namespace: u64,
}

impl HostHint {
    /// The `uid` of a process whose user namespace may not map its user. The kernel shows all such
    /// users as one, so the number that it shows is nobody's identity.
    pub const NO_USER: u32 = u32::MAX;

    /// The hint of an end that tells nothing of itself, because its handshake does not ask.
    pub(crate) const UNTOLD: HostHint = HostHint {
        boot_id: [0; 16],
        pid: 0,
        uid: HostHint::NO_USER,
        pid_namespace: 0,
        network_namespace: 0,
    };
}

/// 32 bytes that only the two ends of a session know.
///
/// They are overwritten when they are dropped and never printed: `Debug` shows only that there are
/// some.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Secret {
    /// Wraps bytes that the caller drew from a good source.
    pub const fn new(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// Returns the bytes, for the wire or for a key derivation.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns whether `presented` is this secret. The time depends on its length alone, because an
    /// early exit would tell a guesser how far the guess was right.
    pub fn matches(&self, presented: &[u8]) -> bool {
        let differing = self
            .0
            .iter()
            .zip(presented)
            .fold(0, |differing, (a, b)| differing | (a ^ b));
        presented.len() == self.0.len() && std::hint::black_box(differing) == 0
    }
}

/// In constant time, as [`Secret::matches`].
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.matches(&other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_matches_itself_and_nothing_else() {
        let secret = Secret::new([7; 32]);
        assert!(secret.matches(&[7; 32]));
        let mut near = [7; 32];
        near[31] = 8;
        assert!(!secret.matches(&near));
        assert!(!secret.matches(&[7; 31]));
        assert!(!secret.matches(&[7; 33]));
        assert!(!secret.matches(&[]));
    }

    #[test]
    fn a_secret_is_never_printed() {
        assert_eq!(format!("{:?}", Secret::new([0xab; 32])), "Secret(***)");
    }
}
