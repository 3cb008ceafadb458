//! The wires between two nodes: they break, each side learns of it when it does, and there
//! are new ones.
//!
//! Rules:
//!
//! 1. Every pair of wires has a number, its epoch. A side reads and writes those of the epoch
//!    that it has joined, broken or not, until it notices that they are broken or hears of
//!    newer ones.
//! 2. When wires break, a part of what is on them arrives, up to any byte, for as long as a
//!    side reads them. What is written to them from then on is lost.
//! 3. The side that dials has new ones some time after it has noticed; each side joins them
//!    when it does. They may break before that.
//! 4. The side that dials may have dialed before for some that it gave up. Those come late:
//!    when the other side has newer ones, and must not leave these for them.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::{Fault, Faults, Side, options::SimOptions, random::Random, wire::Wire};
use crate::engine::{carriage::Carriage, session::WireTerms};

/// All wires that a side still uses.
#[derive(Debug)]
pub(super) struct Connection {
    random: Random,
    options: SimOptions,
    epoch: u64,
    lines: BTreeMap<u64, Lines>,
    /// The side that accepts is the last to learn of what happened last.
    lags: bool,
    /// When there are new ones, once the old ones are known to be broken.
    redial: Option<u64>,
    /// The epoch of wires that were given up, until they come to the side that accepts, and
    /// when they do.
    late: Option<(u64, u64)>,
    is_healed: bool,
    faults: Faults,
}

/// The wires of an epoch.
#[derive(Debug)]
pub(super) struct Lines {
    terms: Terms,
    /// By the side that writes.
    wires: [Wire; 2],
    is_broken: bool,
    /// When each side joins.
    joins: [u64; 2],
    /// When each side notices that they are broken.
    notices: [u64; 2],
}

/// What the wires of an epoch are like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) carriage: Carriage,
    /// What either side may let the other keep in flight.
    pub(super) credit: u64,
    /// What each side lends at first.
    lent: [u64; 2],
    writes: bool,
    immediate: bool,
}

impl Terms {
    /// Those of a session's first wires.
    pub(super) fn first(options: &SimOptions) -> Self {
        Self {
            carriage: options.carriage,
            credit: options.credit,
            lent: [options.credit, lent_at_first(options, options.credit)],
            writes: options.writes,
            // Only writes into buffers have it.
            immediate: options.immediate && options.carriage != Carriage::Stream,
        }
    }

    /// As a side's session takes them.
    pub(super) fn of(&self, side: Side) -> WireTerms {
        WireTerms {
            carriage: self.carriage,
            our_credit: self.lent[side as usize],
            peer_credit: self.lent[side.other() as usize],
            writes: self.writes,
            immediate: self.immediate,
        }
    }
}

impl Connection {
    pub(super) fn new(options: &SimOptions, random: Random) -> Self {
        let mut connection = Self {
            random,
            options: options.clone(),
            epoch: 0,
            lines: BTreeMap::new(),
            lags: false,
            redial: None,
            late: None,
            is_healed: false,
            faults: Faults::default(),
        };
        connection.begin();
        connection
    }

    /// The first wires of a session.
    pub(super) fn begin(&mut self) {
        self.forget_before(u64::MAX);
        (self.redial, self.late) = (None, None);
        self.add_lines(0, Terms::first(&self.options.clone()), [0; 2]);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// No more breaks, and whatever is to come comes now.
    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        for lines in self.lines.values_mut() {
            lines.wires.iter_mut().for_each(Wire::heal);
            (lines.joins, lines.notices) = ([0; 2], [0; 2]);
        }
        self.redial = self.redial.and(Some(0));
    }

    /// Wires may break, more often while they are written to memory over. `is_live` tells
    /// whether both sides use the newest ones and have said what they know.
    pub(super) fn step(&mut self, now: u64, is_live: bool, is_writing: bool) {
        let options = &self.options;
        let often = match (is_live, is_writing) {
            (true, false) => options.break_per_mille,
            (true, true) => 100 * options.break_per_mille,
            (false, _) => options
                .break_per_mille
                .max(options.break_again_per_mille / 10),
        };
        let breaks = self.random.chance(often) || options.break_at == Some(now);
        if breaks && !self.is_healed && self.is_whole() {
            self.faults.count(Fault::Break, true);
            self.faults.count(Fault::BreakAgain, !is_live);
            self.break_newest(now, if is_writing { 500 } else { 125 });
        }
    }

    /// So often the side that dials has new ones while the other still reads these.
    pub(super) fn break_newest(&mut self, now: u64, lags_per_mille: u64) {
        let within = self.options.notice_steps + 1;
        self.lags = self.random.chance(lags_per_mille);
        let notices = match self.lags {
            true => [now, now + LAG_STEPS],
            false => [(); 2].map(|()| now + self.random.below(within)),
        };
        let linger = if self.lags { LAG_STEPS / 2 } else { 0 };
        let lines = self.newest();
        lines.is_broken = true;
        lines.notices = notices;
        lines
            .wires
            .iter_mut()
            .for_each(|wire| wire.cut(now, linger));
    }

    /// Whether a side that is in `epoch` is to join newer wires now.
    pub(super) fn is_to_join(&self, side: Side, epoch: u64, now: u64) -> bool {
        epoch < self.epoch && self.lines[&self.epoch].joins[side as usize] <= now
    }

    /// Whether a side that is in `epoch` notices now that its wires are broken.
    pub(super) fn is_to_notice(&self, side: Side, epoch: u64, now: u64) -> bool {
        let lines = &self.lines[&epoch];
        lines.is_broken && lines.notices[side as usize] <= now
    }

    /// Whether the newest wires are whole.
    pub(super) fn is_whole(&self) -> bool {
        !self.lines[&self.epoch].is_broken
    }

    pub(super) fn terms(&self) -> Terms {
        self.lines[&self.epoch].terms
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.lines[&self.epoch].wires.iter().all(Wire::is_empty)
    }

    /// The wires that a side in `epoch` reads and writes.
    pub(super) fn wires(&mut self, side: Side, epoch: u64) -> (&mut Wire, &mut Wire) {
        let lines = self
            .lines
            .get_mut(&epoch)
            .expect("its side has not left them");
        let [left, right] = &mut lines.wires;
        match side {
            Side::Left => (right, left),
            Side::Right => (left, right),
        }
    }

    /// The side that dials knows that the wires are broken.
    pub(super) fn dial(&mut self, now: u64) {
        let never = !self.is_healed && self.random.chance(self.options.outage_per_mille);
        let after = match (self.lags, never) {
            (true, _) => 0,
            (_, true) => NEVER,
            _ => self.random.below(self.options.redial_steps + 1),
        };
        self.redial = Some(if self.is_healed { now } else { now + after });
    }

    /// New wires, if it is time. Both sides have to live.
    pub(super) fn redial(&mut self, now: u64) {
        if self.redial.is_none_or(|redial| redial > now) {
            return;
        }
        self.redial = None;
        let terms = self.draw_terms();
        let within = match self.is_healed {
            true => 1,
            false => self.options.delay_steps + self.options.notice_steps + 1,
        };
        let joins = match self.lags && !self.is_healed {
            true => [now, now + LAG_STEPS],
            false => [(); 2].map(|()| now + self.random.below(within)),
        };
        let mut epoch = self.epoch + 1;
        if !self.is_healed && self.random.chance(self.options.late_per_mille) {
            let after = self.random.below(LATE_STEPS);
            self.late = Some((epoch, now + after));
            epoch += 1;
        }
        self.add_lines(epoch, terms, joins);
    }

    /// Wires that were given up come to a side that is in `epoch`, if some do.
    pub(super) fn take_late(&mut self, epoch: u64, now: u64) -> Option<u64> {
        let late = self.late.take_if(|(late, at)| *late < epoch && *at <= now);
        self.faults.count(Fault::LateConnection, late.is_some());
        late.map(|(late, _)| late)
    }

    fn draw_terms(&mut self) -> Terms {
        let (before, first) = (self.terms().carriage, Terms::first(&self.options));
        let (carriage, credit) = match self.options.fails_over {
            Some(credit) if self.random.chance(500) => (Carriage::Stream, credit),
            _ => (first.carriage, first.credit),
        };
        let mut lend = || match self.random.below(3) {
            0 => self.random.below(credit + 1),
            1 => 0,
            _ => credit,
        };
        let lent = [lend(), lent_at_first(&self.options, lend())];
        self.faults.count(Fault::FailOver, carriage != before);
        self.faults
            .count(Fault::LostBuffers, lent.iter().any(|&lent| lent < credit));
        Terms {
            carriage,
            credit,
            lent,
            writes: first.writes && self.random.chance(700),
            immediate: first.immediate && carriage != Carriage::Stream,
        }
    }

    fn add_lines(&mut self, epoch: u64, terms: Terms, joins: [u64; 2]) {
        let wires = [(); 2].map(|()| {
            let mut wire = Wire::new(&self.options, self.random.fork());
            if self.is_healed {
                wire.heal();
            }
            wire
        });
        self.epoch = epoch;
        self.lines.insert(
            epoch,
            Lines {
                terms,
                wires,
                is_broken: false,
                joins,
                notices: [0; 2],
            },
        );
    }

    /// Nobody uses wires of older epochs any more.
    pub(super) fn forget_before(&mut self, epoch: u64) {
        while let Some(oldest) = self
            .lines
            .first_entry()
            .filter(|lines| *lines.key() < epoch)
        {
            for wire in oldest.remove().wires {
                self.faults += wire.faults;
            }
        }
    }

    pub(super) fn faults(&self) -> Faults {
        let mut faults = self.faults;
        for wire in self.lines.values().flat_map(|lines| &lines.wires) {
            faults += wire.faults;
        }
        faults
    }

    fn newest(&mut self) -> &mut Lines {
        self.lines
            .get_mut(&self.epoch)
            .expect("there are always some")
    }
}

/// A broker lends when it hears of a session, and nothing before.
fn lent_at_first(options: &SimOptions, credit: u64) -> u64 {
    if options.peers > 1 { 0 } else { credit }
}

/// When wires that were given up come, at the latest, unless newer ones come later still.
const LATE_STEPS: u64 = 100;
/// How much later the other side learns of a break then.
const LAG_STEPS: u64 = 40;
/// Later than any run lasts.
const NEVER: u64 = 1 << 40;
