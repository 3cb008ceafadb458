//! Two nodes and the connections between them, over any number of sessions: when one ends, by
//! goodbye, by death or by a verdict, another begins.
//!
//! A session is over at a side when that side knows. What the side knew is kept until the session
//! is over at the other side as well, and is compared with it.
#![forbid(unsafe_code)]

mod wires;

use ibex_harness::draw::{Draw, mix};
use ibex_protocol::{
    credit::reserved_buffer::reserved_buffers,
    format::{channel_window::ChannelWindow, control::Role},
    framing::Carriage,
};

use super::{
    Checked, Coverage, Fault, Faults, Side,
    application::Application,
    connection::Connection,
    ensure,
    ledger::Ledger,
    node::{Node, Stage},
    options::SimOptions,
};

/// Both sides of a connection.
#[derive(Debug)]
pub(super) struct Pair {
    options: SimOptions,
    random: Draw,
    ledger: Ledger,
    left: Place,
    right: Place,
    connection: Connection,
    /// The number of sessions that ended at both sides.
    sessions: u64,
    /// The dead side, and the step at which it restarts.
    dead: Option<(Side, u64)>,
    is_healed: bool,
    faults: Faults,
}

/// A node and its program.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) node: Node,
    pub(super) application: Application,
    /// The steps by which its clock is ahead.
    ahead: u64,
    stopped_until: u64,
    /// The identity of its session, once it has one.
    session: [u8; 16],
    /// The number of the connection that it has joined; 0 before the first.
    joined: u64,
    /// The time at which it noticed its wires' break, by its clock.
    suspended_at: Option<u64>,
    /// Set if its session is over, and it has no wires.
    is_over: bool,
}

impl Place {
    /// Returns whether it has a session.
    fn is_up(&self) -> bool {
        self.node.stage != Stage::Before && !self.is_over
    }

    /// Returns whether it waits for new wires.
    fn is_suspended(&self) -> bool {
        self.node.stage == Stage::Suspended && !self.is_over
    }
}

/// A broken rule, and the side that broke it, if it was one.
pub(super) type Broken = (Option<Side>, String);

impl Pair {
    pub(super) fn new(options: &SimOptions, random: &mut Draw, has_broker: bool) -> Self {
        let mut place = |side| Place {
            node: Node::new(side, options, random.fork()),
            application: Application::new(
                options,
                random.fork(),
                has_broker && side == Side::Right,
            ),
            ahead: 0,
            stopped_until: 0,
            session: [0; 16],
            joined: 0,
            suspended_at: None,
            is_over: false,
        };
        let (left, right) = (place(Side::Left), place(Side::Right));
        Self {
            left,
            right,
            connection: Connection::new(options, random.fork()),
            random: random.fork(),
            ledger: Ledger::default(),
            sessions: 0,
            dead: None,
            is_healed: false,
            faults: Faults::default(),
            options: options.clone(),
        }
    }

    /// Moves everything once, and checks what must hold at every moment.
    pub(super) fn step(&mut self, now: u64) -> Result<(), Broken> {
        self.disturb(now);
        for side in [Side::Left, Side::Right] {
            if !self.is_still(side, now) && self.place(side).is_up() {
                self.on(side, |place, ledger| {
                    place.application.act(now, &mut place.node, ledger)
                })?;
            }
            self.turn(side, now)?;
        }
        self.check_credit()?;
        let mishears = self.random.chance(self.options.malform_per_mille);
        if mishears && self.dead.is_none() {
            let side = self.random.pick(&[Side::Left, Side::Right]);
            self.on(side, |place, _| place.node.mishear())?;
        }
        if mishears && self.dead.is_none() || self.has_parted() {
            self.begin_anew(now);
        }
        self.give_up_if_lost(now)
    }

    /// Moves everything once without faults, with programs that finish what they have. Returns
    /// whether anything moved or is about to.
    pub(super) fn finish(&mut self, now: u64) -> Result<bool, Broken> {
        let mut any = false;
        for side in [Side::Left, Side::Right] {
            if self.place(side).is_up() {
                self.on(side, |place, _| {
                    any |= place.application.finish(&mut place.node);
                    Ok(())
                })?;
            }
            any |= self.turn(side, now)?;
        }
        self.check_credit()?;
        if self.left.is_over && self.right.is_over {
            self.begin_anew(now);
        }
        // The last completions arrive after everything else.
        any |= self.left.node.is_writing() || self.right.node.is_writing();
        let has_parted = self.has_parted() && !self.left.is_over && !self.right.is_over;
        let rests = has_parted || self.is_live() && self.connection.is_empty(self.left.joined);
        Ok(any || !rests)
    }

    /// Takes a turn of a node: looks after its wires, reads, then writes. Returns whether anything
    /// moved.
    fn turn(&mut self, side: Side, now: u64) -> Result<bool, Broken> {
        if self.is_still(side, now) {
            return Ok(false);
        }
        let mut moved = self.look_after_wires(side, now)?;
        let peer_joined = self.place(side.other()).joined;
        let Self {
            left,
            right,
            connection,
            ledger,
            ..
        } = self;
        let place = match side {
            Side::Left => left,
            Side::Right => right,
        };
        let node = &mut place.node;
        let mut turn = || {
            if place.is_over || node.stage == Stage::Before {
                return Ok(moved);
            }
            if node.stage == Stage::Suspended {
                node.idle(ledger)?;
            } else {
                let (inbound, outbound) = connection.wires(side, place.joined);
                node.is_behind = place.joined < peer_joined;
                moved |= node.receive(now, inbound, ledger)?;
                moved |= node.transmit(now, outbound, ledger)?;
            }
            node.check_footprint()?;
            Ok(moved)
        };
        turn().map_err(of(side))
    }

    // ---- The connection --------------------------------------------------------------

    fn clocks(&self, now: u64) -> [u64; 2] {
        [now + self.left.ahead, now + self.right.ahead]
    }

    /// Returns whether both sides have the newest wires and know of each other.
    fn is_live(&self) -> bool {
        let number = self.left.joined;
        let is_live = |place: &Place| place.is_up() && place.node.stage == Stage::Live;
        number == self.right.joined
            && is_live(&self.left)
            && is_live(&self.right)
            && self.connection.is_whole(number)
    }

    fn is_dead(&self, side: Side) -> bool {
        self.dead.is_some_and(|(dead, _)| dead == side)
    }

    fn is_still(&self, side: Side, now: u64) -> bool {
        self.is_dead(side) || !self.is_healed && self.place(side).stopped_until > now
    }

    // ---- Faults ----------------------------------------------------------------------

    fn disturb(&mut self, now: u64) {
        if let Some(crash) = self.options.crash.filter(|crash| crash.step == now) {
            self.faults.count(Fault::Crash, true);
            let after = self.random.below(self.options.redial_steps + 1);
            self.dead = Some((crash.side, now + after));
            self.connection.dies(crash.side, now);
        }
        self.run_anew(now);
        let is_live = self.is_live();
        if self.dead.is_none() {
            let is_writing = self.left.node.is_writing() || self.right.node.is_writing();
            let clocks = self.clocks(now);
            self.connection.step(now, clocks, is_live, is_writing);
        }
        for side in [Side::Left, Side::Right] {
            let stops = self.random.chance(self.options.stop_per_mille);
            let steps = self.random.below(self.options.stop_steps);
            let leaps = self.random.chance(self.options.leap_per_mille);
            let leap = self.random.below(2 * self.options.patience_steps);
            self.faults.count(Fault::Stop, stops && steps > 0);
            self.faults.count(Fault::Leap, leaps && leap > 0);
            let place = self.place_mut(side);
            if stops {
                place.stopped_until = now + steps;
            }
            if leaps {
                place.ahead += leap;
            }
        }
    }

    /// Ends all faults: bytes under way arrive, stopped sides continue, and broken connections are
    /// replaced.
    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        self.connection.heal();
        if let Some((_, at)) = &mut self.dead {
            *at = 0;
        }
        self.run_anew(0);
    }

    // ---- The end of a session --------------------------------------------------------

    /// Returns whether both sides have sent their goodbye.
    pub(super) fn has_parted(&self) -> bool {
        let has_parted = |place: &Place| place.is_over || place.node.has_parted();
        self.dead.is_none() && has_parted(&self.left) && has_parted(&self.right)
    }

    /// Ends the session of a side that has waited too long for new wires.
    fn give_up_if_lost(&mut self, now: u64) -> Result<(), Broken> {
        for side in [Side::Left, Side::Right] {
            let place = self.place(side);
            let waits = |at: u64| now + place.ahead - at > self.options.patience_steps;
            let gives_up = place.is_suspended() && place.suspended_at.is_some_and(waits);
            if gives_up && !self.is_still(side, now) {
                self.faults.count(Fault::Outage, true);
                self.session_is_over(side, now)?;
            }
        }
        Ok(())
    }

    /// Ends a side's session without a goodbye. What the side knows then must be true.
    fn session_is_over(&mut self, side: Side, now: u64) -> Result<(), Broken> {
        self.check_last_words(side).map_err(of(side))?;
        self.place_mut(side).is_over = true;
        self.connection.session_is_over(side, now);
        Ok(())
    }

    /// Restarts the dead side without its session, if it is time.
    fn run_anew(&mut self, now: u64) {
        if let Some((side, _)) = self.dead.take_if(|(_, at)| *at <= now) {
            self.faults.count(Fault::Restart, true);
            self.connection.restart(side, now);
            let place = self.place_mut(side);
            place.is_over = place.node.stage != Stage::Before;
        }
    }

    /// Checks the facts that a side's senders would report at the end of its session: the count of
    /// sent messages is exact, and those of received and acknowledged ones are not too high.
    fn check_last_words(&self, side: Side) -> Checked {
        let (here, there) = (&self.place(side).node, &self.place(side.other()).node);
        for (&end, sender) in &here.senders {
            let published = self.ledger.published(side, end);
            ensure!(
                sender.published == published,
                "end {end} has sent {published}, it says {}",
                sender.published
            );
            let receiver = sender.peer_end.and_then(|peer| there.receivers.get(&peer));
            // A receiver that does not know yet that the channel is open has reported nothing.
            if let Some(receiver) = receiver.filter(|receiver| receiver.is_answered) {
                receiver.check_told(&sender.heard)?;
            }
        }
        Ok(())
    }

    /// Begins anew when both sides are without a session, with the same programs or new ones.
    fn begin_anew(&mut self, now: u64) {
        self.sessions += 1;
        self.ledger = Ledger::default();
        for side in [Side::Left, Side::Right] {
            let (options, random) = (self.options.clone(), self.random.fork());
            let place = self.place_mut(side);
            let before = std::mem::replace(&mut place.node, Node::new(side, &options, random));
            (place.node.counts, place.node.trace) = (before.counts, before.trace);
            (place.suspended_at, place.is_over) = (None, false);
            let joined = std::mem::take(&mut place.joined);
            self.connection.refuse(side, joined);
            self.connection.session_is_over(side, now);
        }
    }

    // ---- The end of a run ------------------------------------------------------------

    /// Checks that every message published to an open end has arrived, that every wait is answered,
    /// and that memory kept for that is returned.
    pub(super) fn check_delivered(&self) -> Result<(), Broken> {
        for side in [Side::Left, Side::Right] {
            let (here, there) = (&self.place(side).node, &self.place(side.other()).node);
            for (end, sender) in &here.senders {
                let receiver = sender.peer_end.and_then(|peer| there.receivers.get(&peer));
                let is_done = receiver
                    .is_none_or(|receiver| !receiver.is_usable() || receiver.is_done(&self.ledger));
                let keeps = sender.is_usable() && sender.keeps_large();
                if !is_done || sender.waits() || keeps {
                    let what = format!("end {end} never came to rest: {sender:?} and {receiver:?}");
                    return Err((Some(side), what));
                }
            }
        }
        Ok(())
    }

    /// Closes every handle, in any order.
    pub(super) fn close_all(&mut self) -> Result<(), Broken> {
        for side in [Side::Left, Side::Right] {
            let senders_first = self.random.chance(500);
            self.on(side, |Place { node, .. }, ledger| {
                let senders: Vec<u32> = node.senders.keys().copied().collect();
                let receivers: Vec<u32> = node.receivers.keys().copied().collect();
                for is_sender in [senders_first, !senders_first] {
                    if is_sender {
                        senders
                            .iter()
                            .try_for_each(|&end| node.close_sender(end, ledger))?;
                    } else {
                        receivers
                            .iter()
                            .try_for_each(|&end| node.close_receiver(end, ledger))?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Opens and closes the counterpart of an end that was closed before it had one, if there is
    /// room. Such an end is kept, so that its late counterpart gets an orderly end. Returns whether
    /// there was one.
    pub(super) fn meet_leftover(&mut self, side: Side) -> Result<bool, Broken> {
        let other = &self.place(side.other()).node;
        let senders = other
            .senders
            .values()
            .map(|end| (Role::Receiver, end.name.clone()));
        let receivers = other
            .receivers
            .values()
            .map(|end| (Role::Sender, end.name.clone()));
        let Some((role, name)) = senders.chain(receivers).next() else {
            return Ok(false);
        };
        let window = ChannelWindow {
            messages: 1,
            bytes: self.options.window_bytes,
        };
        let mut any = false;
        self.on(side, |Place { node, .. }, ledger| {
            if let Some(end) = node.open(role, &name, 1, window, ledger)? {
                any = true;
                node.close_sender(end, ledger)?;
                node.close_receiver(end, ledger)?;
            }
            Ok(())
        })?;
        Ok(any)
    }

    /// Checks that nothing is left of channels that both sides have closed.
    pub(super) fn check_forgotten(&self) -> Result<(), Broken> {
        let [left, right] = [&self.left, &self.right].map(|place| place.node.session.footprint());
        let are_full = left.ends.min(right.ends) >= self.options.max_channels;
        let is_same = left.ends == right.peer_ends && right.ends == left.peer_ends;
        if !is_same || left.ends + right.ends > 0 && !are_full {
            let what = format!("ends are left although all are closed: {left:?} and {right:?}");
            return Err((None, what));
        }
        Ok(())
    }

    pub(super) fn say_goodbye(&mut self) -> Result<(), Broken> {
        let first = self.random.pick(&[Side::Left, Side::Right]);
        let both = self.random.chance(500);
        self.on(first, |place, ledger| place.node.end_session(None, ledger))?;
        if both {
            self.on(first.other(), |place, ledger| {
                place.node.end_session(None, ledger)
            })?;
        }
        Ok(())
    }

    pub(super) fn check_parted(&self) -> Result<(), Broken> {
        if self.has_parted() {
            return Ok(());
        }
        let [left, right] = [&self.left, &self.right].map(|place| place.node.session.footprint());
        Err((
            None,
            format!("the session does not end: {left:?} and {right:?}"),
        ))
    }

    /// Checks that everything in flight is within the granted credit, if both sides use the same
    /// wires.
    fn check_credit(&self) -> Result<(), Broken> {
        if !self.is_live() {
            return Ok(());
        }
        for side in [Side::Left, Side::Right] {
            let sent = &self.place(side).node.carried;
            let there = self.place(side.other());
            let arrived = &there.node.carried;
            let check = || {
                let Some(terms) = self.connection.terms(self.left.joined) else {
                    return Ok(());
                };
                let Some(lender) = &there.application.lender else {
                    return Ok(());
                };
                let granted = terms.credit - lender.free;
                let in_flight = sent.charged_out - arrived.charged_in;
                ensure!(
                    in_flight <= granted,
                    "{in_flight} in flight, granted: {granted}"
                );
                let frames = sent.frames_out - arrived.frames_in;
                let buffers = granted + reserved_buffers(side == Side::Right);
                ensure!(
                    terms.carriage == Carriage::Stream || frames <= buffers,
                    "{frames} frames in flight to {buffers} buffers"
                );
                Ok(())
            };
            check().map_err(of(side))?;
        }
        Ok(())
    }

    // ---- The dialed node ---------------------------------------------------------------

    pub(super) fn hub(&self) -> &Node {
        &self.right.node
    }

    pub(super) fn hub_mut(&mut self) -> &mut Node {
        &mut self.right.node
    }

    pub(super) fn sessions(&self) -> u64 {
        self.sessions
    }

    /// Returns what is on its way to the dialed node, if both sides use the same wires.
    pub(super) fn in_flight_to_hub(&self) -> Option<u64> {
        let (sent, arrived) = (&self.left.node.carried, &self.right.node.carried);
        self.is_live()
            .then(|| sent.charged_out - arrived.charged_in)
    }

    // ---- Results -----------------------------------------------------------------------

    /// Returns both nodes.
    pub(super) fn nodes(&self) -> [&Node; 2] {
        [&self.left.node, &self.right.node]
    }

    /// Returns the faults that happened.
    pub(super) fn faults(&self) -> Faults {
        let mut faults = self.faults;
        faults += self.connection.faults();
        for node in self.nodes() {
            faults += node.counts.faults;
        }
        faults
    }

    pub(super) fn coverage(&self) -> Coverage {
        let mut coverage = self.left.node.counts.coverage;
        coverage |= self.right.node.counts.coverage;
        coverage
    }

    pub(super) fn trace(&self) -> u64 {
        mix(self.left.node.trace ^ mix(self.right.node.trace))
    }

    fn on(
        &mut self,
        side: Side,
        act: impl FnOnce(&mut Place, &mut Ledger) -> Checked,
    ) -> Result<(), Broken> {
        let place = match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        };
        act(place, &mut self.ledger).map_err(of(side))
    }

    fn place(&self, side: Side) -> &Place {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }

    fn place_mut(&mut self, side: Side) -> &mut Place {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }
}

/// Returns a function that makes a rule broken by `side`.
fn of(side: Side) -> impl Fn(String) -> Broken {
    move |what| (Some(side), what)
}
