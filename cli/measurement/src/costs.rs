//! The load that a measurement put on an RDMA device, as the sessions of both ends counted it.

use ibex::Peer;
use serde::{Deserialize, Serialize};

/// Counts of one session, or of both ends of it; zeros over another fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// Send and write requests.
    pub requests: u64,
    /// Calls that posted requests.
    pub doorbells: u64,
    /// Requests that asked for a completion.
    pub signaled: u64,
    /// Frames that arrived, each in a receive of its own.
    pub frames: u64,
    /// Calls that found completions.
    pub polls: u64,
}

impl Costs {
    /// Reads the session's counters.
    pub fn of(peer: &Peer) -> Costs {
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
    pub fn since(self, earlier: Costs) -> Costs {
        self.with(earlier, u64::wrapping_sub)
    }

    /// Returns the sum of both ends' counts.
    pub fn and(self, other: Costs) -> Costs {
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
