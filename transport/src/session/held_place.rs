//! The place of a session among those of its node.
#![forbid(unsafe_code)]

use std::{fmt, time::Instant};

/// A session's place among those of its node, which limits their number. Dropping it gives the place
/// back.
pub trait HeldPlace: Send {
    /// Notes that the session has no connection from now on. Until this time it keeps its place
    /// all the same.
    fn suspended(&self, _keeps_until: Instant) {}

    /// Notes that the session continues over another connection.
    fn resumed(&self) {}
}

impl fmt::Debug for dyn HeldPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldPlace")
    }
}

/// The place in a node that does not count its sessions.
impl HeldPlace for () {}

/// A place, and something else to drop when the session is over.
impl<T: Send> HeldPlace for (Box<dyn HeldPlace>, T) {
    fn suspended(&self, keeps_until: Instant) {
        self.0.suspended(keeps_until);
    }

    fn resumed(&self) {
        self.0.resumed();
    }
}
