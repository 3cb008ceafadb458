//! The wires of a pair: the sides meet, join the outcome of their handshakes, notice broken wires,
//! and dial.
#![forbid(unsafe_code)]

use ibex_bootstrap::HandshakeError;
use ibex_protocol::{framing::Carriage, session::is_newer_epoch};

use super::{Broken, Pair, of};
use crate::{
    Checked, Fault, Side, connection::Verdict, ensure, meeting::Outcome, met::Met, node::Stage,
};

impl Pair {
    /// Looks after a side's wires: meets the other side, joins outcomes, notices breaks, and dials.
    /// Returns whether it did anything.
    pub(super) fn look_after_wires(&mut self, side: Side, now: u64) -> Result<bool, Broken> {
        let clock = now + self.place(side).ahead;
        let outcomes = self.connection.meet(side, now, clock);
        let outcomes = outcomes.map_err(of(side))?;
        let mut any = !outcomes.is_empty();
        for (number, Outcome { met, leftover }) in outcomes {
            if side == Side::Left {
                self.connection.attempt_is_over(number).map_err(of(side))?;
            }
            match (met, side) {
                (Ok(met), _) => self.take(side, number, &met, leftover, now)?,
                (Err(error), Side::Left) => self.hear_failure(&error, now)?,
                (Err(error), Side::Right) => self.connection.count_late(&error),
            }
        }
        any |= self.notice(side, now);
        if side == Side::Left {
            any |= self.dial(now);
            self.connection
                .forget_all_but([self.left.joined, self.right.joined]);
        }
        Ok(any)
    }

    /// Takes the outcome of a side's handshake, unless it comes too late.
    fn take(
        &mut self,
        side: Side,
        number: u64,
        met: &Met,
        leftover: Vec<u8>,
        now: u64,
    ) -> Result<(), Broken> {
        let begins = met.secret.is_some();
        if begins && side == Side::Right {
            if number < self.right.joined {
                // The attempt was given up, and there is a session from another one.
                self.connection.is_late(side, number);
                return Ok(());
            }
            // The dialing side asks for a new session, so it no longer has the old one.
            if self.right.is_up() {
                self.session_is_over(Side::Right, now)?;
            }
            if self.right.is_over || self.left.is_over {
                self.begin_anew(now);
            }
        }
        let place = self.place(side);
        let goes_on = place.is_up()
            && place.session == met.session
            && is_newer_epoch(met.epoch, place.node.epoch);
        if !begins && !goes_on {
            self.connection.is_late(side, number);
            return Ok(());
        }
        self.join(side, number, met, leftover, now)
            .map_err(of(side))
    }

    fn join(&mut self, side: Side, number: u64, met: &Met, leftover: Vec<u8>, now: u64) -> Checked {
        let Self {
            connection,
            ledger,
            left,
            right,
            ..
        } = self;
        let place = match side {
            Side::Left => left,
            Side::Right => right,
        };
        let node = &mut place.node;
        if !matches!(node.stage, Stage::Suspended | Stage::Before) {
            node.suspend();
        }
        let terms = connection.join(side, number, met, now);
        let wires = terms.of(side);
        match &met.secret {
            Some(_) => {
                ensure!(node.stage == Stage::Before, "a second session begins");
                place.session = met.session;
                node.begin(wires);
            }
            None => {
                let carriage = node.carriage();
                let faults = &mut node.counts.faults;
                faults.count(Fault::FailOver, terms.carriage != carriage);
                faults.count(Fault::LostBuffers, wires.our_credit < terms.credit);
                node.join(met.epoch, wires, ledger)?;
            }
        }
        node.note(met.epoch << 32 | number);
        (place.joined, place.suspended_at) = (number, None);
        if let Some(lender) = &mut place.application.lender {
            lender.begin_anew(terms.credit - wires.our_credit);
        }
        match terms.carriage {
            Carriage::Stream => {
                let written = connection.wires(side, number).1.written();
                node.take_over(written, leftover);
            }
            Carriage::Buffers { .. } => {
                ensure!(leftover.is_empty(), "bytes come beside the queue pair");
                node.take_over(0, leftover);
            }
        }
        Ok(())
    }

    /// Tells the dialing side why its attempt failed.
    fn hear_failure(&mut self, error: &HandshakeError, now: u64) -> Result<(), Broken> {
        match self.connection.hear_failure(error, now) {
            Verdict::Gone => self.session_is_over(Side::Left, now),
            Verdict::NotYet => Ok(()),
        }
    }

    /// Lets a side notice broken wires, if it does now.
    fn notice(&mut self, side: Side, now: u64) -> bool {
        let (place, connection) = match side {
            Side::Left => (&mut self.left, &mut self.connection),
            Side::Right => (&mut self.right, &mut self.connection),
        };
        let has_wires = place.is_up() && !place.is_suspended();
        if !has_wires || !connection.is_to_notice(side, place.joined, now) {
            return false;
        }
        if place.node.has_parted() {
            place.is_over = true;
            connection.session_is_over(side, now);
        } else {
            place.node.suspend();
            place.suspended_at = Some(now + place.ahead);
            if side == Side::Left {
                connection.dial_again(now);
            }
        }
        true
    }

    /// Dials if the dialing side has no wires and it is time.
    fn dial(&mut self, now: u64) -> bool {
        let has_wires = self.left.is_up() && !self.left.is_suspended();
        let is_anyone_there = !self.is_dead(Side::Right);
        let clocks = self.clocks(now);
        !has_wires && self.connection.dial(now, clocks, is_anyone_there)
    }
}
