//! The two calls by which a completion queue can be polled.
#![forbid(unsafe_code)]

use std::fmt;

/// The way in which a completion queue is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionPolling {
    /// Polling by `ibv_poll_cq`, which copies all fields of each completion.
    Plain,
    /// Polling by `ibv_start_poll` and `ibv_next_poll`, which lets each field be read by itself.
    Extended,
}

impl fmt::Display for CompletionPolling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Extended => "extended",
        })
    }
}
