//! The refusal of one end by the other.

use std::fmt;

use super::{Method, Utc};
use crate::Escaped;

/// A refusal of one end by the other, as known to either end.
///
/// The end that refuses knows the certificate and the reason. The other end learns only the kind of
/// reason, by an alert of TLS (RFC 8446, section 6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationError {
    /// The end that refuses the other.
    pub by: RefusedBy,
    /// The method by which the two ends authenticate each other.
    pub method: Method,
    /// The name in the refused certificate, if this end knows one.
    pub name: Option<String>,
    /// The reason of the refusal.
    pub cause: Cause,
}

/// The end that refuses the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// The refusal is this node's.
    ThisNode,
    /// The refusal is the peer's.
    OtherNode,
}

/// The reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The two ends have different secrets.
    WrongSecret,
    /// The certificate is of an authority that the end that refuses does not trust.
    UnknownIssuer,
    /// The certificate names a trusted authority, and another key has signed it: that of another
    /// authority of this name. The end that is refused cannot tell this from
    /// [`UnknownIssuer`](Self::UnknownIssuer).
    OtherAuthority,
    /// The certificate is past its time. The end that is refused cannot tell this from
    /// [`NotYetValid`](Self::NotYetValid).
    Expired {
        /// The time at which it expired, in seconds since 1970, if this end knows it.
        since: Option<u64>,
    },
    /// The certificate's time has not come.
    NotYetValid {
        /// The time at which it begins, in seconds since 1970.
        from: u64,
    },
    /// The certificate is on a revocation list.
    Revoked,
    /// No revocation list covers the certificate's authority.
    UnknownRevocation,
    /// The certificate is good, and the program does not want its holder.
    NotAuthorized,
    /// The certificate is good, and the program expects another peer at the address.
    NotExpected {
        /// The name of the peer that is expected there.
        expected: Box<str>,
    },
    /// The certificate is good, and the program's `authorize` panicked.
    AuthorizePanicked {
        /// The text of the panic.
        panic: Box<str>,
    },
    /// The certificate is good, and the program's `expect` panicked.
    ExpectPanicked {
        /// The text of the panic.
        panic: Box<str>,
    },
    /// The certificate has no name, or several URIs.
    Nameless {
        /// The number of URIs.
        uris: usize,
    },
    /// The certificate cannot be used, in the words of TLS.
    Unusable(String),
}

impl AuthenticationError {
    fn whose(&self) -> String {
        let whose = match self.by {
            RefusedBy::ThisNode => "the peer's",
            RefusedBy::OtherNode => "this node's",
        };
        match &self.name {
            Some(name) => format!("{whose} certificate ({})", Escaped(name)),
            None => format!("{whose} certificate"),
        }
    }

    fn verdict(&self) -> &'static str {
        match self.by {
            RefusedBy::ThisNode => "",
            RefusedBy::OtherNode => ", as the peer says",
        }
    }
}

impl fmt::Display for AuthenticationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whose, says) = (self.whose(), self.verdict());
        let panicked = |f: &mut fmt::Formatter<'_>, function, panic| {
            write!(
                f,
                "{whose} is valid, and this program's `{function}` panicked ({panic}), so the peer \
                 is refused; mend the function"
            )
        };
        match &self.cause {
            Cause::WrongSecret => write!(
                f,
                "the peer has another shared secret than this node{says}; give both the same \
                 secret file"
            ),
            Cause::UnknownIssuer => match self.by {
                RefusedBy::ThisNode => write!(
                    f,
                    "{whose} is of an authority that this node does not trust; add the authority's \
                     certificate to the authorities of this node, or have the peer's issued by one \
                     of these"
                ),
                RefusedBy::OtherNode => write!(
                    f,
                    "{whose} is of an authority that the peer does not trust{says}; add the \
                     authority's certificate to the authorities of the peer, or have this node's \
                     issued by one of these"
                ),
            },
            Cause::OtherAuthority => write!(
                f,
                "{whose} names an authority that this node trusts, and the signature is not by that \
                 authority's key: there are two authorities of one name. Add the other one's \
                 certificate to the authorities of this node, or give each authority a name of its \
                 own"
            ),
            Cause::Expired { since: Some(since) } => write!(
                f,
                "{whose} expired at {}; renew it, or check the clock of this host{says}",
                Utc(*since)
            ),
            Cause::Expired { since: None } => write!(
                f,
                "{whose} has expired or is not valid yet{says}; renew it, or check the clocks of \
                 both hosts"
            ),
            Cause::NotYetValid { from } => write!(
                f,
                "{whose} is not valid before {}; check the clock of this host and of the \
                 authority's",
                Utc(*from)
            ),
            Cause::Revoked => write!(
                f,
                "{whose} has been revoked{says}; have another one issued, if its holder is still \
                 to be let in"
            ),
            Cause::UnknownRevocation => write!(
                f,
                "{whose} is of an authority that no revocation list covers; add that authority's \
                 list"
            ),
            Cause::NotAuthorized => match self.by {
                RefusedBy::ThisNode => write!(
                    f,
                    "{whose} is valid, and this node's `authorize` does not allow that name"
                ),
                RefusedBy::OtherNode => write!(
                    f,
                    "{whose} is valid, and the peer does not authorize that name{says}; check \
                     `authorize` and `expect` there"
                ),
            },
            Cause::NotExpected { expected } => write!(
                f,
                "{whose} is valid, and this node's `expect` names another peer for the address: {}; \
                 check the address, and what `expect` returns for it",
                Escaped(expected)
            ),
            Cause::AuthorizePanicked { panic } => panicked(f, "authorize", panic),
            Cause::ExpectPanicked { panic } => panicked(f, "expect", panic),
            Cause::Nameless { uris: 0 } => write!(
                f,
                "{whose} has neither a URI nor a DNS name among its subject alternative names; \
                 have it issued with one"
            ),
            Cause::Nameless { uris } => write!(
                f,
                "{whose} has {uris} URIs among its subject alternative names, and may have one"
            ),
            Cause::Unusable(why) => match self.by {
                RefusedBy::ThisNode => write!(f, "{whose} cannot be used: {}", Escaped(why)),
                RefusedBy::OtherNode => write!(
                    f,
                    "{whose} cannot be used{says}: {}; the peer's log has the reason",
                    Escaped(why)
                ),
            },
        }
    }
}

impl std::error::Error for AuthenticationError {}
