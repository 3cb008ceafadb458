//! Two nodes, two wires and a clock; `step` moves everything once.
#![forbid(unsafe_code)]

use std::fmt;

use super::{
    Checked, Coverage, Fault, Faults, Side,
    application::Application,
    ensure,
    ledger::Ledger,
    node::Node,
    options::SimOptions,
    random::{Random, mix},
    wire::Wire,
};
use crate::engine::{
    carriage::Carriage, channel_window::ChannelWindow, control::Role,
    reserved_buffer::reserved_buffers,
};

/// A run in progress.
#[derive(Debug)]
pub struct Simulation {
    seed: u64,
    options: SimOptions,
    random: Random,
    step: u64,
    ledger: Ledger,
    left: Place,
    right: Place,
    /// The side that died.
    crashed: Option<Side>,
}

/// A node, its program, and the wire on which it sends.
#[derive(Debug)]
struct Place {
    node: Node,
    application: Application,
    wire: Wire,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Steps until both sides had said goodbye.
    pub steps: u64,
    /// Ends that found their counterpart.
    pub opened: u64,
    /// Ends that found one that does not fit.
    pub mismatched: u64,
    /// Frames sent.
    pub frames: u64,
    /// Messages handed out.
    pub messages: u64,
    /// Large ones that arrived whole.
    pub large: u64,
    /// Those of them that were written into granted memory.
    pub written: u64,
    /// Messages that were written into blocks that were granted ahead.
    pub landed: u64,
    /// Such blocks that were given back.
    pub returned: u64,
    /// Times that sending waited for credit.
    pub out_of_credit: u64,
    /// Records that went out alone.
    pub lone: u64,
    /// Such that were taken for that at the first look.
    pub lone_in: u64,
    /// What went wrong.
    pub faults: Faults,
    /// What the sessions went through.
    pub coverage: Coverage,
    /// A hash of everything that was sent and handed out, in order.
    pub trace: u64,
}

/// A rule that a run broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// What makes the run again.
    pub seed: u64,
    /// When.
    pub step: u64,
    /// On which side, where it is one side's.
    pub side: Option<Side>,
    /// What was broken.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            step,
            side,
            what,
        } = self;
        let side = side.map_or("both", |side| match side {
            Side::Left => "left",
            Side::Right => "right",
        });
        write!(f, "seed {seed}, step {step}, {side}: {what}")
    }
}

impl Simulation {
    /// The run of `seed`, with the options that belong to it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_options(seed, SimOptions::from_seed(seed))
    }

    /// A run with options of one's own.
    #[must_use]
    pub fn with_options(seed: u64, options: SimOptions) -> Self {
        // Options are drawn from the seed itself, so the run draws from another one.
        let mut random = Random::new(!seed);
        let mut place = |side| Place {
            node: Node::new(side, &options),
            application: Application::new(&options, random.fork()),
            wire: Wire::new(&options, random.fork()),
        };
        let (left, right) = (place(Side::Left), place(Side::Right));
        Self {
            seed,
            random,
            step: 0,
            ledger: Ledger::default(),
            left,
            right,
            crashed: None,
            options,
        }
    }

    /// Runs to the end: busy with faults, then all that is begun is finished, closed and
    /// said goodbye to.
    pub fn run(mut self) -> Result<Summary, Violation> {
        for _ in 0..self.options.busy_steps {
            self.step()?;
            if self.is_over() {
                return Ok(self.summary());
            }
        }
        self.left.wire.heal();
        self.right.wire.heal();
        self.finish_until_quiet()?;
        if self.crashed.is_none() && !self.is_over() {
            self.check_delivered()?;
            self.close_all()?;
            self.meet_leftovers()?;
            self.say_goodbye()?;
        }
        self.check_over()?;
        Ok(self.summary())
    }

    /// Moves everything once, and checks what must hold at every moment.
    pub fn step(&mut self) -> Result<(), Violation> {
        if let Some(crash) = self.options.crash.filter(|crash| crash.step == self.step) {
            self.crash(crash.side);
        }
        for side in [Side::Left, Side::Right] {
            self.on(side, |place, ledger| {
                place.application.act(&mut place.node, ledger)
            })?;
            self.turn(side)?;
        }
        self.step += 1;
        self.check_credit()
    }

    /// One turn of a node: reads, then writes. Whether anything moved.
    fn turn(&mut self, side: Side) -> Result<bool, Violation> {
        if self.crashed == Some(side) {
            return Ok(false);
        }
        let now = self.step;
        let (here, there) = match side {
            Side::Left => (&mut self.left, &mut self.right),
            Side::Right => (&mut self.right, &mut self.left),
        };
        let ledger = &self.ledger;
        let moved = here
            .node
            .receive(now, &mut there.wire, ledger)
            .and_then(|received| {
                let sent = here.node.transmit(now, &mut here.wire, ledger)?;
                here.node.check_footprint()?;
                Ok(received || sent)
            });
        moved.map_err(|what| self.violation(Some(side), what))
    }

    /// A side dies: what it did not write is lost, and it reads no more.
    fn crash(&mut self, side: Side) {
        self.crashed = Some(side);
        self.left.wire.cut();
        self.right.wire.cut();
    }

    fn on(
        &mut self,
        side: Side,
        act: impl FnOnce(&mut Place, &mut Ledger) -> Checked,
    ) -> Result<(), Violation> {
        if self.crashed == Some(side) {
            return Ok(());
        }
        let place = match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        };
        act(place, &mut self.ledger).map_err(|what| self.violation(Some(side), what))
    }

    fn violation(&self, side: Option<Side>, what: String) -> Violation {
        Violation {
            seed: self.seed,
            step: self.step,
            side,
            what,
        }
    }

    /// Whether both sides have said goodbye, or the survivor has read what was left.
    fn is_over(&self) -> bool {
        let has_parted = |node: &Node| {
            node.has_heard_goodbye && node.session.said_goodbye() && node.is_flushed()
        };
        match self.crashed {
            Some(side) => self.place(side).wire.is_at_end(),
            None => has_parted(&self.left.node) && has_parted(&self.right.node),
        }
    }

    fn place(&self, side: Side) -> &Place {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }

    // ---- The end of a run ------------------------------------------------------------

    /// Lets the programs finish what they have until nothing moves any more.
    fn finish_until_quiet(&mut self) -> Result<(), Violation> {
        for _ in 0..PATIENCE_STEPS {
            let mut any = false;
            for side in [Side::Left, Side::Right] {
                self.on(side, |place, _| {
                    any |= place.application.finish(&mut place.node);
                    Ok(())
                })?;
                any |= self.turn(side)?;
            }
            self.step += 1;
            self.check_credit()?;
            let is_empty = self.left.wire.is_empty() && self.right.wire.is_empty();
            if !any && (is_empty || self.crashed.is_some()) {
                return Ok(());
            }
        }
        Err(self.violation(
            None,
            format!("no rest after {PATIENCE_STEPS} steps without faults"),
        ))
    }

    /// Everything that was published to an open end is there, and who waited is answered.
    fn check_delivered(&self) -> Result<(), Violation> {
        for side in [Side::Left, Side::Right] {
            let (here, there) = (&self.place(side).node, &self.place(side.other()).node);
            for (end, sender) in &here.senders {
                let receiver = sender.peer_end.and_then(|peer| there.receivers.get(&peer));
                let is_done = receiver
                    .is_none_or(|receiver| !receiver.is_usable() || receiver.is_done(&self.ledger));
                if !is_done || sender.waits() {
                    let what = format!("end {end} never came to rest: {sender:?} and {receiver:?}");
                    return Err(self.violation(Some(side), what));
                }
            }
        }
        Ok(())
    }

    /// Every handle goes, in any order.
    fn close_all(&mut self) -> Result<(), Violation> {
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
        self.finish_until_quiet()
    }

    /// An end that was closed before its counterpart was opened is kept, so that who opens
    /// the counterpart later gets an orderly end. Here everyone does, as far as there is
    /// room, and then nothing may be left.
    fn meet_leftovers(&mut self) -> Result<(), Violation> {
        for _ in 0..2 * self.options.max_channels {
            let mut any = false;
            for side in [Side::Left, Side::Right] {
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
                    continue;
                };
                let window = ChannelWindow {
                    messages: 1,
                    bytes: self.options.window_bytes,
                };
                self.on(side, |Place { node, .. }, ledger| {
                    if let Some(end) = node.open(role, &name, 1, window, ledger)? {
                        any = true;
                        node.close_sender(end, ledger)?;
                        node.close_receiver(end, ledger)?;
                    }
                    Ok(())
                })?;
                self.finish_until_quiet()?;
            }
            if !any {
                break;
            }
        }
        let [left, right] = [&self.left, &self.right].map(|place| place.node.session.footprint());
        let are_full = left.ends.min(right.ends) >= self.options.max_channels;
        let is_same = left.ends == right.peer_ends && right.ends == left.peer_ends;
        if !is_same || left.ends + right.ends > 0 && !are_full {
            let what = format!("ends are left although all are closed: {left:?} and {right:?}");
            return Err(self.violation(None, what));
        }
        Ok(())
    }

    fn say_goodbye(&mut self) -> Result<(), Violation> {
        let first = self.random.pick(&[Side::Left, Side::Right]);
        let both = self.random.chance(500);
        self.on(first, |place, ledger| place.node.end_session(ledger))?;
        if both {
            self.on(first.other(), |place, ledger| {
                place.node.end_session(ledger)
            })?;
        }
        self.finish_until_quiet()
    }

    fn check_over(&self) -> Result<(), Violation> {
        if self.is_over() {
            return Ok(());
        }
        let [left, right] = [&self.left, &self.right].map(|place| place.node.session.footprint());
        Err(self.violation(
            None,
            format!("the session does not end: {left:?} and {right:?}"),
        ))
    }

    /// What is in flight is within what was granted.
    fn check_credit(&self) -> Result<(), Violation> {
        for side in [Side::Left, Side::Right] {
            let sent = &self.place(side).node.counts;
            let arrived = &self.place(side.other()).node.counts;
            let check = || {
                let lender = &self.place(side.other()).application.lender;
                let granted = self.options.credit - lender.free;
                let in_flight = sent.charged_out - arrived.charged_in;
                ensure!(
                    in_flight <= granted,
                    "{in_flight} in flight, granted: {granted}"
                );
                let frames = sent.frames - arrived.frames_in;
                let buffers = granted + reserved_buffers(side == Side::Right);
                ensure!(
                    self.options.carriage == Carriage::Stream || frames <= buffers,
                    "{frames} frames in flight to {buffers} buffers"
                );
                Ok(())
            };
            check().map_err(|what| self.violation(Some(side), what))?;
        }
        Ok(())
    }

    fn summary(&self) -> Summary {
        let [left, right] = [&self.left.node, &self.right.node];
        let (l, r) = (&left.counts, &right.counts);
        let (mut faults, mut coverage) = (l.faults, l.coverage);
        for more in [r.faults, self.left.wire.faults, self.right.wire.faults] {
            faults += more;
        }
        faults.count(Fault::Crash, self.crashed.is_some());
        coverage |= r.coverage;
        Summary {
            steps: self.step,
            opened: l.opened + r.opened,
            mismatched: l.mismatched + r.mismatched,
            frames: l.frames + r.frames,
            messages: l.handed_out + r.handed_out,
            large: l.large + r.large,
            written: l.written + r.written,
            landed: l.landed + r.landed,
            returned: l.returned + r.returned,
            out_of_credit: l.out_of_credit + r.out_of_credit,
            lone: l.lone + r.lone,
            lone_in: l.lone_in + r.lone_in,
            faults,
            coverage,
            trace: mix(left.trace ^ mix(right.trace)),
        }
    }
}

/// How many steps without faults are enough for anything.
const PATIENCE_STEPS: u64 = 20_000;
