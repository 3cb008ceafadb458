//! A reference to a node that does not keep it open.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::{Node, parts::NodeParts};

/// A reference to a [`Node`] that does not keep it open, for example for a page of its statistics.
/// [`Node::downgrade`] makes it.
///
/// ```
/// # fn main() -> Result<(), ibex::ListenError> {
/// let node = ibex::Node::client()?;
/// let watched = node.downgrade();
/// assert!(watched.upgrade().is_some());
/// drop(node);
/// assert!(watched.upgrade().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct WeakNode(Weak<NodeParts>);

impl WeakNode {
    /// Returns another handle of the node, or `None` if the last one was dropped. Dropping it closes
    /// the node if no other is left by then.
    #[must_use]
    pub fn upgrade(&self) -> Option<Node> {
        let parts = self.0.upgrade()?;
        Some(Node { parts })
    }
}

impl Node {
    /// Returns a reference that does not keep the node open.
    #[must_use]
    pub fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.parts))
    }
}

impl fmt::Debug for WeakNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakNode").finish_non_exhaustive()
    }
}
