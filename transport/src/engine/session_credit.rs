//! Session credit: what the engine of the other end can take in, in arrival bytes or
//! receive buffers.
//!
//! Rules:
//!
//! 1. Credit is cumulative in both directions of speech: the receiving engine says how much
//!    may have been sent *in all*, the sending engine counts what it has sent in all. It
//!    comes back when the engine has replaced the arrival memory, whatever the application
//!    does with the messages, so it never mixes with a channel's window.
//! 2. How much may be out at a time is what the engine *lends* the session; the
//!    [broker](super::credit_broker) moves that between sessions. What comes back is lent
//!    again at once, unless it was recalled.
//! 3. A recall takes what is not out at once. The rest is not lent again when it comes
//!    back: by being used, or because its holder has nothing to send and surrenders it.
//!    Surrendered credit counts as used, so it cannot be spent twice.
//! 4. A holder that nothing is lent to any more hears so with the recall, and asks when it
//!    has something to send: once, until it hears of credit or of a recall again. Where
//!    frames take buffers, the one with data that takes its last credit asks, if more waits
//!    behind it; else talk does.
//! 5. A sender that is lent something and had to wait says that with the next frame, so that
//!    it may be lent more.
//! 6. Recalls and surrenders are cumulative too: one that comes again says nothing new, one
//!    that goes back is a lie.
//!
//! Talk about credit is never charged (see [`carriage`](super::carriage)): asking for credit
//! must not need credit.
#![forbid(unsafe_code)]

use crate::mutant::is_mutant;

/// The largest control frame; what a session may always send beside its credit.
pub const CONTROL_RESERVE_BYTES: u64 = 4096;

/// The sending side: what we may still send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditUse {
    granted: u64,
    /// Sent or surrendered.
    used: u64,

    /// What the peer recalled in all.
    recalled: u64,
    /// Of what is available: will not be lent again.
    parting: u64,
    /// What went back unused in all.
    surrendered: u64,

    /// More comes only to who asks.
    must_ask: bool,
    has_asked: bool,
}

/// News of credit go back behind what was said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} went back from {before} to {now}, but they only grow")]
pub struct CreditShrank {
    /// Which news.
    pub what: &'static str,
    /// What was said before.
    pub before: u64,
    /// What was said now.
    pub now: u64,
}

impl CreditUse {
    /// Starts with what the peer granted in its handshake. Who starts without credit asks
    /// for it, unless it hears of some first.
    #[must_use]
    pub fn new(granted: u64) -> Self {
        Self {
            granted,
            must_ask: granted == 0,
            ..Self::default()
        }
    }

    /// What may be sent now.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.granted + u64::from(is_mutant("credit_off_by_one")) - self.used
    }

    /// What the peer granted in all, as far as we know.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Charges a frame; the caller asked [`available`](Self::available) before.
    pub fn charge(&mut self, cost: u64) {
        debug_assert!(cost <= self.available());
        self.used += cost;
        self.parting = self.parting.saturating_sub(cost);
    }

    /// The peer's cumulative grant. Said again it says nothing new.
    pub fn grant(&mut self, granted: u64) -> Result<(), CreditShrank> {
        grow("grants of credit", &mut self.granted, granted).map(|more| {
            if more > 0 {
                (self.must_ask, self.has_asked) = (false, false);
            }
        })
    }

    /// The peer's cumulative recall. With `must_ask` nothing is lent to us any more.
    pub fn recall(&mut self, recalled: u64, must_ask: bool) -> Result<(), CreditShrank> {
        let more = grow("recalls of credit", &mut self.recalled, recalled)?;
        self.parting = self.parting.saturating_add(more).min(self.available());
        if must_ask {
            // This answers a question too: what was given may be gone before it was told.
            (self.must_ask, self.has_asked) = (true, false);
        }
        Ok(())
    }

    /// Whether some of what is available is to go back.
    #[must_use]
    pub fn is_recalled(&self) -> bool {
        self.parting > 0
    }

    /// There is nothing to send: gives back what was recalled. Returns what was surrendered
    /// in all, if that has to be said in a frame that costs `cost` of it.
    pub fn surrender(&mut self, cost: u64) -> Option<u64> {
        if self.parting == 0 {
            return None;
        }
        let unused = self.parting - cost;
        self.parting = cost;
        self.used += if is_mutant("surrender_spent_twice") {
            0
        } else {
            unused
        };
        self.surrendered += unused;
        Some(self.surrendered)
    }

    /// Whether credit is lent to us again when it has come back, so that we need not ask.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        !self.must_ask
    }

    /// Whether who waits for credit has to say so.
    #[must_use]
    pub fn should_ask(&self) -> bool {
        self.must_ask && !self.has_asked
    }

    /// Whether a frame that costs `cost` is the last before it has to ask.
    #[must_use]
    pub fn is_last(&self, cost: u64) -> bool {
        self.should_ask() && self.available() == cost
    }

    /// The question is in a frame.
    pub fn asked(&mut self) {
        self.has_asked = true;
    }
}

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

/// Moves a number that only grows; by how much it grew.
fn grow(what: &'static str, number: &mut u64, now: u64) -> Result<u64, CreditShrank> {
    let before = *number;
    let more = now.checked_sub(before);
    *number = now.max(before);
    more.ok_or(CreditShrank { what, before, now })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_comes_back_once_more_than_half_is_owed() {
        let mut grant = CreditGrant::new(100);
        let mut credit = CreditUse::new(100);
        credit.charge(50);
        grant.arrived(50).unwrap();
        assert_eq!(grant.owed(), None);
        credit.charge(1);
        grant.arrived(1).unwrap();
        assert_eq!(grant.owed(), Some(151));
        grant.told(151);
        credit.grant(151).unwrap();
        assert_eq!(credit.available(), 100);
        credit.grant(151).unwrap();
        assert_eq!(credit.available(), 100, "said again it says nothing new");
        assert!(credit.grant(150).is_err(), "and it does not go back");
    }

    #[test]
    fn one_beyond_the_grant_is_an_overrun() {
        let mut grant = CreditGrant::new(100);
        grant.arrived(100).unwrap();
        let (used, granted) = (101, 100);
        assert_eq!(grant.arrived(1), Err(CreditOverrun { used, granted }));
        assert!(grant.arrived(u64::MAX).is_err());
    }

    #[test]
    fn a_recall_takes_what_is_here_at_once_and_the_rest_when_it_comes() {
        let mut grant = CreditGrant::new(10);
        grant.arrived(4).unwrap();
        grant.recall(7);
        assert_eq!(grant.take_report().returned, 4);
        assert_eq!(grant.recall_due(), Some((3, false)));
        grant.recall_told();
        assert_eq!(grant.recall_due(), None);
        grant.arrived(2).unwrap();
        assert_eq!(grant.take_report().returned, 2);
        grant.surrendered(1).unwrap();
        assert_eq!(
            grant.take_report(),
            CreditReport {
                returned: 1,
                is_idle: true,
                ..CreditReport::default()
            }
        );
        assert_eq!(grant.lent(), 3);
        grant.surrendered(1).unwrap();
        assert_eq!(grant.take_report().returned, 0, "said again");
    }

    #[test]
    fn who_has_nothing_to_send_surrenders_what_was_recalled_and_no_more() {
        let mut credit = CreditUse::new(10);
        credit.recall(6, false).unwrap();
        credit.charge(2);
        assert_eq!(credit.surrender(0), Some(4));
        assert_eq!(credit.surrender(0), None);
        assert_eq!(credit.available(), 4);
        assert!(!credit.should_ask());
        credit.recall(1000, true).unwrap();
        assert_eq!(credit.surrender(1), Some(7), "the frame costs the last one");
        credit.charge(1);
        assert_eq!(credit.available(), 0);
        assert!(credit.should_ask());
        credit.asked();
        assert!(!credit.should_ask());
        credit.grant(11).unwrap();
        credit.recall(1001, true).unwrap();
        assert!(credit.should_ask(), "it was answered, for one turn");
    }

    #[test]
    fn a_recall_of_all_is_told_even_if_nothing_of_it_is_out() {
        let mut grant = CreditGrant::new(3);
        grant.arrived(3).unwrap();
        grant.recall(3);
        assert_eq!((grant.lent(), grant.owed()), (0, None));
        assert_eq!(grant.recall_due(), Some((0, true)));
    }

    #[test]
    fn a_turn_comes_back_by_itself() {
        let mut grant = CreditGrant::new(0);
        grant.give(2, Term::Turn);
        assert_eq!(grant.owed(), Some(2));
        grant.told(2);
        assert_eq!(grant.recall_due(), Some((2, true)));
        grant.recall_told();
        grant.arrived(2).unwrap();
        assert_eq!((grant.lent(), grant.owed()), (0, None));
        assert!(grant.is_wanted(2));
        let report = grant.take_report();
        assert!(report.wants && report.returned == 2, "{report:?}");
        assert!(grant.is_wanted(1) && !grant.take_report().wants, "late");
        assert!(!grant.is_wanted(3), "never granted");
    }

    #[test]
    fn surrenders_that_cannot_be_are_told_apart() {
        let mut grant = CreditGrant::new(10);
        grant.recall(6);
        assert!(matches!(
            grant.surrendered(1),
            Err(BadSurrender::NotRecalled { .. })
        ));
        grant.recall_told();
        grant.arrived(8).unwrap();
        assert!(matches!(
            grant.surrendered(3),
            Err(BadSurrender::NotHeld(_))
        ));
        grant.surrendered(2).unwrap();
        assert!(matches!(grant.surrendered(1), Err(BadSurrender::Shrank(_))));
    }
}
