//! Errors of an RDMA port that do not come from its device.
#![forbid(unsafe_code)]

use ibex_verbs::VerbsError;

/// A request that an RDMA port cannot fulfil, although its device could. It comes in a
/// [`VerbsError::Other`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// All of the node's places for sessions are taken.
    #[error(
        "RDMA device {device} has no place for another session: there are {limit}, and {sessions} \
         would be taken (one that this node dialed may take two); {next_step}"
    )]
    NoSeat {
        /// The device.
        device: String,
        /// The number of sessions that there would be.
        sessions: u32,
        /// The number of sessions that there can be.
        limit: u32,
        /// Advice, which depends on the cause of the limit.
        next_step: &'static str,
    },
    /// A peer's endpoint has a value that no session can work with.
    #[error(
        "the peer offers {what}: {given}, too few for the protocol; it is no ibex of this version, \
         or its settings are broken"
    )]
    PeerEndpoint {
        /// The quantity that is too small.
        what: &'static str,
        /// The value of the quantity.
        given: u32,
    },
    /// The device cannot read large messages through windows, or is not to.
    #[error(
        "RDMA device {device} carries no rail: it reads no large messages through windows of type 2"
    )]
    NoReads {
        /// The device.
        device: String,
    },
    /// Another node already uses the RDMA port.
    #[error(
        "RDMA device {device}: its completion queue belongs to another node of this process; open the \
         port for each node"
    )]
    Taken {
        /// The device.
        device: String,
    },
}

impl From<PortError> for VerbsError {
    fn from(error: PortError) -> Self {
        Self::Other(error.into())
    }
}

ibex_base::debug_as_display!(PortError);
