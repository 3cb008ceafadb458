//! Completions: the queue that tells what became of requests, how it is polled, and how a thread
//! sleeps on it.

pub(crate) mod batch;
pub(crate) mod channel;
pub(crate) mod drain_lock;
mod making;
pub(crate) mod queue;
pub(crate) mod wait;
pub(crate) mod work_completion;
