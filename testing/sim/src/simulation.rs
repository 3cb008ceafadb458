//! Nodes in pairs, wires and a clock; `step` moves everything once.
#![forbid(unsafe_code)]

use std::fmt;

use ibex_harness::draw::{Draw, mix};

use super::{
    Coverage, Faults, Side,
    hub::Hub,
    node::Counts,
    options::SimOptions,
    pair::{Broken, Pair},
};

/// A run in progress.
#[derive(Debug)]
pub struct Simulation {
    seed: u64,
    options: SimOptions,
    step: u64,
    pairs: Vec<Pair>,
    /// Capacity that the common right side shares, if there are several pairs.
    hub: Option<Hub>,
}

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Steps until both sides had sent their goodbye.
    pub steps: u64,
    /// Ends that found their counterpart.
    pub opened: u64,
    /// Ends whose counterpart did not fit.
    pub mismatched: u64,
    /// Channels whose sender gave up, as seen by their receiver.
    pub aborted: u64,
    /// Frames sent.
    pub frames: u64,
    /// Messages handed out.
    pub messages: u64,
    /// Large messages that arrived as a whole.
    pub large: u64,
    /// Large messages that were written into granted memory.
    pub written: u64,
    /// Large messages that were read from the sender's memory.
    pub read: u64,
    /// Number of times that a grant waited for other messages to be released.
    pub grants_waited: u64,
    /// Messages that were written into blocks granted ahead.
    pub landed: u64,
    /// Blocks that were returned.
    pub returned: u64,
    /// Number of times that a session resumed over new wires.
    pub resumed: u64,
    /// Records that were sent again after a resumption.
    pub replayed: u64,
    /// Handshakes behind which the first frames had already arrived.
    pub leftovers: u64,
    /// Number of times that sending waited for credit.
    pub out_of_credit: u64,
    /// Records that went out alone.
    pub lone: u64,
    /// Lone records that were handled as such at the first check.
    pub lone_in: u64,
    /// Faults that happened.
    pub faults: Faults,
    /// Pairs of state and event that the sessions met.
    pub coverage: Coverage,
    /// A hash of everything that was sent and handed out, in order.
    pub trace: u64,
}

/// A rule that a run broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// The seed that reproduces the run.
    pub seed: u64,
    /// The step at which the rule was broken.
    pub step: u64,
    /// The index of the peer.
    pub peer: usize,
    /// The side that broke the rule, if it was one.
    pub side: Option<Side>,
    /// The broken rule.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            step,
            peer,
            side,
            what,
        } = self;
        let side = side.map_or("both", |side| match side {
            Side::Left => "left",
            Side::Right => "right",
        });
        write!(f, "seed {seed}, step {step}, peer {peer}, {side}: {what}")
    }
}

impl Simulation {
    /// Creates the run of `seed`, with the options drawn from it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_options(seed, SimOptions::from_seed(seed))
    }

    /// Creates a run with given options.
    #[must_use]
    pub fn with_options(seed: u64, options: SimOptions) -> Self {
        // Options are drawn from the seed itself, so the run draws from another one.
        let mut random = Draw::new(!seed);
        let is_hub = options.peers > 1;
        let hub = is_hub.then(|| Hub::new(&options, &mut random));
        let pairs = (0..options.peers).map(|peer| {
            let mut options = options.clone();
            // The death of the common node ends all pairs; another node dies alone.
            options.crash = options
                .crash
                .filter(|crash| crash.side == Side::Right || peer == 0);
            Pair::new(&options, &mut random, is_hub)
        });
        Self {
            seed,
            step: 0,
            pairs: pairs.collect(),
            hub,
            options,
        }
    }

    /// Runs to the end: first busy and with faults; then everything begun is finished, closed, and
    /// the sides send goodbye.
    pub fn run(mut self) -> Result<Summary, Violation> {
        for _ in 0..self.options.busy_steps {
            self.step()?;
        }
        self.pairs.iter_mut().for_each(Pair::heal);
        self.finish_until_quiet()?;
        self.for_each(|pair| pair.check_delivered())?;
        self.for_each(Pair::close_all)?;
        self.finish_until_quiet()?;
        self.meet_leftovers()?;
        self.for_each(|pair| pair.check_forgotten())?;
        self.for_each(Pair::say_goodbye)?;
        self.finish_until_quiet()?;
        for (peer, pair) in self.pairs.iter().enumerate() {
            pair.check_parted()
                .map_err(|broken| self.violation(peer, broken))?;
        }
        Ok(self.summary())
    }

    /// Moves everything once, and checks what must hold at every moment.
    pub fn step(&mut self) -> Result<(), Violation> {
        for peer in 0..self.pairs.len() {
            let stepped = self.pairs[peer].step(self.step);
            stepped.map_err(|broken| self.violation(peer, broken))?;
            self.share(peer)?;
        }
        self.step += 1;
        Ok(())
    }

    /// Lets the common node share its capacity after a turn of one pair. Returns whether it did
    /// anything.
    fn share(&mut self, peer: usize) -> Result<bool, Violation> {
        let Some(hub) = &mut self.hub else {
            return Ok(false);
        };
        let any = hub.share(peer, &mut self.pairs);
        let checked = hub.check(peer, &self.pairs[peer]);
        checked.map_err(|what| self.violation(peer, (Some(Side::Right), what)))?;
        Ok(any)
    }

    fn violation(&self, peer: usize, (side, what): Broken) -> Violation {
        Violation {
            seed: self.seed,
            step: self.step,
            peer,
            side,
            what,
        }
    }

    // ---- The end of a run ------------------------------------------------------------

    /// Runs `act` on each session that has not ended.
    fn for_each(
        &mut self,
        mut act: impl FnMut(&mut Pair) -> Result<(), Broken>,
    ) -> Result<(), Violation> {
        for peer in 0..self.pairs.len() {
            let pair = &mut self.pairs[peer];
            if !pair.has_parted() {
                act(pair).map_err(|broken| self.violation(peer, broken))?;
            }
        }
        Ok(())
    }

    /// Lets the programs finish until nothing moves any more.
    fn finish_until_quiet(&mut self) -> Result<(), Violation> {
        // If many peers share little, each waits for all others.
        let patience = PATIENCE_STEPS * self.pairs.len() as u64;
        for _ in 0..patience {
            let mut any = false;
            for peer in 0..self.pairs.len() {
                let finished = self.pairs[peer].finish(self.step);
                any |= finished.map_err(|broken| self.violation(peer, broken))?;
                any |= self.share(peer)?;
            }
            self.step += 1;
            if !any {
                return Ok(());
            }
        }
        let what = format!("no rest after {patience} steps without faults");
        Err(self.violation(0, (None, what)))
    }

    /// Opens and closes counterparts of leftover ends, until there are none.
    fn meet_leftovers(&mut self) -> Result<(), Violation> {
        for _ in 0..2 * self.options.max_channels {
            let mut any = false;
            for side in [Side::Left, Side::Right] {
                self.for_each(|pair| {
                    any |= pair.meet_leftover(side)?;
                    Ok(())
                })?;
                self.finish_until_quiet()?;
            }
            if !any {
                break;
            }
        }
        Ok(())
    }

    fn summary(&self) -> Summary {
        let mut summary = Summary {
            steps: self.step,
            ..Summary::default()
        };
        for pair in &self.pairs {
            for node in pair.nodes() {
                summary.add(&node.counts);
            }
            summary.faults += pair.faults();
            summary.coverage |= pair.coverage();
            summary.trace = mix(summary.trace ^ pair.trace());
        }
        summary
    }
}

impl Summary {
    fn add(&mut self, counts: &Counts) {
        self.opened += counts.opened;
        self.mismatched += counts.mismatched;
        self.aborted += counts.aborted;
        self.frames += counts.frames;
        self.messages += counts.handed_out;
        self.large += counts.large;
        self.written += counts.written;
        self.read += counts.read;
        self.grants_waited += counts.grants_waited;
        self.landed += counts.landed;
        self.returned += counts.returned;
        self.resumed += counts.resumed;
        self.replayed += counts.replayed;
        self.leftovers += counts.leftovers;
        self.out_of_credit += counts.out_of_credit;
        self.lone += counts.lone;
        self.lone_in += counts.lone_in;
    }
}

/// Steps without faults that suffice for anything, for each peer.
const PATIENCE_STEPS: u64 = 20_000;
