//! An address that a dial tries, and what its attempts have found.
#![forbid(unsafe_code)]

use std::{mem::discriminant, time::Duration};

use ibex_base::{Address, Rounded};

use crate::error::HandshakeError;
use crate::handshake::HandshakeStep;

/// An address of a peer in the present round.
pub(super) struct DialTarget {
    pub(super) address: Address,
    pub(super) state: TargetState,
    pub(super) finding: Option<AttemptFailure>,
}

/// The state of an address in the present round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetState {
    /// To be tried in this round.
    Due,
    Trying,
    /// Tried in this round.
    Tried,
    /// Gave an answer that no other attempt is going to change: the finding.
    Wrong,
}

/// The result of the last attempt at an address.
pub(super) enum AttemptFailure {
    Absent { why: String, is_refused: bool },
    Handshake(HandshakeError),
}

impl DialTarget {
    pub(super) fn new(address: Address) -> DialTarget {
        DialTarget {
            address,
            state: TargetState::Due,
            finding: None,
        }
    }

    /// Decides what a handshake that failed with `error` says, where the attempt before had the
    /// present finding.
    pub(super) fn handle_failed(&mut self, error: HandshakeError, handshake_timeout: Duration) {
        self.state = TargetState::Tried;
        if !error.may_be_garbling() {
            self.state = TargetState::Wrong;
            self.finding = Some(AttemptFailure::Handshake(error));
            return;
        }
        // An attempt that had no time for an answer shows nothing about the peer.
        let cut_short = match &error {
            HandshakeError::Silent {
                step: HandshakeStep::Hello,
                waited,
            } if *waited < handshake_timeout => Some(Rounded(*waited)),
            _ => None,
        };
        match (&mut self.finding, cut_short) {
            (Some(AttemptFailure::Absent { why, .. }), Some(waited)) => {
                why.push_str(&format!("; one more was cut short after {waited}"));
            }
            (Some(AttemptFailure::Handshake(_)), Some(_)) => {}
            // A finding that comes twice in a row is lasting, unless the error itself is transient.
            // One that differs may be another's damage, or the slowness of a loaded machine.
            (Some(AttemptFailure::Handshake(first)), None)
                if is_lasting(&error) && discriminant(first) == discriminant(&error) =>
            {
                self.state = TargetState::Wrong;
            }
            (finding, _) => *finding = Some(AttemptFailure::Handshake(error)),
        }
    }
}

/// Returns whether the same failure in a second attempt shows that no garbled byte led to it.
fn is_lasting(error: &HandshakeError) -> bool {
    !matches!(
        error,
        HandshakeError::Garbled { .. } | HandshakeError::Closed { .. }
    )
}
