//! The receiving side of session credit.
#![forbid(unsafe_code)]

use super::{CreditShrank, grow};

/// The receiving side: what we let the peer send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditGrant {
    /// What may be out at a time.
    lent: u64,
    /// What came back in all: as frames or surrendered.
    back: u64,
    /// What the peer was told that it may have used in all.
    told: u64,

    /// Of what is lent: goes to the engine when it comes back.
    parting: u64,
    /// What was recalled by messages, and is to be.
    recalled: u64,
    /// The same as far as the peer was told.
    recall_told: u64,
    /// Nothing is lent beyond that: more comes only to who asks.
    must_ask: bool,
    /// The peer is to hear that.
    ask_is_due: bool,
    /// What was surrendered in all.
    surrendered: u64,

    // For the broker.
    report: CreditReport,
}

/// What the broker of the engine has to hear about a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditReport {
    /// So much of what was recalled has come back.
    pub returned: u64,
    /// Some of it was surrendered: the peer had nothing to send.
    pub is_idle: bool,
    /// The peer could use more than it is lent.
    pub wants: bool,
    /// It has used all that it was lent, and more waits behind that.
    pub is_busy: bool,
}

/// A peer sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{used} of credit were used in all, and {granted} were granted")]
pub struct CreditOverrun {
    /// What was used in all, surrendered credit counted.
    pub used: u64,
    /// What was granted in all.
    pub granted: u64,
}

/// What is wrong with a surrender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSurrender {
    /// More than was recalled.
    #[error("{surrendered} of credit were surrendered in all, and {recalled} were recalled")]
    NotRecalled {
        /// What was surrendered in all.
        surrendered: u64,
        /// What was recalled in all.
        recalled: u64,
    },
    /// More than the peer has.
    #[error(transparent)]
    NotHeld(#[from] CreditOverrun),
    /// Less than before.
    #[error(transparent)]
    Shrank(#[from] CreditShrank),
}

/// For how long credit is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// It is lent again whenever it comes back, until it is recalled.
    Standing,
    /// Once: others wait for their turn.
    Turn,
}

impl CreditGrant {
    /// Lends the peer what the handshake tells it.
    #[must_use]
    pub fn new(lent: u64) -> Self {
        Self {
            lent,
            back: 0,
            told: lent,
            parting: 0,
            recalled: 0,
            recall_told: 0,
            must_ask: false,
            ask_is_due: false,
            surrendered: 0,
            report: CreditReport::default(),
        }
    }

    /// What the engine lends this session.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// What came back in all: it grows while the peer sends.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.back
    }

    /// Whether the peer may have sent a frame of that cost.
    #[inline]
    #[must_use]
    pub fn covers(&self, cost: u64) -> bool {
        self.back.saturating_add(cost) <= self.told
    }

    /// Whether the peer may have sent a frame of that cost, and nobody has to hear of it:
    /// neither is a grant due for it, nor was any of the credit recalled.
    #[inline]
    #[must_use]
    pub fn covers_quietly(&self, cost: u64) -> bool {
        self.covers(cost) && self.parting == 0 && !is_much(self.untold() + cost, self.lent)
    }

    /// A frame of that cost has arrived and its memory is replaced already.
    #[inline]
    pub fn arrived(&mut self, cost: u64) -> Result<(), CreditOverrun> {
        let used = self.back.saturating_add(cost);
        if !self.covers(cost) {
            let granted = self.told;
            return Err(CreditOverrun { used, granted });
        }
        self.back = used;
        let parting = self.parting.min(cost);
        self.parting -= parting;
        self.give_up(parting);
        Ok(())
    }

    /// The same of a frame that is [covered quietly](Self::covers_quietly).
    #[inline]
    pub fn arrived_quietly(&mut self, cost: u64) {
        debug_assert!(self.covers_quietly(cost));
        self.back += cost;
    }

    /// Lends more.
    pub fn give(&mut self, credit: u64, term: Term) {
        self.lent += credit;
        if term == Term::Turn {
            self.parting += credit;
            self.recalled += credit;
        }
        self.must_ask = term == Term::Turn;
        self.ask_is_due = self.must_ask;
    }

    /// Takes so much back, at most what was not recalled before: at once what is not out,
    /// the rest as it comes. If nothing is left then, the peer hears that it has to ask.
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

    /// The peer gave back what it could not use, so much in all.
    pub fn surrendered(&mut self, surrendered: u64) -> Result<(), BadSurrender> {
        let mut before = self.surrendered;
        let more = grow("surrenders of credit", &mut before, surrendered)?;
        if surrendered > self.recall_told {
            let recalled = self.recall_told;
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

    /// The peer waits for credit, and knew of `granted` when it said so. Returns whether
    /// that can be.
    #[must_use]
    pub fn is_wanted(&mut self, granted: u64) -> bool {
        // Who knew less has been answered already.
        self.report.wants |= granted == self.told;
        granted <= self.told
    }

    /// What arrived just now took the peer's last credit, and more waits behind it.
    pub fn used_up(&mut self) {
        // Else it has been answered already.
        let is_news = self.back == self.told;
        self.report.wants |= is_news;
        self.report.is_busy |= is_news;
    }

    /// The grant to tell: once more than half of what is lent is owed, so that before the
    /// peer has heard it, not so much can be owed again; or with a recall.
    #[must_use]
    pub fn owed(&self) -> Option<u64> {
        let owed = self.untold();
        let is_due = self.is_owed_much() || self.recall_is_due() && owed > 0;
        is_due.then_some(self.told + owed)
    }

    /// Whether so much came back that the grant is to be told for it alone. Nothing else
    /// that is to be told comes with a frame's arrival.
    #[inline]
    #[must_use]
    pub fn is_owed_much(&self) -> bool {
        is_much(self.untold(), self.lent)
    }

    /// `grant` has been put into a frame.
    pub fn told(&mut self, grant: u64) {
        self.told = self.told.max(grant);
    }

    /// The peer had to wait for credit, and got some in the meantime.
    pub fn was_short(&mut self) {
        self.report.wants = true;
    }

    /// Whether a recall is to be told.
    fn recall_is_due(&self) -> bool {
        self.recalled > self.recall_told || self.ask_is_due
    }

    /// The recall to tell, and whether it says that nothing is left. It belongs into a frame
    /// with [`owed`](Self::owed), and [`recall_told`](Self::recall_told) behind it.
    #[must_use]
    pub fn recall_due(&self) -> Option<(u64, bool)> {
        self.recall_is_due()
            .then_some((self.recalled, self.must_ask))
    }

    /// The recall has been put into a frame.
    pub fn recall_told(&mut self) {
        self.recall_told = self.recalled;
        self.ask_is_due = false;
    }

    /// What happened since the last time.
    pub fn take_report(&mut self) -> CreditReport {
        std::mem::take(&mut self.report)
    }

    /// What came back, or was lent, and can be told.
    fn untold(&self) -> u64 {
        self.lent.saturating_sub(self.out())
    }

    /// What the peer may have in flight or keep.
    fn out(&self) -> u64 {
        self.told - self.back
    }

    fn give_up(&mut self, credit: u64) {
        self.lent -= credit;
        self.report.returned += credit;
    }
}

/// Whether so much can be told of what is lent that it is told for itself.
#[inline]
fn is_much(untold: u64, lent: u64) -> bool {
    untold > lent / 2
}
