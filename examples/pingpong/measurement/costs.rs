//! The load that a measurement put on an RDMA device, as the sessions of both ends counted it.

use ibex::Peer;
use serde::{Deserialize, Serialize};

/// Counts of one session, or of both ends of it; zeros over another fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Costs {
    /// Send and write requests.
    pub(crate) requests: u64,
    /// Calls that posted requests.
    pub(crate) doorbells: u64,
    /// Requests that asked for a completion.
    pub(crate) signaled: u64,
    /// Frames that arrived, each in a receive of its own.
    pub(crate) frames: u64,
    /// Calls that found completions.
    pub(crate) polls: u64,
}

impl Costs {
    /// Reads the session's counters.
    pub(crate) fn of(peer: &Peer) -> Costs {
        let stats = peer.stats();
        Costs {
            requests: stats.work_requests,
            doorbells: stats.doorbells,
            signaled: stats.signaled,
            frames: stats.frames_received,
            polls: stats.polls - stats.empty_polls,
        }
    }

    /// Returns the increase since an earlier reading.
    pub(crate) fn since(self, earlier: Costs) -> Costs {
        self.with(earlier, u64::wrapping_sub)
    }

    /// Returns the sum of both ends' counts.
    pub(crate) fn and(self, other: Costs) -> Costs {
        self.with(other, u64::wrapping_add)
    }

    fn with(self, other: Costs, both: impl Fn(u64, u64) -> u64) -> Costs {
        Costs {
            requests: both(self.requests, other.requests),
            doorbells: both(self.doorbells, other.doorbells),
            signaled: both(self.signaled, other.signaled),
            frames: both(self.frames, other.frames),
            polls: both(self.polls, other.polls),
        }
    }
}
