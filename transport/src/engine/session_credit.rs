//! Session credit: how many arrival bytes the engine of the other end can take in.
//!
//! Credit is cumulative in both directions of speech: the receiving engine says how
//! many bytes may have been sent *in all*, the sending engine counts how many it has
//! sent in all. It comes back when the engine has replaced the arrival memory, whatever
//! the application does with the messages, so it never mixes with a channel's window.
//!
//! Control frames are not charged: each session keeps a reserve of
//! [`CONTROL_RESERVE_BYTES`], so that asking for credit never needs credit.
#![forbid(unsafe_code)]

/// The largest control frame; what a session may always send beside its credit.
pub const CONTROL_RESERVE_BYTES: u64 = 4096;

/// The sending side: what we may still send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditUse {
    granted: u64,
    used: u64,
}

impl CreditUse {
    /// Starts with what the peer granted in its handshake.
    #[must_use]
    pub fn new(granted: u64) -> Self {
        Self { granted, used: 0 }
    }

    /// Bytes that may be sent now.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.granted - self.used
    }

    /// Charges a frame; the caller asked [`available`](Self::available) before.
    pub fn charge(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.available());
        self.used += bytes;
    }

    /// By how much the peer's cumulative grant `granted` exceeds the last.
    #[must_use]
    pub fn growth(&self, granted: u64) -> u64 {
        granted.saturating_sub(self.granted)
    }

    /// The peer's cumulative grant. Late or repeated news is harmless.
    pub fn grant(&mut self, granted: u64) {
        self.granted = self.granted.max(granted);
    }
}

/// The receiving side: what we let the peer send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditGrant {
    budget: u64,
    arrived: u64,
    told: u64,
}

/// A peer sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{arrived} arrival bytes were sent against a credit of {granted}")]
pub struct CreditOverrun {
    /// Bytes that arrived in all.
    pub arrived: u64,
    /// Bytes that were granted in all.
    pub granted: u64,
}

impl CreditGrant {
    /// Lets the peer keep `budget` bytes in flight; the handshake tells it so.
    #[must_use]
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            arrived: 0,
            told: budget,
        }
    }

    /// Bytes of a charged frame have arrived and their memory is replaced already.
    pub fn arrived(&mut self, bytes: u64) -> Result<(), CreditOverrun> {
        let arrived = self.arrived.saturating_add(bytes);
        if arrived > self.told {
            return Err(CreditOverrun {
                arrived,
                granted: self.told,
            });
        }
        self.arrived = arrived;
        Ok(())
    }

    /// The grant to tell, once half the budget is owed.
    #[must_use]
    pub fn owed(&self) -> Option<u64> {
        let grant = self.arrived + self.budget;
        (grant - self.told >= self.budget / 2).then_some(grant)
    }

    /// `grant` has been put into a frame.
    pub fn told(&mut self, grant: u64) {
        self.told = self.told.max(grant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_comes_back_at_half_the_budget() {
        let mut grant = CreditGrant::new(100);
        let mut credit = CreditUse::new(100);
        credit.charge(49);
        grant.arrived(49).unwrap();
        assert_eq!(grant.owed(), None);
        credit.charge(1);
        grant.arrived(1).unwrap();
        assert_eq!(grant.owed(), Some(150));
        grant.told(150);
        credit.grant(150);
        assert_eq!(credit.available(), 100);
        credit.grant(120);
        assert_eq!(credit.available(), 100, "late news takes nothing back");
    }

    #[test]
    fn one_byte_beyond_the_grant_is_an_overrun() {
        let mut grant = CreditGrant::new(100);
        grant.arrived(100).unwrap();
        assert_eq!(
            grant.arrived(1),
            Err(CreditOverrun {
                arrived: 101,
                granted: 100
            })
        );
    }
}
