//! One connection between two nodes, from the first byte of its handshake to the end of what
//! it became.
//!
//! Rules:
//!
//! 1. It is a pair of pipes, over which the two handshakes meet. A stream goes on where they
//!    end; a queue pair has wires of its own, and ends with the pipes.
//! 2. When it breaks, a part of what is on it arrives, up to any byte, for as long as a side
//!    reads. What is written to it from then on is lost.
//! 3. When a side closes its end, all that it has written arrives, and then the other side
//!    hears of it.
#![forbid(unsafe_code)]

use std::time::Instant;

use ibex_protocol::framing::Carriage;

use super::{
    Checked, Faults, Side, ensure,
    machine::Met,
    meeting::{Meeting, Outcome, Turn},
    options::SimOptions,
    random::Random,
    terms::Terms,
    wire::Wire,
};

/// A connection.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) caller: Caller,
    pub(super) meeting: Meeting,
    /// What each side has agreed to.
    pub(super) met: [Option<Met>; 2],
    /// Of wires over which a session goes on they are drawn before.
    pub(super) terms: Option<Terms>,

    // By the side that writes.
    pub(super) pipes: [Wire; 2],
    queue_pair: [Wire; 2],
    closed: [bool; 2],

    pub(super) is_broken: bool,
    /// When each side notices that.
    notices: [u64; 2],
    /// When the side that dials loses its patience.
    pub(super) gives_up: Option<GivesUp>,
}

/// Who meets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Both sides.
    Peer,
    /// The side that dials, and somebody in the place of the other.
    Impostor,
    /// Somebody, and the side that listens.
    Stranger,
}

/// When an attempt is given up.
#[derive(Clone, Copy, Debug)]
pub(super) enum GivesUp {
    At(u64),
    /// As soon as nothing but the answer is missing.
    AtLastWord,
}

impl Lines {
    pub(super) fn new(
        caller: Caller,
        meeting: Meeting,
        options: &SimOptions,
        random: &mut Random,
    ) -> Self {
        let mut wires = || [(); 2].map(|()| Wire::new(options, random.fork()));
        Self {
            caller,
            meeting,
            met: [None, None],
            terms: None,
            pipes: wires(),
            queue_pair: wires(),
            closed: [false; 2],
            is_broken: false,
            notices: [0; 2],
            gives_up: None,
        }
    }

    /// No more faults, and whatever is to come comes now.
    pub(super) fn heal(&mut self) {
        let wires = self.pipes.iter_mut().chain(&mut self.queue_pair);
        wires.for_each(Wire::heal);
        self.meeting.heal();
        self.notices = [0; 2];
        self.gives_up = None;
    }

    // ---- The meeting -----------------------------------------------------------------

    /// A side's turn in the meeting. How that is over for it, if it is.
    pub(super) fn meet(
        &mut self,
        side: Side,
        now: u64,
        clock: Instant,
    ) -> Checked<Option<Outcome>> {
        if !self.meeting.is_open(side) {
            return Ok(None);
        }
        let has_ended = self.has_ended(side, now);
        let (inbound, outbound) = of(&mut self.pipes, side);
        let outcome = self.meeting.turn(Turn {
            side,
            now,
            clock,
            inbound,
            outbound,
            has_ended,
        })?;
        match outcome.as_ref().map(|outcome| &outcome.met) {
            Some(Ok(met)) => {
                self.met[side as usize] = Some(met.clone());
                if let [Some(left), Some(right)] = &self.met {
                    ensure!(
                        left.agrees_with(right),
                        "{left:?} was agreed, and {right:?}"
                    );
                }
            }
            Some(Err(_)) => self.close(side),
            None => {}
        }
        Ok(outcome)
    }

    /// Whether the side that dials gives it up now.
    pub(super) fn is_to_give_up(&self, now: u64) -> bool {
        let is_time = match self.gives_up {
            None => false,
            Some(GivesUp::At(step)) => step <= now,
            Some(GivesUp::AtLastWord) => self.meeting.awaits_last_word(),
        };
        is_time && self.meeting.is_open(Side::Left)
    }

    /// Whether a side has joined it, and the other cannot any more.
    pub(super) fn was_one_sided(&self) -> bool {
        self.met[0].is_some() != self.met[1].is_some()
    }

    /// Whether it was for a session that goes on.
    pub(super) fn went_on(&self) -> bool {
        let began = |met: &Option<Met>| met.as_ref().is_some_and(|met| met.secret.is_some());
        self.caller == Caller::Peer && self.terms.is_some() && !self.met.iter().any(began)
    }

    // ---- The wires -------------------------------------------------------------------

    /// What a side reads and writes that has joined it.
    pub(super) fn wires(&mut self, side: Side) -> (&mut Wire, &mut Wire) {
        of(self.data(), side)
    }

    fn data(&mut self) -> &mut [Wire; 2] {
        match self.is_stream() {
            true => &mut self.pipes,
            false => &mut self.queue_pair,
        }
    }

    fn is_stream(&self) -> bool {
        let terms = self.terms.as_ref();
        terms.is_none_or(|terms| terms.carriage == Carriage::Stream)
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.pipes
            .iter()
            .chain(&self.queue_pair)
            .all(Wire::is_empty)
    }

    /// Whether it carries both ways.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_broken && self.closed == [false; 2]
    }

    /// It breaks: what is on it comes in part, or lingers for so many steps.
    pub(super) fn break_off(&mut self, now: u64, linger: Option<u64>, notices: [u64; 2]) {
        self.is_broken = true;
        self.notices = notices;
        let wires = self.pipes.iter_mut().chain(&mut self.queue_pair);
        wires.for_each(|wire| wire.cut(now, linger));
    }

    /// It breaks, and nothing that is on it comes any more.
    pub(super) fn break_at_once(&mut self, notices: [u64; 2]) {
        self.is_broken = true;
        self.notices = notices;
        let wires = self.pipes.iter_mut().chain(&mut self.queue_pair);
        wires.for_each(Wire::lose);
    }

    /// A side closes its end: it reads no more, and what it has written comes.
    pub(super) fn close(&mut self, side: Side) {
        self.closed[side as usize] = true;
        self.meeting.leave(side);
        self.pipes[side as usize].close();
        self.pipes[side.other() as usize].lose();
        self.queue_pair.iter_mut().for_each(Wire::lose);
    }

    /// Whether a side hears now that nothing more comes.
    pub(super) fn has_ended(&self, side: Side, now: u64) -> bool {
        let other = side.other() as usize;
        // Beside a queue pair the end itself says enough, whatever is before it.
        let has_pair = self.met[side as usize].is_some() && !self.is_stream();
        let is_read = self.closed[other] && (has_pair || self.pipes[other].is_empty());
        is_read || self.is_broken && self.notices[side as usize] <= now
    }

    pub(super) fn faults(&self) -> Faults {
        let mut faults = self.meeting.faults;
        for wire in self.pipes.iter().chain(&self.queue_pair) {
            faults += wire.faults;
        }
        faults
    }
}

/// What a side reads, and what it writes.
fn of(wires: &mut [Wire; 2], side: Side) -> (&mut Wire, &mut Wire) {
    let [left, right] = wires;
    match side {
        Side::Left => (right, left),
        Side::Right => (left, right),
    }
}
