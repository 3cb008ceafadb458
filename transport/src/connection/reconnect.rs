//! The state of reconnecting: the wires that a session has or had last, and since when it has
//! none.

use std::time::Instant;

use super::{
    new_wire::NewWire,
    outage::{Outage, Past},
    reconnect_terms::ReconnectTerms,
};
use crate::session::Fabric;

/// A session's way to other wires.
#[derive(Debug)]
pub(crate) struct Reconnect {
    pub(super) terms: ReconnectTerms,

    // The wires.
    /// The number of those that it has, or had last.
    pub(super) epoch: u64,
    /// The number of those that were dialed for last.
    pub(super) dialed: u64,
    /// Those that came while nobody knew that the old ones had broken: they wait until nothing
    /// of those can come any more.
    pub(super) next: Option<NewWire>,
    /// What carries the data, as far as was told.
    pub(super) fabric: Fabric,

    // What is wrong with them, or with the peer.
    /// When a look found first that the peer's kernel does not answer.
    pub(super) unanswered_since: Option<Instant>,
    /// Since they broke, until both ends go on.
    pub(super) outage: Option<Outage>,
    /// What is kept of the last outage, if something did not get through.
    pub(super) past: Option<Past>,
    /// Bytes of the peer's were damaged on these wires.
    pub(super) found_damage: bool,
    /// The peer has come as another process, while these wires were not known to be broken.
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
