//! The identity that a node has proven.

use std::fmt;

use crate::Escaped;

/// The identity that a peer has proven.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuthenticatedAs {
    /// The holder of a certificate for these names, of which there is at least one.
    Certificate {
        /// The URI among the names, as SPIFFE identities are: at most one.
        uri: Option<String>,
        /// The DNS names among the certificate's names.
        dns_names: Vec<String>,
    },
    /// A holder of the shared secret. All holders are alike: any may pose as any.
    Member,
}

impl AuthenticatedAs {
    /// Returns the URI of the peer's certificate.
    #[must_use]
    pub fn uri(&self) -> Option<&str> {
        match self {
            AuthenticatedAs::Certificate { uri, .. } => uri.as_deref(),
            AuthenticatedAs::Member => None,
        }
    }

    /// Returns the DNS names of the peer's certificate.
    #[must_use]
    pub fn dns_names(&self) -> &[String] {
        match self {
            AuthenticatedAs::Certificate { dns_names, .. } => dns_names,
            AuthenticatedAs::Member => &[],
        }
    }
}

/// Shows the URI or else the first DNS name, escaped for logs and errors; `member` for a holder of
/// the shared secret.
impl fmt::Display for AuthenticatedAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self
            .uri()
            .or_else(|| self.dns_names().first().map(String::as_str));
        Escaped(name.unwrap_or("member")).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{AuthenticationError, Cause, Method, RefusedBy};

    #[test]
    fn names_of_a_certificate_are_escaped_in_texts() {
        let planted = "spiffe://a/\nb\u{202e}\u{2028}\x1b[2J";
        let escaped = r"spiffe://a/\nb\u{202e}\u{2028}\u{1b}[2J";
        let identity = AuthenticatedAs::Certificate {
            uri: Some(planted.to_owned()),
            dns_names: Vec::new(),
        };
        assert_eq!(identity.to_string(), escaped);
        assert_eq!(identity.uri(), Some(planted));
        for cause in [Cause::NotAuthorized, Cause::Unusable(planted.to_owned())] {
            let refused = AuthenticationError {
                by: RefusedBy::ThisNode,
                method: Method::Certificates,
                name: Some(planted.to_owned()),
                cause,
            };
            let text = refused.to_string();
            assert!(text.contains(escaped), "{text}");
            assert!(
                !text.contains(['\n', '\u{202e}', '\u{2028}', '\x1b']),
                "{text}"
            );
        }
    }
}
