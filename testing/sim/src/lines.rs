//! A connection between two nodes, from the first byte of its handshake to its end.
//!
//! Rules:
//!
//! 1. A connection is a pair of pipes, over which the two handshakes meet. A stream continues on
//!    the pipes behind the handshake. A queue pair has wires of its own, and ends with the pipes.
//! 2. When a connection breaks, a part of the bytes on it arrives, up to any byte, for as long as a
//!    side reads. Bytes written later are lost.
//! 3. When a side closes its end, everything that it has written arrives, and then the other side
//!    sees the close.
#![forbid(unsafe_code)]

use std::time::Instant;

use ibex_harness::draw::Draw;
use ibex_protocol::framing::Carriage;

use super::{
    Checked, Faults, Side, ensure,
    meeting::{Meeting, Outcome, Turn},
    met::Met,
    options::SimOptions,
    terms::Terms,
    wire::Wire,
};

/// A connection.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) caller: Caller,
    pub(super) meeting: Meeting,
    /// The outcome of each side's handshake.
    pub(super) met: [Option<Met>; 2],
    /// The terms of the wires; for a resumption they are drawn ahead.
    pub(super) terms: Option<Terms>,

    // Indexed by the side that writes.
    pub(super) pipes: [Wire; 2],
    queue_pair: [Wire; 2],
    closed: [bool; 2],

    pub(super) is_broken: bool,
    /// The step at which each side notices the break.
    notices: [u64; 2],
    /// The moment at which the dialing side gives the attempt up.
    pub(super) gives_up: Option<GivesUp>,
}

/// The participants of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Both sides.
    Peer,
    /// The dialing side, and an impostor in the place of the other.
    Impostor,
    /// A stranger, and the listening side.
    Stranger,
}

/// The moment at which an attempt is given up.
#[derive(Clone, Copy, Debug)]
pub(super) enum GivesUp {
    At(u64),
    /// When only the answer is missing.
    AtLastWord,
}

impl Lines {
    pub(super) fn new(
        caller: Caller,
        meeting: Meeting,
        options: &SimOptions,
        random: &mut Draw,
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

    /// Ends all faults, and lets everything under way arrive now.
    pub(super) fn heal(&mut self) {
        let wires = self.pipes.iter_mut().chain(&mut self.queue_pair);
        wires.for_each(Wire::heal);
        self.meeting.heal();
        self.notices = [0; 2];
        self.gives_up = None;
    }

    // ---- The meeting -----------------------------------------------------------------

    /// Takes a side's turn in the meeting. Returns the outcome if the meeting is over for the side.
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

    /// Returns whether the dialing side gives the attempt up now.
    pub(super) fn is_to_give_up(&self, now: u64) -> bool {
        let is_time = match self.gives_up {
            None => false,
            Some(GivesUp::At(step)) => step <= now,
            Some(GivesUp::AtLastWord) => self.meeting.awaits_last_word(),
        };
        is_time && self.meeting.is_open(Side::Left)
    }

    /// Returns whether a side has joined the connection and the other has not.
    pub(super) fn was_one_sided(&self) -> bool {
        self.met[0].is_some() != self.met[1].is_some()
    }

    /// Returns whether the connection resumed a session.
    pub(super) fn went_on(&self) -> bool {
        let began = |met: &Option<Met>| met.as_ref().is_some_and(|met| met.secret.is_some());
        self.caller == Caller::Peer && self.terms.is_some() && !self.met.iter().any(began)
    }

    // ---- The wires -------------------------------------------------------------------

    /// Returns the wires that a side which has joined reads and writes.
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

    /// Returns whether no byte is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.pipes
            .iter()
            .chain(&self.queue_pair)
            .all(Wire::is_empty)
    }

    /// Returns whether the connection carries both ways.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_broken && self.closed == [false; 2]
    }

    /// Breaks the connection: a part of the bytes on it arrives, or all of them linger for `linger`
    /// steps.
    pub(super) fn break_off(&mut self, now: u64, linger: Option<u64>, notices: [u64; 2]) {
        self.is_broken = true;
        self.notices = notices;
        let wires = self.pipes.iter_mut().chain(&mut self.queue_pair);
        wires.for_each(|wire| wire.cut(now, linger));
    }

    /// Breaks the connection, and loses all bytes on it.
    pub(super) fn break_at_once(&mut self, notices: [u64; 2]) {
        self.is_broken = true;
        self.notices = notices;
        let wires = self.pipes.iter_mut().chain(&mut self.queue_pair);
        wires.for_each(Wire::lose);
    }

    /// Closes a side's end: the side reads no more, and everything that it has written arrives.
    pub(super) fn close(&mut self, side: Side) {
        self.closed[side as usize] = true;
        self.meeting.leave(side);
        self.pipes[side as usize].close();
        self.pipes[side.other() as usize].lose();
        self.queue_pair.iter_mut().for_each(Wire::lose);
    }

    /// Returns whether a side notices now that nothing more arrives.
    pub(super) fn has_ended(&self, side: Side, now: u64) -> bool {
        let other = side.other() as usize;
        // If there is a queue pair, the end of the stream suffices, even with unread bytes before
        // it.
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

/// Returns the wire that a side reads, and the wire that it writes.
fn of(wires: &mut [Wire; 2], side: Side) -> (&mut Wire, &mut Wire) {
    let [left, right] = wires;
    match side {
        Side::Left => (right, left),
        Side::Right => (left, right),
    }
}
