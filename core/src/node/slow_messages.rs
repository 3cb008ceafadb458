//! The messages of a node that took long.
#![forbid(unsafe_code)]

use ibex_base::fork;

use super::Node;
use crate::stats::SlowMessage;

impl Node {
    /// Returns the slowest messages of the last minute, at most 32 with the slowest first, and where
    /// their time went. There are none unless the node was built with `inspect` (`ibex::prelude`): only
    /// such a node takes times, and each message costs it two to four readings of the clock.
    ///
    /// Each end has its own account of a message, by its own clock: the sending end of the way into
    /// the wire and of the answer, the receiving end of its queue and its program.
    /// [`MessageStages`](crate::stats::MessageStages) says which stage begins and ends where. Of more than
    /// 1024 messages of an end that are in one stage together, some are not timed.
    ///
    /// ```
    /// use ibex::prelude::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = ibex::Node::builder().inspect().build()?;
    /// for message in node.slow_messages() {
    ///     // message 17 of channel "wal" to 10.0.0.2:7000 (named "replica-2"): 12.1ms, room 12ms,
    ///     // credit 0ns, frame 100us
    ///     println!("{message}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn slow_messages(&self) -> Vec<SlowMessage> {
        if fork::is_child() {
            return Vec::new();
        }
        self.parts.view.slow_messages()
    }
}
