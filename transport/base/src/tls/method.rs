//! The two ways to authenticate, and the wish for encryption.

use std::fmt;

/// A method by which two nodes prove to each other that they belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Each node has a certificate of an authority that the other trusts.
    Certificates,
    /// Both nodes have the same 32 secret bytes.
    SharedSecret,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Certificates => "certificates",
            Method::SharedSecret => "a shared secret",
        })
    }
}

/// A node's wish for encryption of what its sessions carry.
///
/// With security set, the handshake and all that goes over TCP is encrypted in any case. Shared
/// memory is not: both ends run on one host, as one user. RDMA is not either: devices write payload
/// into memory as it is, so a session over verbs is authenticated, but anyone who can read its
/// network can read its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Verbs may be used, without encryption.
    #[default]
    WherePossible,
    /// Verbs is not used with this node; sessions go over tcp then.
    Required,
}
