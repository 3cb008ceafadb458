//! The connections between two nodes: the dialing side makes one after the other, connections
//! break, and each side notices in its own time.
//!
//! Rules:
//!
//! 1. Every connection has a number. A side reads and writes a connection that it has joined,
//!    broken or not, until it notices the break or joins a newer one. A side joins a connection
//!    when its handshake succeeds, on the terms of that handshake.
//! 2. The dialing side dials some time after it notices a break, or an attempt that failed: for its
//!    session with the next higher epoch if it has one, or for a new session.
//! 3. The dialing side may give an attempt up and make another. The bytes of the first then arrive
//!    late, when the other side has joined newer wires, which it must not leave for the late ones.
//! 4. Strangers dial as well: they have seen the exchanged bytes, but know no secret.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ibex_bootstrap::{Fabric, HandshakeError, ResumeRefusal, ResumeTicket, handshake::Handshake};
use ibex_harness::draw::Draw;

use super::{
    Checked, Fault, Faults, Side, ensure,
    lines::{Caller, GivesUp, Lines},
    meeting::{Meeting, Outcome},
    met::Met,
    options::SimOptions,
    party::{self, Clock, Party},
    terms::Terms,
    wire::Wire,
};

/// All connections that a side still uses.
#[derive(Debug)]
pub(super) struct Connection {
    random: Draw,
    options: SimOptions,
    /// The start of both sides' clocks.
    begun: Instant,
    parties: [Party; 2],
    lines: BTreeMap<u64, Lines>,
    /// The number of the last connection.
    last: u64,
    /// The number of the last attempt.
    newest: u64,

    // The dialing side.
    /// The attempt under way.
    dialing: Option<u64>,
    /// The step at which it dials, if it has to.
    dials_at: u64,
    /// The session that it wants to resume.
    ticket: Option<ResumeTicket>,
    /// Set if its last request could not be met, so it asks for a stream next.
    wants_stream: bool,
    /// The number of attempts so far.
    attempts: u64,
    /// The bytes that it sent in one attempt.
    overheard: Vec<u8>,

    /// Set if the accepting side learns of the last break later than the dialing side.
    lags: bool,
    is_healed: bool,
    faults: Faults,
}

/// The dialing side's conclusion about its session after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The session may resume later.
    NotYet,
    /// The session is over at the other side.
    Gone,
}

impl Connection {
    pub(super) fn new(options: &SimOptions, mut random: Draw) -> Self {
        Self {
            parties: [Side::Left, Side::Right].map(|side| Party::new(side, options, &mut random)),
            random,
            options: options.clone(),
            begun: Instant::now(),
            lines: BTreeMap::new(),
            last: 0,
            newest: 0,
            dialing: None,
            dials_at: 0,
            ticket: None,
            wants_stream: false,
            attempts: 0,
            overheard: Vec::new(),
            lags: false,
            is_healed: false,
            faults: Faults::default(),
        }
    }

    /// Ends all faults: nothing breaks any more, and everything under way arrives now.
    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        self.lines.values_mut().for_each(Lines::heal);
        self.dials_at = 0;
    }

    // ---- Breaks ----------------------------------------------------------------------

    /// Breaks wires at random, more often while memory is written over them. `is_live` says whether
    /// both sides use the newest wires and have exchanged what they know.
    pub(super) fn step(&mut self, now: u64, clocks: [u64; 2], is_live: bool, is_writing: bool) {
        let options = &self.options;
        let newest = self.lines.get(&self.newest);
        let is_joined = newest.is_some_and(|lines| lines.met.iter().any(Option::is_some));
        let often = match (is_live, is_joined) {
            (true, _) if is_writing => 300 * options.break_per_mille,
            (false, true) => options
                .break_per_mille
                .max(options.break_again_per_mille / 20),
            _ => options.break_per_mille,
        };
        let breaks = self.random.chance(often) || options.break_at == Some(now);
        if breaks && !self.is_healed && newest.is_some_and(Lines::is_whole) {
            self.faults.count(Fault::Break, true);
            self.faults.count(Fault::BreakAgain, !is_live);
            self.break_newest(now, if is_writing { 800 } else { 125 });
        }
        if self.random.chance(self.options.stranger_per_mille) && !self.is_healed {
            self.let_strangers_call(now, clocks);
        }
    }

    /// Breaks the newest wires. With the chance `lags_per_mille`, the dialing side has new ones
    /// while the other still reads these.
    fn break_newest(&mut self, now: u64, lags_per_mille: u64) {
        self.lags = self.random.chance(lags_per_mille);
        let lag = self.lag_steps();
        let (notices, linger) = match self.lags {
            true => {
                let linger = lag / 2 + self.random.below(lag / 2);
                ([now, now + lag], Some(linger))
            }
            false => (self.draw_notices(now), None),
        };
        if let Some(lines) = self.lines.get_mut(&self.newest) {
            let is_meeting = lines.met.iter().any(Option::is_none);
            self.faults.count(Fault::MeetingCut, is_meeting);
            lines.break_off(now, linger, notices);
        }
    }

    fn draw_notices(&mut self, now: u64) -> [u64; 2] {
        let within = self.options.notice_steps + 1;
        [(); 2].map(|()| now + self.random.below(within))
    }

    /// Kills a side: everything that it had breaks.
    pub(super) fn dies(&mut self, side: Side, now: u64) {
        let notices = self.draw_notices(now);
        for lines in self.lines.values_mut() {
            let is_meeting = lines.caller == Caller::Peer && lines.meeting.is_open(side);
            self.faults.count(Fault::DeathInMeeting, is_meeting);
            if !lines.is_broken {
                lines.break_off(now, None, notices);
            }
            lines.meeting.leave(side);
        }
        if side == Side::Left {
            self.dialing = None;
        }
    }

    /// Starts a dead side anew.
    pub(super) fn restart(&mut self, side: Side, now: u64) {
        self.parties[side as usize].restart(&mut self.random);
        if side == Side::Left {
            self.ticket = None;
            self.dial_later(now);
        }
    }

    /// Returns whether a side that has joined a connection notices now that it is broken.
    pub(super) fn is_to_notice(&self, side: Side, number: u64, now: u64) -> bool {
        self.lines[&number].has_ended(side, now)
    }

    /// Returns whether a connection carries both ways.
    pub(super) fn is_whole(&self, number: u64) -> bool {
        self.lines.get(&number).is_some_and(Lines::is_whole)
    }

    /// Returns the terms of a connection's wires.
    pub(super) fn terms(&self, number: u64) -> Option<Terms> {
        self.lines.get(&number)?.terms
    }

    /// Returns whether no byte is on its way over the connection.
    pub(super) fn is_empty(&self, number: u64) -> bool {
        self.lines.get(&number).is_none_or(Lines::is_empty)
    }

    /// Returns the wires that a side which has joined this connection reads and writes.
    pub(super) fn wires(&mut self, side: Side, number: u64) -> (&mut Wire, &mut Wire) {
        let lines = self.lines.get_mut(&number);
        lines.expect("its side has not left it").wires(side)
    }

    // ---- Sessions --------------------------------------------------------------------

    /// Lets a side join a connection after its handshake. Returns the terms of the wires, which
    /// depend on the fabric in `met`.
    pub(super) fn join(&mut self, side: Side, number: u64, met: &Met, now: u64) -> Terms {
        if let Some(secret) = &met.secret {
            let [_, right] = &mut self.parties;
            match side {
                Side::Left => self.ticket = met.ticket(),
                Side::Right => right.enter(met.session, secret.clone()),
            }
        }
        self.parties[side as usize].goes_on(met);
        let held = self.lag_steps();
        let lines = self.lines.get_mut(&number).expect("it was met there");
        if side == Side::Left && self.lags && met.fabric == Fabric::Verbs && !self.is_healed {
            // The other side receives the last message of the handshake late.
            lines.pipes[side as usize].hold(now + held);
        }
        *lines
            .terms
            .get_or_insert_with(|| Terms::first(&self.options, met.fabric))
    }

    /// Lets a side refuse the outcome of its handshake.
    pub(super) fn refuse(&mut self, side: Side, number: u64) {
        if let Some(lines) = self.lines.get_mut(&number) {
            lines.close(side);
        }
    }

    /// Ends a side's session: it dials for another, or knows of none.
    pub(super) fn session_is_over(&mut self, side: Side, now: u64) {
        self.parties[side as usize].forget();
        if side == Side::Left {
            if self.ticket.take().is_some() {
                self.give_up(now);
            }
            self.dial_later(now);
        }
    }

    // ---- Dialing ---------------------------------------------------------------------

    /// Tells the dialing side that its wires are broken.
    pub(super) fn dial_again(&mut self, now: u64) {
        let never = !self.is_healed && self.random.chance(self.options.outage_per_mille);
        match (self.lags, never) {
            _ if self.is_healed => self.dials_at = now,
            (true, _) => self.dials_at = now,
            (_, true) => self.dials_at = NEVER,
            _ => self.dial_later(now),
        }
    }

    fn dial_later(&mut self, now: u64) {
        let after = self.random.below(self.options.redial_steps + 1);
        self.dials_at = if self.is_healed { now } else { now + 1 + after };
    }

    /// Makes an attempt if it is due, for the present session or for a new one. `clocks` are those
    /// of the sides. Returns whether it did.
    pub(super) fn dial(&mut self, now: u64, clocks: [u64; 2], is_anyone_there: bool) -> bool {
        if self.dialing.is_some() || self.dials_at > now {
            return false;
        }
        if !is_anyone_there {
            self.faults.count(Fault::Unanswered, true);
            self.dial_later(now);
            return true;
        }
        let ticket = self.next_ticket();
        // A late connection can be recognized only while there are newer wires.
        let is_disturbed = !self.is_healed && !self.lags;
        let is_impostor =
            ticket.is_some() && is_disturbed && self.random.chance(self.options.impostor_per_mille);
        let terms = ticket
            .as_ref()
            .map(|ticket| Terms::next(&self.options, ticket.fabric, &mut self.random));
        let [here, there] = self.clocks(clocks);
        let ([left, right], random) = (&self.parties, &mut self.random);
        let dialer = match ticket {
            Some(ticket) => left.resume(ticket, random, here),
            None => left.dial(random, here),
        };
        let acceptor = match is_impostor {
            true => right.impostor(random).accept(random, there),
            false => right.accept(random, there),
        };
        let caller = match is_impostor {
            true => Caller::Impostor,
            false => Caller::Peer,
        };
        self.faults.count(Fault::Impostor, is_impostor);
        let number = self.open(caller, [Some(dialer), Some(acceptor)]);
        let gives_up = match self.random.chance(500) {
            true => GivesUp::At(now + self.random.below(LATE_STEPS)),
            false => GivesUp::AtLastWord,
        };
        let is_late = is_disturbed && self.random.chance(self.options.late_per_mille);
        let breaks = self.random.chance(self.options.break_again_per_mille / 2);
        let breaks_behind = self.random.below(MEETING_BYTES) as usize;
        let cut = self.options.meeting_cut;
        let cut = cut.filter(|cut| cut.meeting == self.attempts);
        self.attempts += 1;
        let lines = self.lines.get_mut(&number).expect("it was opened");
        lines.terms = terms;
        lines.meeting.has_impostor = is_impostor;
        lines.gives_up = is_late.then_some(gives_up);
        match cut {
            Some(cut) if !self.is_healed => lines.meeting.break_behind(cut.byte),
            _ if is_disturbed && breaks => lines.meeting.break_behind(breaks_behind),
            _ => {}
        }
        (self.dialing, self.newest) = (Some(number), number);
        true
    }

    /// Returns the ticket of the next attempt, if it is for a session.
    fn next_ticket(&mut self) -> Option<ResumeTicket> {
        let fabric = self.choose_fabric();
        let ticket = self.ticket.as_mut()?;
        ticket.epoch += 1;
        ticket.fabric = fabric;
        Some(ticket.clone())
    }

    /// Chooses the fabric over which a session is to resume.
    fn choose_fabric(&mut self) -> Fabric {
        let wants_stream = std::mem::take(&mut self.wants_stream);
        match self.options.fails_over {
            Some(_) if wants_stream || self.random.chance(500) && !self.lags => Fabric::Tcp,
            _ => party::first_choice(&self.options),
        }
    }

    fn open(&mut self, caller: Caller, machines: [Option<Handshake>; 2]) -> u64 {
        self.last += 1;
        let meeting = Meeting::new(&self.options, self.random.fork(), machines);
        let mut lines = Lines::new(caller, meeting, &self.options, &mut self.random);
        if self.is_healed {
            lines.heal();
        }
        self.lines.insert(self.last, lines);
        self.last
    }

    /// Makes the dialing side give up its attempt, whose bytes arrive late.
    fn give_up(&mut self, now: u64) {
        let after = self.random.below(LATE_STEPS);
        if let Some(lines) = self
            .dialing
            .take()
            .and_then(|number| self.lines.get_mut(&number))
        {
            self.faults.count(Fault::GivenUp, true);
            if !self.is_healed {
                lines.pipes[Side::Left as usize].hold(now + after);
            }
            lines.close(Side::Left);
        }
    }

    // ---- Meetings --------------------------------------------------------------------

    /// Takes a side's turn in all its meetings. Returns those that are over, with their outcomes.
    pub(super) fn meet(
        &mut self,
        side: Side,
        now: u64,
        clock: u64,
    ) -> Checked<Vec<(u64, Outcome)>> {
        let mut outcomes = Vec::new();
        if !self.lines.values().any(|lines| lines.meeting.is_open(side)) {
            return Ok(outcomes);
        }
        if side == Side::Left
            && let Some(dialing) = self.dialing
            && self.lines[&dialing].is_to_give_up(now)
        {
            self.give_up(now);
            self.dials_at = now + self.random.below(GIVEN_UP_STEPS);
        }
        let clock = self.instant(clock);
        let mut breaks = None;
        for (&number, lines) in &mut self.lines {
            let outcome = lines.meet(side, now, clock)?;
            if lines.meeting.is_to_break() {
                breaks = Some(number);
            }
            let Some(outcome) = outcome else {
                continue;
            };
            let has_met = outcome.met.is_ok();
            ensure!(
                !has_met || lines.caller == Caller::Peer,
                "a handshake with somebody else comes to {:?}",
                outcome.met
            );
            let is_own = match lines.caller {
                Caller::Peer => true,
                Caller::Impostor => side == Side::Left,
                Caller::Stranger => false,
            };
            if is_own {
                outcomes.push((number, outcome));
            }
        }
        if let Some(number) = breaks {
            let notices = self.draw_notices(now);
            if let Some(lines) = self.lines.get_mut(&number) {
                lines.break_at_once(notices);
                self.faults.count(Fault::MeetingCut, true);
            }
        }
        // Two meetings that end in one turn may be reported in either order.
        if outcomes.len() > 1 && self.random.chance(500) {
            outcomes.reverse();
        }
        let unfinished = self.lines.len();
        ensure!(
            unfinished <= MOST_LINES,
            "{unfinished} connections are kept"
        );
        Ok(outcomes)
    }

    /// Ends the dialing side's attempt.
    pub(super) fn attempt_is_over(&mut self, number: u64) -> Checked {
        let dialing = self.dialing.take();
        ensure!(
            dialing == Some(number),
            "attempt {number} is over, and the last one is {dialing:?}"
        );
        Ok(())
    }

    /// Handles a failed attempt. Returns what the failure says of the session.
    pub(super) fn hear_failure(&mut self, error: &HandshakeError, now: u64) -> Verdict {
        self.dial_later(now);
        self.wants_stream = matches!(error, HandshakeError::NotOverFabric { .. });
        let is_gone = match (error, &self.ticket) {
            (HandshakeError::NotResumed { refusal }, _) => *refusal == ResumeRefusal::NoSuchSession,
            (
                &HandshakeError::OtherNode {
                    identity,
                    incarnation,
                },
                Some(ticket),
            ) => identity == ticket.peer && incarnation != ticket.incarnation,
            _ => false,
        };
        self.faults.count(Fault::Refused, is_gone);
        match is_gone {
            true => Verdict::Gone,
            false => Verdict::NotYet,
        }
    }

    /// Counts and refuses a connection that comes too late, or for a session that the side does not
    /// have.
    pub(super) fn is_late(&mut self, side: Side, number: u64) {
        self.faults.count(Fault::LateConnection, true);
        self.refuse(side, number);
    }

    /// Counts a late connection that the accepting side has refused.
    pub(super) fn count_late(&mut self, error: &HandshakeError) {
        let refusal = ResumeRefusal::OldEpoch;
        let is_late = *error == HandshakeError::NotResumed { refusal };
        self.faults.count(Fault::LateConnection, is_late);
    }

    /// Lets a stranger dial the listening side: it repeats bytes that were sent, and knows no
    /// secret.
    fn let_strangers_call(&mut self, now: u64, clocks: [u64; 2]) {
        let [here, there] = self.clocks(clocks);
        let [left, right] = &self.parties;
        let acceptor = right.accept(&mut self.random, there);
        let mut stranger = None;
        let mut noise = Vec::new();
        match (self.random.below(3), &self.ticket) {
            (0, Some(ticket)) => {
                let ticket = ResumeTicket {
                    secret: party::secret(&mut self.random),
                    epoch: ticket.epoch + 1,
                    ..ticket.clone()
                };
                stranger = Some(left.resume(ticket, &mut self.random, here));
            }
            (1, Some(_)) => noise.clone_from(&self.overheard),
            _ => {
                let mut dialer = left.dial(&mut self.random, here);
                if self.random.chance(500) {
                    noise.extend(dialer.poll_transmit().unwrap_or_default());
                }
                noise.extend(party::drawn::<64>(&mut self.random));
            }
        }
        let is_silent = stranger.is_none();
        let number = self.open(Caller::Stranger, [stranger, Some(acceptor)]);
        let goes = self.random.chance(500);
        if let Some(lines) = self.lines.get_mut(&number).filter(|_| is_silent) {
            lines.pipes[Side::Left as usize].write_all(now, &noise);
            if goes {
                lines.close(Side::Left);
            }
        }
        self.faults.count(Fault::Stranger, true);
    }

    // ---- Cleaning up ------------------------------------------------------------------

    /// Forgets connections that no side has joined and over which no handshake runs.
    pub(super) fn forget_all_but(&mut self, joined: [u64; 2]) {
        let Self {
            lines,
            faults,
            overheard,
            ..
        } = self;
        lines.retain(|number, lines| {
            let is_open = [Side::Left, Side::Right].map(|side| lines.meeting.is_open(side));
            let is_kept = joined.contains(number) || is_open.contains(&true);
            if !is_kept {
                *faults += lines.faults();
                faults.count(Fault::OneSided, lines.was_one_sided());
                if lines.went_on() {
                    *overheard = lines.meeting.said().to_vec();
                }
            }
            is_kept
        });
    }

    pub(super) fn faults(&self) -> Faults {
        let mut faults = self.faults;
        for lines in self.lines.values() {
            faults += lines.faults();
        }
        faults
    }

    fn lag_steps(&self) -> u64 {
        LAG_STEPS + 10 * self.options.delay_steps
    }

    /// Returns the sides' times, and the deadlines of handshakes that begin then.
    fn clocks(&self, clocks: [u64; 2]) -> [Clock; 2] {
        [Side::Left, Side::Right].map(|side| {
            let (clock, within) = (clocks[side as usize], self.options.handshake_steps);
            Clock {
                now: self.instant(clock),
                deadline: self.instant(clock + within[side as usize]),
            }
        })
    }

    fn instant(&self, clock: u64) -> Instant {
        self.begun + Duration::from_millis(clock)
    }
}

/// The most steps after which an attempt is given up, and by which its bytes are late.
const LATE_STEPS: u64 = 100;
/// The most steps until another attempt is made.
const GIVEN_UP_STEPS: u64 = 4;
/// The most steps by which the other side may notice a break later, beside the duration of a
/// handshake.
const LAG_STEPS: u64 = 60;
/// A step later than the end of any run.
const NEVER: u64 = 1 << 40;
/// More bytes than any meeting takes.
const MEETING_BYTES: u64 = 450;
/// More connections than there ever are: every handshake ends at its deadline.
const MOST_LINES: usize = 64;
