//! Session credit: the amount that the engine of the other end can take in, in arrival bytes or
//! receive buffers.
//!
//! Rules:
//!
//! 1. Credit is cumulative in both directions: the receiving engine tells how much may have been
//!    sent *in all*, and the sending engine counts how much it has sent in all. Credit comes back
//!    when the engine has replaced the arrival memory, independent of what the application does
//!    with the messages. So it never mixes with a channel's window.
//! 2. The engine *lends* the session the amount that may be out at a time, and the
//!    [broker](super::broker) moves credit between sessions. Credit that comes back is lent again
//!    at once, unless it was recalled.
//! 3. A recall takes back at once the credit that is not out. The rest is not lent again when it
//!    comes back, either because it was used, or because its holder has nothing to send and
//!    surrenders it. Surrendered credit counts as used, so it cannot be spent twice.
//! 4. The recall tells a holder that nothing is lent to it any more. The holder asks when it has
//!    something to send: once, until it is granted credit or learns of a recall again. Where frames
//!    take buffers, the data frame that takes the last credit asks, if more waits behind it.
//!    Otherwise talk asks.
//! 5. A sender that is lent credit and had to wait reports the wait with its next frame, so that it
//!    may be lent more.
//! 6. Recalls and surrenders are cumulative too: a repeated one says nothing new, and one that goes
//!    back is a lie.
//!
//! Talk about credit is never charged (see [`carriage`](crate::framing)): asking for credit
//! must not need credit.
#![forbid(unsafe_code)]

mod grant;
#[cfg(test)]
mod tests;
mod usage;

pub use grant::{BadSurrender, CreditGrant, CreditOverrun, CreditReport, Term};
pub use usage::CreditUse;

/// The largest control frame; what a session may always send beside its credit.
pub const CONTROL_RESERVE_BYTES: u64 = 4096;

/// Changes of credit go back behind what was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} went back from {before} to {now}, but they only grow")]
pub struct CreditShrank {
    /// The name of the change.
    pub what: &'static str,
    /// The earlier value.
    pub before: u64,
    /// The value in this message.
    pub now: u64,
}

/// Moves a number that only grows; by how much it grew.
fn grow(what: &'static str, number: &mut u64, now: u64) -> Result<u64, CreditShrank> {
    let before = *number;
    let more = now.checked_sub(before);
    *number = now.max(before);
    more.ok_or(CreditShrank { what, before, now })
}
