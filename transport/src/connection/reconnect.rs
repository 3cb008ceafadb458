//! The state of reconnecting: the wire that a session has or had last, and since when it has
//! none.

use std::time::Instant;

use super::{
    new_wire::NewWire,
    outage::{Outage, Past},
    reconnect_terms::ReconnectTerms,
};
use crate::session::Fabric;

/// A session's way to another wire.
#[derive(Debug)]
pub(crate) struct Reconnect {
    pub(super) terms: ReconnectTerms,

    // The wire.
    /// The number of the wire that it has, or had last.
    pub(super) epoch: u64,
    /// The number of the wire that was dialed for last.
    pub(super) dialed: u64,
    /// The wire that came while nobody knew that the old one had broken: it waits until nothing
    /// of that can come any more.
    pub(super) next: Option<Box<NewWire>>,
    /// The fabric that carries the data, as far as was told.
    pub(super) fabric: Fabric,

    // Faults of the wire or of the peer.
    /// When a look found first that the peer's kernel does not answer.
    pub(super) unanswered_since: Option<Instant>,
    /// The outage, from the break of the wire until both ends go on.
    pub(super) outage: Option<Outage>,
    /// The part that is kept of the last outage, if something did not get through.
    pub(super) past: Option<Past>,
    /// Bytes of the peer's were damaged on this wire.
    pub(super) found_damage: bool,
    /// The peer has come as another process, while this wire was not known to be broken.
    pub(super) peer_runs_anew: bool,
}

impl Reconnect {
    pub(super) fn new(terms: ReconnectTerms, fabric: Fabric) -> Self {
        Self {
            terms,
            epoch: 0,
            dialed: 0,
            next: None,
            fabric,
            unanswered_since: None,
            outage: None,
            past: None,
            found_damage: false,
            peer_runs_anew: false,
        }
    }
}
