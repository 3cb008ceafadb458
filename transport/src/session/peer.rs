//! The description of a peer, from its handshake.
#![forbid(unsafe_code)]

use std::{fmt, sync::Arc, time::Instant};

use ibex_base::Address;
use ibex_base::tls::AuthenticatedAs;

use crate::session::Fabric;

/// A peer's identity, and the way in which it is reached.
#[derive(Clone, Debug)]
pub struct PeerDescription {
    /// The peer's address as this end sees it.
    pub address: Address,
    /// The peer's identity.
    pub identity: [u8; 16],
    /// The peer's incarnation: another value means that it restarted.
    pub incarnation: u64,
    /// Time at which its connection was established, on this end's clock. It shows which of two
    /// runs of a peer is the older.
    pub began: Instant,
    /// The peer's process, if it runs on this host.
    pub pid: Option<u32>,
    /// The fabric of the session's data.
    pub fabric: Fabric,
    /// The reason for the choice of this fabric.
    pub reason: String,
    /// The peer's names.
    pub names: PeerNames,
    /// The name of the local node whose peer this is, for the log, if the program gave it one.
    pub known_to: Option<Arc<str>>,
}

/// The names of a peer: the name that it gives itself, and the identity that it has proven.
///
/// Its `Display` writes them in parentheses behind a space, escaped for logs and errors, or nothing
/// if there is none. With the feature `serde` both are serialized as texts, escaped likewise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PeerNames {
    /// The name that the peer's program gave its node. It is what the peer says of itself: nothing
    /// proves it, and several peers may have the same. It has no character that a terminal does not
    /// print as itself.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub name: Option<Arc<str>>,
    /// The identity that the peer has proven, if nodes are authenticated.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub authenticated_as: Option<Arc<AuthenticatedAs>>,
}

impl PeerNames {
    /// Makes the names of a peer. An empty `name` is none.
    #[must_use]
    pub fn new(name: &str, authenticated_as: Option<AuthenticatedAs>) -> Self {
        Self {
            name: (!name.is_empty()).then(|| name.into()),
            authenticated_as: authenticated_as.map(Arc::new),
        }
    }

    /// Returns the text of `Display`, with the name of the local node that the peer is known to.
    pub(crate) fn text(&self, via: Option<&str>) -> String {
        let mut parts = Vec::new();
        parts.extend(self.name.as_ref().map(|name| format!("named {name:?}")));
        // All holders of a shared secret have proven the same, so it names nobody.
        let proven = self.authenticated_as.as_deref();
        let proven = proven.filter(|proven| **proven != AuthenticatedAs::Member);
        parts.extend(proven.map(|proven| format!("authenticated as {proven}")));
        parts.extend(via.map(|node| format!("via node {node}")));
        match parts.is_empty() {
            true => String::new(),
            false => format!(" ({})", parts.join(", ")),
        }
    }
}

impl fmt::Display for PeerNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(None))
    }
}

#[cfg(feature = "serde")]
fn as_text<T, S>(text: &Option<Arc<T>>, serializer: S) -> Result<S::Ok, S::Error>
where
    T: fmt::Display + ?Sized,
    S: serde::Serializer,
{
    let text = text.as_ref().map(ToString::to_string);
    serde::Serialize::serialize(&text, serializer)
}

impl PeerDescription {
    /// Returns whether the other description is of the same node, in this or another run. Nodes that
    /// are authenticated have proven the same identity as well, so that none can pose as another.
    pub(crate) fn is_of_node(&self, other: &PeerDescription) -> bool {
        self.identity == other.identity
            && self.names.authenticated_as == other.names.authenticated_as
    }
}

impl PeerDescription {
    /// Returns whether the other description is proven to be of the same run of the same node.
    /// Identity and incarnation are a node's own word. The proof is that both are of holders of
    /// certificates for the same names, or that the kernel names the same process for both.
    #[must_use]
    pub fn is_proven_same_run(&self, other: &PeerDescription) -> bool {
        let has_certificate = matches!(
            self.names.authenticated_as.as_deref(),
            Some(AuthenticatedAs::Certificate { .. })
        );
        let is_process_known = self.pid.is_some() && self.pid == other.pid;
        self.is_of_node(other)
            && self.incarnation == other.incarnation
            && (has_certificate || is_process_known)
    }
}

/// Prints the parts of identity and incarnation that suffice to tell peers apart, the address, and the names.
impl fmt::Display for PeerDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.identity[..6].iter();
        shown.try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{:08x} at {}", self.incarnation as u32, self.address)?;
        self.names.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_parentheses_and_nothing_can_pose_as_more_of_them() {
        let identity = |uri: &str| AuthenticatedAs::Certificate {
            uri: Some(uri.to_owned()),
            dns_names: Vec::new(),
        };
        assert_eq!(PeerNames::new("", None).to_string(), "");
        let member = PeerNames::new("", Some(AuthenticatedAs::Member));
        assert_eq!(member.to_string(), "");
        let both = PeerNames::new("replica-2", Some(identity("spiffe://a/b")));
        assert_eq!(
            both.to_string(),
            " (named \"replica-2\", authenticated as spiffe://a/b)"
        );
        assert_eq!(
            both.text(Some("client")),
            " (named \"replica-2\", authenticated as spiffe://a/b, via node client)"
        );
        let posing = "x\", authenticated as admin\n\u{202e}";
        let posing = PeerNames::new(posing, Some(identity("b\n\u{2028}")));
        assert_eq!(
            posing.to_string(),
            r#" (named "x\", authenticated as admin\n\u{202e}", authenticated as b\n\u{2028})"#
        );
    }
}
