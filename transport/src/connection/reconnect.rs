//! The state of reconnecting: the current or last wire of a session, and the outage since its
//! break.

use std::{
    any::Any,
    time::{Duration, Instant},
};

use super::{
    new_wire::NewWire,
    newer_run::NewerRun,
    outage::{Outage, Past},
    reconnect_terms::ReconnectTerms,
};
use crate::{clock, session::Fabric};

/// The state that a session needs to continue over another wire.
#[derive(Debug)]
pub(crate) struct Reconnect {
    pub(super) terms: ReconnectTerms,

    // The wire.
    /// The number of the current or last wire.
    pub(super) epoch: u64,
    /// The number of the wire that was dialed for last.
    pub(super) dialed: u64,
    /// The dial that is under way, which the drop cancels.
    pub(super) dialing: Option<Box<dyn Any + Send>>,
    /// A new wire that came before this end knew that the old one had broken. It waits until no
    /// data of the old one can arrive any more.
    pub(super) next: Option<Box<NewWire>>,
    /// The fabric that carries the data, as reported last.
    pub(super) fabric: Fabric,

    /// The beginning of the session, or the end of the last outage.
    pub(super) connected_since: Instant,
    /// The time before that for which the session had a connection, less the time for which it had
    /// none. An outage that is longer leaves zero.
    pub(super) lead: Duration,

    // Faults of the wire or of the peer.
    /// Time at which a check first found that the peer's kernel does not answer.
    pub(super) unanswered_since: Option<Instant>,
    /// The outage, from the break of the wire until both ends continue.
    pub(super) outage: Option<Outage>,
    /// The part of the last outage that is kept, if some data did not get through.
    pub(super) past: Option<Past>,
    /// Bytes of the peer arrived damaged over this wire.
    pub(super) found_damage: bool,
    /// The peer has come as another process, while this wire was not known to be broken.
    pub(super) newer_run: Option<NewerRun>,
}

impl Reconnect {
    pub(super) fn new(terms: ReconnectTerms, fabric: Fabric) -> Self {
        Self {
            terms,
            epoch: 0,
            dialed: 0,
            dialing: None,
            next: None,
            fabric,
            connected_since: clock::now(),
            lead: Duration::ZERO,
            unanswered_since: None,
            outage: None,
            past: None,
            found_damage: false,
            newer_run: None,
        }
    }
}
