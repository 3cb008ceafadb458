//! The sending side of session credit.
#![forbid(unsafe_code)]

use super::{CreditShrank, grow};

/// The sending side: the credit that this end may still use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditUse {
    granted: u64,
    /// The credit that was sent or surrendered.
    used: u64,

    /// The credit that the peer recalled in all.
    recalled: u64,
    /// The part of the available credit that will not be lent again.
    parting: u64,
    /// The credit that went back unused in all.
    surrendered: u64,

    /// This end gets more only when it asks.
    must_ask: bool,
    has_asked: bool,
}

impl CreditUse {
    /// Starts with the credit that the peer granted in its handshake. An end without credit at the
    /// start asks for credit, unless it is granted some first.
    #[must_use]
    pub fn new(granted: u64) -> Self {
        Self {
            granted,
            must_ask: granted == 0,
            ..Self::default()
        }
    }

    /// Returns the credit that may be used now.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.granted - self.used
    }

    /// Returns the total credit that the peer granted, as far as this end knows.
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

    /// Takes in the peer's cumulative grant. A repeated grant changes nothing.
    pub fn grant(&mut self, granted: u64) -> Result<(), CreditShrank> {
        grow("grants of credit", &mut self.granted, granted).map(|more| {
            if more > 0 {
                (self.must_ask, self.has_asked) = (false, false);
            }
        })
    }

    /// Takes in the peer's cumulative recall. With `must_ask`, nothing is lent to this end any
    /// more.
    pub fn recall(&mut self, recalled: u64, must_ask: bool) -> Result<(), CreditShrank> {
        let more = grow("recalls of credit", &mut self.recalled, recalled)?;
        self.parting = self.parting.saturating_add(more).min(self.available());
        if must_ask {
            // A recall answers a question too: the credit that was given may be taken back before
            // the peer was notified of it.
            (self.must_ask, self.has_asked) = (true, false);
        }
        Ok(())
    }

    /// Returns whether some of the available credit is to go back.
    #[must_use]
    pub fn is_recalled(&self) -> bool {
        self.parting > 0
    }

    /// Gives back recalled credit, as there is nothing to send. Returns what was surrendered in
    /// all, if that has to be sent in a frame that costs `cost` of it.
    pub fn surrender(&mut self, cost: u64) -> Option<u64> {
        if self.parting == 0 {
            return None;
        }
        let unused = self.parting - cost;
        self.parting = cost;
        self.used += unused;
        self.surrendered += unused;
        Some(self.surrendered)
    }

    /// Returns whether credit is lent to us again when it has come back, so that we need not ask.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        !self.must_ask
    }

    /// Returns whether a wait for credit has to be announced.
    #[must_use]
    pub fn should_ask(&self) -> bool {
        self.must_ask && !self.has_asked
    }

    /// Returns whether a frame that costs `cost` is the last before this end has to ask.
    #[must_use]
    pub fn is_last(&self, cost: u64) -> bool {
        self.should_ask() && self.available() == cost
    }

    /// Notes that the question is in a frame.
    pub fn asked(&mut self) {
        self.has_asked = true;
    }
}
