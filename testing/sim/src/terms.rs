//! The terms of the wires of an epoch.
#![forbid(unsafe_code)]

use ibex_bootstrap::Fabric;
use ibex_harness::draw::Draw;
use ibex_protocol::{framing::Carriage, session::WireTerms};

use super::{Side, options::SimOptions};

/// Facts that both sides know about the wires that they join.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) carriage: Carriage,
    /// The most that either side may let the other keep in flight.
    pub(super) credit: u64,
    /// The credit that each side lends at first.
    pub(super) lent: [u64; 2],
    writes: bool,
    immediate: bool,
    reads: bool,
}

impl Terms {
    /// Returns the terms of a session's first wires over `fabric`.
    pub(super) fn first(options: &SimOptions, fabric: Fabric) -> Self {
        let (carriage, credit) = match (fabric, options.fails_over) {
            (Fabric::Tcp, Some(credit)) => (Carriage::Stream, credit),
            _ => (options.carriage, options.credit),
        };
        Self {
            carriage,
            credit,
            lent: [credit, lent_at_first(options, credit)],
            writes: options.writes,
            // Only writes into buffers carry immediate data.
            immediate: options.immediate && carriage != Carriage::Stream,
            reads: options.reads,
        }
    }

    /// Draws the terms of wires over which a session resumes.
    pub(super) fn next(options: &SimOptions, fabric: Fabric, random: &mut Draw) -> Self {
        let first = Self::first(options, fabric);
        let mut lend = || match random.below(3) {
            0 => random.below(first.credit + 1),
            1 => 0,
            _ => first.credit,
        };
        let lent = [lend(), lent_at_first(options, lend())];
        Self {
            lent,
            writes: first.writes && random.chance(700),
            reads: first.reads && random.chance(700),
            ..first
        }
    }

    /// Returns the terms as seen by a side's session.
    pub(super) fn of(&self, side: Side) -> WireTerms {
        WireTerms {
            carriage: self.carriage,
            our_credit: self.lent[side as usize],
            peer_credit: self.lent[side.other() as usize],
            writes: self.writes,
            immediate: self.immediate,
            offers: self.reads,
            reads: if self.reads { MOST_READS } else { 0 },
        }
    }
}

/// The pieces that a side reads at a time.
const MOST_READS: u32 = 2;

/// Returns the initial credit: 0 if a broker lends, which it does only once it knows the session.
fn lent_at_first(options: &SimOptions, credit: u64) -> u64 {
    if options.peers > 1 { 0 } else { credit }
}
