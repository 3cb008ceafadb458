//! The receiving side of session credit.
#![forbid(unsafe_code)]

use super::{CreditShrank, grow};

/// The receiving side: the credit that the peer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditGrant {
    /// The credit that may be out at a time, with the floor.
    lent: u64,
    /// The part of `lent` that is never recalled.
    floor: u64,
    /// The credit that came back in all: as frames or surrendered.
    back: u64,
    /// The total credit that the peer was notified of.
    notified: u64,

    /// The part of `lent` that goes to the engine when it comes back.
    parting: u64,
    /// The credit recalled by messages, sent or due, in all.
    recalled: u64,
    /// The recalled credit that the peer was notified of.
    recall_notified: u64,
    /// No credit is lent beyond `lent`: the peer gets more only when it asks.
    must_ask: bool,
    /// The peer is to be notified of that.
    ask_is_due: bool,
    /// The credit surrendered in all.
    surrendered: u64,

    // Report for the broker.
    report: CreditReport,
}

/// Changes of a session for the engine's broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditReport {
    /// The amount of recalled credit that has come back.
    pub returned: u64,
    /// Credit was surrendered: the peer had nothing to send.
    pub is_idle: bool,
    /// The peer could use more than it is lent.
    pub wants: bool,
    /// The peer has used all that it was lent, and has more to send.
    pub is_busy: bool,
    /// The wires are gone: nothing can arrive any more that would use credit.
    pub is_suspended: bool,
}

/// A peer sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{used} of credit were used in all, and {granted} were granted")]
pub struct CreditOverrun {
    /// The credit used in all, surrendered credit included.
    pub used: u64,
    /// The credit granted in all.
    pub granted: u64,
}

/// The error in a surrender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSurrender {
    /// The peer surrendered more than was recalled.
    #[error("{surrendered} of credit were surrendered in all, and {recalled} were recalled")]
    NotRecalled {
        /// The credit surrendered in all.
        surrendered: u64,
        /// The credit recalled in all.
        recalled: u64,
    },
    /// The peer surrendered more than it has.
    #[error(transparent)]
    NotHeld(#[from] CreditOverrun),
    /// The total is less than before.
    #[error(transparent)]
    Shrank(#[from] CreditShrank),
}

/// The term for which credit is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Credit is lent again whenever it comes back, until it is recalled.
    Standing,
    /// Credit is lent once, because others wait for their turn.
    Turn,
    /// Like [`Standing`](Self::Standing), but the credit is never recalled.
    Floor,
}

impl CreditGrant {
    /// Lends the peer what the handshake tells it.
    #[must_use]
    pub fn new(lent: u64) -> Self {
        Self {
            lent,
            floor: 0,
            back: 0,
            notified: lent,
            parting: 0,
            recalled: 0,
            recall_notified: 0,
            must_ask: false,
            ask_is_due: false,
            surrendered: 0,
            report: CreditReport::default(),
        }
    }

    /// Returns the credit that the engine lends this session.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// Returns the credit that came back in all: it grows while the peer sends.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.back
    }

    /// Returns whether the peer's credit covers a frame of that cost.
    #[inline]
    #[must_use]
    pub fn covers(&self, cost: u64) -> bool {
        self.back.saturating_add(cost) <= self.notified
    }

    /// Returns whether the peer's credit covers a frame of that cost and the frame leads to no
    /// changes: no grant becomes due by it, and none of the credit was recalled.
    #[inline]
    #[must_use]
    pub fn covers_quietly(&self, cost: u64) -> bool {
        let becomes_due = || is_much(self.unnotified() + cost, self.lent) && !self.is_owed_much();
        self.covers(cost) && self.parting == 0 && !becomes_due()
    }

    /// Notes that a frame of that cost has arrived, and that its memory is replaced already.
    #[inline]
    pub fn arrived(&mut self, cost: u64) -> Result<(), CreditOverrun> {
        let used = self.back.saturating_add(cost);
        if !self.covers(cost) {
            let granted = self.notified;
            return Err(CreditOverrun { used, granted });
        }
        self.back = used;
        let parting = self.parting.min(cost);
        self.parting -= parting;
        self.give_up(parting);
        Ok(())
    }

    /// Like [`arrived`](Self::arrived), for a frame that is [covered
    /// quietly](Self::covers_quietly).
    #[inline]
    pub fn arrived_quietly(&mut self, cost: u64) {
        debug_assert!(self.covers_quietly(cost));
        self.back += cost;
    }

    /// Lends more credit.
    pub fn give(&mut self, credit: u64, term: Term) {
        self.lent += credit;
        match term {
            Term::Standing => {}
            Term::Turn => {
                self.parting += credit;
                self.recalled += credit;
            }
            Term::Floor => self.floor += credit,
        }
        self.must_ask = term == Term::Turn;
        self.ask_is_due = self.must_ask;
    }

    /// Takes this much back, at most as much as was not recalled before. Credit that is not out
    /// comes back at once, the rest as it returns. If nothing is left then, the peer is notified that
    /// it has to ask.
    pub fn recall(&mut self, credit: u64) {
        let credit = credit.min(self.lent - self.parting);
        let here = credit.min(self.lent - self.out().max(self.parting));
        self.give_up(here);
        let out = credit - here;
        self.parting += out;
        self.recalled += out;
        self.must_ask = self.lent == self.parting;
        self.ask_is_due = self.must_ask;
    }

    /// Takes in that the peer gave back credit that it could not use, with the new total.
    pub fn surrendered(&mut self, surrendered: u64) -> Result<(), BadSurrender> {
        let mut before = self.surrendered;
        let more = grow("surrenders of credit", &mut before, surrendered)?;
        if surrendered > self.recall_notified {
            let recalled = self.recall_notified;
            return Err(BadSurrender::NotRecalled {
                surrendered,
                recalled,
            });
        }
        self.arrived(more)?;
        self.surrendered = surrendered;
        self.report.is_idle = true;
        Ok(())
    }

    /// Takes in that the peer waits for credit, and knew of `granted` when it sent the wish.
    /// Returns whether that can be.
    #[must_use]
    pub fn is_wanted(&mut self, granted: u64) -> bool {
        // A wish that was made with less knowledge has been answered already.
        self.report.wants |= granted == self.notified;
        granted <= self.notified
    }

    /// Notes that the frame that arrived just now took the peer's last credit, and that more waits
    /// behind it.
    pub fn used_up(&mut self) {
        // If more was granted, the wish has been answered already.
        let is_change = self.back == self.notified;
        self.report.wants |= is_change;
        self.report.is_busy |= is_change;
    }

    /// The grant to tell: once more than half of what is lent is owed, so that as much cannot be
    /// owed again before the peer was notified; or with a recall.
    #[must_use]
    pub fn owed(&self) -> Option<u64> {
        let owed = self.unnotified();
        let is_due = self.is_owed_much() || self.recall_is_due() && owed > 0;
        is_due.then_some(self.notified + owed)
    }

    /// Returns whether so much credit came back that a grant is sent for that alone. A frame's
    /// arrival brings no other changes to report.
    #[inline]
    #[must_use]
    pub fn is_owed_much(&self) -> bool {
        is_much(self.unnotified(), self.lent)
    }

    /// Notes that `grant` was put into a frame. A peer that has used half of its floor, and has
    /// nothing else, could use more.
    pub fn notified(&mut self, grant: u64) {
        self.report.wants |= self.lent == self.floor && self.back > 0;
        self.notified = self.notified.max(grant);
    }

    /// Notes that the wires are gone.
    pub fn suspend(&mut self) {
        self.report = CreditReport {
            is_suspended: true,
            ..CreditReport::default()
        };
    }

    /// Notes that the peer had to wait for credit, and got some in the meantime.
    pub fn was_short(&mut self) {
        self.report.wants = true;
    }

    /// Returns whether a recall has to be sent.
    fn recall_is_due(&self) -> bool {
        self.recalled > self.recall_notified || self.ask_is_due
    }

    /// The recall to tell, and whether it says that nothing is left. Put the recall into a frame
    /// with [`owed`](Self::owed), and call [`recall_notified`](Self::recall_notified) afterwards.
    #[must_use]
    pub fn recall_due(&self) -> Option<(u64, bool)> {
        self.recall_is_due()
            .then_some((self.recalled, self.must_ask))
    }

    /// Notes that the recall was put into a frame.
    pub fn recall_notified(&mut self) {
        self.recall_notified = self.recalled;
        self.ask_is_due = false;
    }

    /// Takes the changes since the last report.
    pub fn take_report(&mut self) -> CreditReport {
        std::mem::take(&mut self.report)
    }

    /// Returns the credit that came back or was lent and that the peer can be notified of.
    fn unnotified(&self) -> u64 {
        self.lent.saturating_sub(self.out())
    }

    /// Returns the credit that the peer may have in flight or keep.
    fn out(&self) -> u64 {
        self.notified - self.back
    }

    fn give_up(&mut self, credit: u64) {
        self.lent -= credit;
        self.report.returned += credit;
    }
}

/// Returns whether `unnotified` credit is worth a frame of its own.
#[inline]
fn is_much(unnotified: u64, lent: u64) -> bool {
    unnotified > lent / 2
}
