//! The memory of ends that a peer has opened and this node has not.
//!
//! A peer chooses how many such ends there are and how long their texts are, and they stay until the
//! node opens their counterparts or the session is over. So each session may have some bytes of
//! them in any case, which no other session can take, and the rest is charged to the node.
#![forbid(unsafe_code)]

use std::sync::Arc;

use ibex_base::sync::LentLimit;

use super::NodeState;

/// The bytes that are charged to the node for one session, given back when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Unopened {
    /// The node's limit, once something was charged.
    limit: Option<Arc<LentLimit>>,
    charged: u64,
}

/// A peer has opened more ends than there is memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it has opened channels that this program has not opened, whose names and types take {bytes} \
     bytes; a session may always have {OWN_UNOPENED_BYTES} bytes of them, and all sessions of this \
     node together {UNOPENED_BYTES} more, which are taken: open the other ends here, or fewer \
     channels at the peer"
)]
pub(crate) struct TooManyUnopened {
    bytes: u64,
}

/// The bytes of such ends that each session may have whatever the others have.
const OWN_UNOPENED_BYTES: u64 = 64 << 10;
/// The bytes of such ends that the sessions of a node may have together beside that.
pub(super) const UNOPENED_BYTES: u64 = 64 << 20;

impl Unopened {
    /// Charges a session whose ends of this kind take `bytes` in all.
    ///
    /// # Errors
    /// The node has no room for them.
    pub(crate) fn charge(&mut self, bytes: u64, node: &NodeState) -> Result<(), TooManyUnopened> {
        let missing = bytes
            .saturating_sub(OWN_UNOPENED_BYTES)
            .saturating_sub(self.charged);
        if missing == 0 {
            return Ok(());
        }
        let limit = self.limit.get_or_insert_with(|| node.unopened.clone());
        let lent = limit.borrow_up_to(missing);
        self.charged += lent;
        match lent == missing {
            true => Ok(()),
            false => Err(TooManyUnopened { bytes }),
        }
    }

    /// Gives back what is no longer needed for `bytes` in all.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let needed = bytes.saturating_sub(OWN_UNOPENED_BYTES).min(self.charged);
        if let Some(limit) = &self.limit {
            limit.give_back(self.charged - needed);
        }
        self.charged = needed;
    }
}

impl Drop for Unopened {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
impl NodeState {
    /// Returns what sessions may still charge to the node.
    pub(crate) fn unopened_left(&self) -> u64 {
        self.unopened.left()
    }
}
