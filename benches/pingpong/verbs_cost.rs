//! The cost of a message at the device, for both ends together, as their sessions count it.

use std::fmt;

use serde::Serialize;

use ibex_measurement::costs::Costs;

/// Counts for one message.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cost {
    /// Calls that post requests, or that poll and find completions.
    verbs_calls: f64,
    requests: f64,
    doorbells: f64,
    signaled: f64,
    /// Instructions over the fake device, without the device's own, if they were counted.
    pub(crate) instructions: Option<f64>,
}

impl Cost {
    /// Divides `costs` by the number of messages.
    pub(crate) fn of(costs: Costs, messages: u64) -> Cost {
        let each = |count: u64| count as f64 / messages as f64;
        let reposts = costs.frames / RECEIVES_PER_REPOST;
        Cost {
            verbs_calls: each(costs.doorbells + reposts + costs.polls),
            requests: each(costs.requests),
            doorbells: each(costs.doorbells),
            signaled: each(costs.signaled),
            instructions: None,
        }
    }
}

/// Prints the line below that of the ratio.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  per message: {:.3} verbs calls, {:.3} requests, {:.3} doorbells, {:.3} signaled",
            self.verbs_calls, self.requests, self.doorbells, self.signaled
        )?;
        match self.instructions {
            Some(instructions) => write!(f, ", {instructions:.0} instructions"),
            None => Ok(()),
        }
    }
}

/// Receives that are posted together; no counter has this number.
const RECEIVES_PER_REPOST: u64 = 16;
