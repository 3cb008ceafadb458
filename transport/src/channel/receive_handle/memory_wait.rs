//! The wait of a receiver's handle for memory: tries from time to time, and a claim that keeps its
//! place meanwhile.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibex_ring::memory::{MemoryClaim, MemoryError};

use crate::{clock, endpoint::receive_end::ReceiveEnd, node::NodeState};

/// What a handle keeps while memory for an arrival is lacking.
#[derive(Debug, Default)]
pub(super) struct MemoryWait {
    /// The time of the next attempt, if memory was lacking.
    retry_at: Option<Instant>,
    /// Claim to memory for the next message, if that message lies in a segment and was looked at.
    claim: Option<MemoryClaim>,
}

impl MemoryWait {
    /// Returns whether memory was lacking at the last try.
    pub(super) fn is_on(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Returns whether memory was lacking at the last try, and it is too soon for another try. An end
    /// that is over tries at each check, because its engine may go before it wakes the handle.
    pub(super) fn is_too_soon(&self, end: &ReceiveEnd) -> bool {
        self.retry_at
            .is_some_and(|retry_at| clock::now() < retry_at && !end.state.is_over())
    }

    /// Schedules another try, because memory is lacking: the kernel's, or room that the release of
    /// other messages gives. Returns whether the caller is to learn of it: the kernel refuses for the
    /// first time, or no engine has the end, so nobody would wake the handle.
    #[cold]
    pub(super) fn begin(&mut self, end: &ReceiveEnd, lacks_room: bool) -> bool {
        end.lacks_room.store(lacks_room, Ordering::Relaxed);
        let retry_at = clock::now() + RETRY_AFTER;
        let is_change = self.retry_at.replace(retry_at).is_none();
        let is_woken = end.session.requests.receiver_retries(end, retry_at);
        is_change && !lacks_room || !is_woken
    }

    /// Ends the wait. Returns whether there was one.
    pub(super) fn end(&mut self) -> bool {
        self.retry_at.take().is_some()
    }

    /// Claims room for the next message, of `capacity` in its segment, within the node's limit on
    /// memory that peers make it hold. A claim that has to wait keeps its place before later ones.
    ///
    /// A segment is entirely its sender's memory, which was checked when the segment came. It
    /// counts once while messages in it are not released. A copy counts for each message.
    pub(super) fn claim(&mut self, capacity: u64, node: &NodeState) -> Result<(), MemoryError> {
        let begun = self.claim.take();
        let begun = begun.filter(|claim| claim.total() == capacity);
        if begun.as_ref().is_some_and(MemoryClaim::is_whole) {
            self.claim = begun;
            return Ok(());
        }
        let claim = match begun {
            None => node.memory.claim(capacity),
            Some(_) => None,
        };
        let (claim, has_room) = match (claim, begun) {
            (Some(claim), _) => (claim, true),
            (None, begun) => {
                let mut claim = begun.unwrap_or_else(|| node.memory.begin(capacity));
                let has_room = node.charge(&mut claim, capacity);
                if has_room {
                    claim.finish(capacity);
                }
                (claim, has_room)
            }
        };
        self.claim = Some(claim);
        match has_room {
            true => Ok(()),
            false => Err(MemoryError::beyond_limit(capacity as usize)),
        }
    }

    /// Takes the claim to the next message's memory.
    pub(super) fn take_claim(&mut self) -> Option<MemoryClaim> {
        self.claim.take()
    }
}

/// Time until the next attempt to get memory that was lacking.
const RETRY_AFTER: Duration = Duration::from_millis(20);
