//! Errors of a site that are not its device's.
#![forbid(unsafe_code)]

use ibex_verbs::VerbsError;

/// A site cannot do what it was asked for, although its device could. It comes in a
/// [`VerbsError::Other`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SiteError {
    /// As many sessions are there as a node has places for.
    #[error(
        "RDMA device {device} has no place for another session: there are {limit}, and {sessions} \
         would be taken (one that this node dialed may take two); {next_step}"
    )]
    NoSeat {
        /// The device.
        device: String,
        /// How many there would be.
        sessions: u32,
        /// How many there can be.
        limit: u32,
        /// What can be done, by what the limit follows from.
        next_step: &'static str,
    },
    /// A peer's endpoint says what no session can work with.
    #[error(
        "the peer offers {what}: {given}, too few for the protocol; it is no ibex of this version, \
         or its settings are broken"
    )]
    PeerEndpoint {
        /// What is too little.
        what: &'static str,
        /// How much it is.
        given: u32,
    },
    /// Another node has the site in its care.
    #[error(
        "RDMA device {device}: its completion queue belongs to another node of this process; open a \
         site for each node"
    )]
    Taken {
        /// The device.
        device: String,
    },
}

impl From<SiteError> for VerbsError {
    fn from(error: SiteError) -> Self {
        Self::Other(error.into())
    }
}

ibex_base::debug_as_display!(SiteError);
