//! What the clones of a node share, and the close of a node with its last clone.

use std::{any::Any, mem, thread};

use ibex_base::fork;
use ibex_bootstrap::Local;

use crate::{
    CloseReason,
    meeting::resuming::Resuming,
    node::{driving_tasks::Tasks, part::NodeView, settings::NodeSettings},
};
#[cfg(feature = "verbs")]
use {crate::rdma::NodeDevices, std::sync::Arc};

/// The parts of a node, which its clones share. Dropping them closes the node.
pub(crate) struct NodeParts {
    /// What parts of other crates see of the node.
    pub(super) view: NodeView,
    pub(super) resuming: Resuming,
    pub(super) local: Local,
    #[cfg(feature = "verbs")]
    pub(super) devices: Arc<NodeDevices>,
    pub(super) settings: NodeSettings,
    /// The parts of other crates, dropped once the node is closed.
    pub(crate) added: Vec<Box<dyn Any + Send + Sync>>,
}

impl Drop for NodeParts {
    fn drop(&mut self) {
        if fork::is_child() {
            // A forked child does not drop what these fields hold.
            mem::forget((self.view.clone(), self.resuming.clone(), self.local.clone()));
            return;
        }
        let runtime = self.view.runtime();
        if thread::panicking() {
            runtime.break_off(CloseReason::Aborted);
        }
        // No caller is left to be told what was not delivered.
        match Tasks::are_here() {
            true => runtime.close_in_passing(self.settings.time.linger),
            false => drop(runtime.close(self.settings.time.linger)),
        }
    }
}
