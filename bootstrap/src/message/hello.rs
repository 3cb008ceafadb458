//! *Hello*: the first message of both ends and the only one that is cleartext
//! in every security mode.
//!
//! Its layout is frozen: a node must be able to read the Hello of any version,
//! past or future, to say which versions would have matched.

use std::fmt;

use ibex_base::field::{FieldError, FieldReader, WireField};
use ibex_base::tls::{Method, TlsCredentials};

ibex_base::wire_structs! {
    /// The first message of a node, before anything is agreed.
    pub struct Hello {
        /// The protocol versions that the node speaks.
        pub versions: VersionRange = "version",
        /// Optional parts of the protocol that the node knows, one bit each. So far there are none.
        /// Unknown bits are ignored.
        pub features: u64 = "features",
        /// The protection that the node wants for the connection.
        pub security: SecurityMode = "security mode",
        /// Fresh random bytes, which make every conversation distinct.
        pub nonce: [u8; 16] = "nonce",
    }

    /// A protocol version. Versions are ordered by the major number first.
    ///
    /// A minor version only adds, so a node speaks every lower minor version of a
    /// major version that it speaks:
    ///
    /// - fields behind the last of a handshake message, which others skip;
    /// - bits of [`Hello::features`], each for a part of the protocol that is used in a session if both
    ///   ends have the bit.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct Version {
        /// The major number, which changes when old nodes could not follow.
        pub major: u16 = "version",
        /// The minor number, which changes when something is added that old nodes can ignore.
        pub minor: u16 = "version",
    }

    /// The versions that a node speaks, both bounds included.
    #[derive(Copy)]
    pub struct VersionRange {
        /// The oldest.
        pub oldest: Version = "version",
        /// The newest.
        pub newest: Version = "version",
    }
}

impl VersionRange {
    /// The versions that this crate speaks.
    pub const SUPPORTED: VersionRange = VersionRange {
        oldest: Version { major: 4, minor: 0 },
        newest: Version { major: 4, minor: 0 },
    };
}

/// The protection of a connection after the Hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecurityMode {
    /// No protection: nothing is authenticated or encrypted.
    None,
    /// TLS 1.3, in which both ends present certificates.
    Certificates,
    /// TLS 1.3, in which both ends present keys that follow from a secret of both.
    SharedSecret,
    /// A mode that this version does not know, by its number on the wire.
    Unknown(u8),
}

impl SecurityMode {
    pub(crate) fn of(credentials: Option<&dyn TlsCredentials>) -> SecurityMode {
        match credentials.map(TlsCredentials::method) {
            None => SecurityMode::None,
            Some(Method::Certificates) => SecurityMode::Certificates,
            Some(Method::SharedSecret) => SecurityMode::SharedSecret,
        }
    }
}

impl WireField for SecurityMode {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        Ok(match u8::read(from, name)? {
            0 => SecurityMode::None,
            1 => SecurityMode::Certificates,
            2 => SecurityMode::SharedSecret,
            mode => SecurityMode::Unknown(mode),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(match *self {
            SecurityMode::None => 0,
            SecurityMode::Certificates => 1,
            SecurityMode::SharedSecret => 2,
            SecurityMode::Unknown(mode) => mode,
        });
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "{}", self.newest)
        } else {
            write!(f, "{} to {}", self.oldest, self.newest)
        }
    }
}

impl fmt::Display for SecurityMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecurityMode::None => f.write_str("none"),
            SecurityMode::Certificates => f.write_str("certificates"),
            SecurityMode::SharedSecret => f.write_str("a shared secret"),
            SecurityMode::Unknown(mode) => write!(f, "unknown mode {mode}"),
        }
    }
}
